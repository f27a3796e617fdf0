"""Pose estimation: a heatmap for each joint of a person in a box (Section 4.4)."""
