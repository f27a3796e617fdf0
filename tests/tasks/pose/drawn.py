"""Persons, detections and files of persons that tests draw at random or write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from autoloss.tasks.pose.data.coco import write_people
from autoloss.tasks.pose.figures import compose_figures
from autoloss.tasks.pose.people import PeopleImages

SIDE = 96


def draw_people(split: str, count: int, seed: int = 0) -> PeopleImages:
    return compose_figures(split, count, seed, SIDE, (40, 80))


def write_folder(directory: Path, train: int = 8, val: int = 4) -> Path:
    """Write figures as COCO's folder of keypoints, with a file of detections beside it: the boxes of val2017, one of them twice."""
    for split, name, count in (("train", "train2017", train), ("test", "val2017", val)):
        write_people(draw_people(split, count), directory, name)
    rows = content(directory)["annotations"]
    detections = [detection(row["image_id"], row["bbox"], 0.5 + row["id"] / 1000) for row in [*rows, rows[0]]]
    (directory / "detections.json").write_text(json.dumps(detections))
    return directory


def detection(image: int, bbox: list[float], score: float, **more: Any) -> dict[str, Any]:
    return {"image_id": image, "category_id": 1, "bbox": bbox, "score": score, **more}


def content(directory: Path, split: str = "val2017") -> dict[str, Any]:
    return json.loads((directory / "annotations" / f"person_keypoints_{split}.json").read_text())


def change(directory: Path, edit: Callable[[dict[str, Any]], object], split: str = "val2017") -> Path:
    values = content(directory, split)
    edit(values)
    (directory / "annotations" / f"person_keypoints_{split}.json").write_text(json.dumps(values))
    return directory


def draw_evaluation(seed: int, images: int = 12) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draw a data set and results in COCO's format: hidden and unlabelled joints, crowds, images without persons or results."""
    rng = np.random.default_rng(seed)
    annotations: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image in range(1, images + 1):
        persons = 0 if image % 6 == 0 else int(rng.integers(1, 5))
        for _ in range(persons):
            side = float(rng.choice([20, 60, 150]))
            left, top = rng.uniform(0, 300, 2)
            joints = rng.uniform(0, side, (17, 2)) + np.array([left, top])
            crowd, empty = rng.random() < 0.12, rng.random() < 0.15
            seen = np.zeros(17, int) if crowd or empty else rng.integers(0, 3, 17)
            places = np.where(seen[:, None] > 0, joints.round(), 0)
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": 1,
                    "bbox": [round(left), round(top), side, side],
                    "area": side**2 * float(rng.uniform(0.3, 0.9)),
                    "iscrowd": int(crowd),
                    "num_keypoints": int((seen > 0).sum()),
                    "keypoints": np.column_stack([places, seen]).reshape(-1).tolist(),
                }
            )
            for _ in range(0 if image % 5 == 0 else int(rng.integers(0, 4))):
                found = joints + rng.normal(0, rng.choice([0.01, 0.02, 0.06, 0.3]) * side, (17, 2))
                results.append(result(image, found, float(rng.choice([0.2, 0.5, rng.random()]))))
        # Some match nobody.
        for _ in range(int(rng.integers(0, 3))):
            results.append(result(image, rng.uniform(0, 300, (17, 2)), float(0.6 * rng.random())))
    # More than COCO counts on one image.
    results += [result(1, rng.uniform(0, 300, (17, 2)), float(0.4 * rng.random())) for _ in range(25)]
    listed = [{"id": image, "width": 640, "height": 640} for image in range(1, images + 1)]
    return {"images": listed, "annotations": annotations, "categories": [{"id": 1, "name": "person"}]}, results


def result(image: int, joints: np.ndarray, score: float) -> dict[str, Any]:
    numbers = np.column_stack([joints, np.ones(len(joints))]).reshape(-1).tolist()
    return {"image_id": image, "category_id": 1, "keypoints": numbers, "score": score}
