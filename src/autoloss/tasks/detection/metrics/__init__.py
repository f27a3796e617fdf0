"""Average precision."""
