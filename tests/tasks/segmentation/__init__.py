"""Segmentation: data sets in their original formats, networks, metrics and the tasks."""
