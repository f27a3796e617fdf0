"""The 17 joints of COCO's persons: names in their order, tolerances, and what swaps in a mirror image (Section 4.4)."""

from __future__ import annotations

import numpy as np

JOINTS = (
    "nose",
    "left_eye",
    "right_eye",
    "left_ear",
    "right_ear",
    "left_shoulder",
    "right_shoulder",
    "left_elbow",
    "right_elbow",
    "left_wrist",
    "right_wrist",
    "left_hip",
    "right_hip",
    "left_knee",
    "right_knee",
    "left_ankle",
    "right_ankle",
)
MIRRORED = np.array([0, *(joint - 1 if joint % 2 == 0 else joint + 1 for joint in range(1, len(JOINTS)))])
"""Joint → its place in a mirror image: left becomes right."""
SIGMAS = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
"""Standard deviation of COCO's annotators at each joint, relative to the square root of the person's area."""
BONES = ((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8), (7, 9), (8, 10))
BONES += ((1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6))
"""Pairs of joints that COCO's skeleton connects."""
