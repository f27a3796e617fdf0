"""Data sets in their original formats."""
