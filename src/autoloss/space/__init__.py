"""Section 3.1, Search Space: what a loss is."""
