"""Processes and machines that run jobs."""
