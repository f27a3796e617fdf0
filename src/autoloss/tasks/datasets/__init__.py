"""Data sets in their original formats, and those that need no download."""
