"""Semantic segmentation (Section 4.1)."""
