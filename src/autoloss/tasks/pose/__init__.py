"""Pose estimation: a heatmap for each joint of a person in a box (Section 4.4)."""

from autoloss.tasks.pose.data.coco import write_people
from autoloss.tasks.pose.figures import compose_figures

__all__ = ["compose_figures", "write_people"]
