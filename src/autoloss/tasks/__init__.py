"""Section 4 and Appendix A: the tasks for which losses are searched."""

from autoloss.tasks.catalogue import get, inspect, names

__all__ = ["get", "inspect", "names"]
