"""All that touches disk, processes or a cluster."""
