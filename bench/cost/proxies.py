"""Cost of the paper's proxy trainings: seconds per step at their own settings, and hours of a training on the real data.

The data are noise with random classes, boxes, masks and joints in the original formats, in images of COCO's size; networks, sizes,
batches, augmentation and readers are those of the proxy (Appendix A). Each task is trained with its standard loss and the
published one, in float32 and in bfloat16; a ratio is to the standard loss in float32. The time of a step includes waiting for
data. Evaluation takes the real validation images at the speed of those here.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import argparse
import io
import itertools
import json
import os
import tempfile
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from PIL import Image

import autoloss
from autoloss import zoo
from autoloss.space.loss import bind
from autoloss.tasks.pose.people import JOINTS
from autoloss.training.loop import Execution
from autoloss.training.training import Scored, Training
from machine import describe_device
from output import Figure, emit, keep_rows, make_parser, parse_arguments

WIDTH, HEIGHT, CLASSES, OBJECTS = 640, 480, 80, 7
"""Size of an image, classes, and objects per image; COCO has 7.3."""
WARM = 4
"""First steps, which compile kernels and start the loaders; they are not timed."""
TASKS: dict[str, tuple[str, int, int, int]] = {
    "voc-seg": ("seg/miou", 9082, 3, 1500),
    "coco-det": ("det", 28322, 1, 5000),
    "coco-ins": ("ins", 28322, 1, 5000),
    "coco-pose": ("pose/oks", 140000, 4, 2500),
}
"""Task → published loss, examples of the real proxy (VOC and SBD without 1,500 images; a quarter of train2017 without 5,000; some
140,000 persons), its epochs, and images of its validation."""
LITTLE: dict[str, dict[str, Any]] = {
    "voc-seg": {"backbone": "resnet18", "side": 32, "batch_size": 4},
    "coco-det": {"backbone": "resnet18", "short_side": 64, "long_side": 96, "batch_size": 2},
    "coco-pose": {"backbone": "resnet18", "height": 64, "width": 64, "batch_size": 4},
}
LITTLE["coco-ins"] = LITTLE["coco-det"]
"""Settings of `--little`, which a processor without a GPU trains in seconds; its figures say that the script works."""

FIGURES = {
    f"{task}: {what}": Figure(("rows", {"name": task, "precision": "float32", "loss": "published"}, key), digits=digits)
    for task in TASKS
    for what, key, digits in (("seconds per step", "seconds_per_step", 3), ("hours per training", "hours", 2))
}


def main(argv: Sequence[str] | None = None) -> None:
    arguments = _arguments(argv)
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        os.environ["AUTOLOSS_CACHE"] = str(Path(place, "cache"))
        for name in arguments.only or TASKS:
            rows += measure(name, Path(place, name), arguments)
    emit(
        {
            "device": describe_device(arguments.device),
            "loaders": arguments.loaders,
            "steps": arguments.steps,
            "little": arguments.little,
            "rows": keep_rows(rows, arguments),
            "seconds": round(time.monotonic() - began, 1),
        },
        arguments,
        _print,
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__, steps=16, valid=32)
    parser.add_argument("--only", nargs="+", choices=list(TASKS), help="these tasks; the other rows of --out are kept")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument(
        "--loaders", type=int, default=max(0, (os.cpu_count() or 1) - 2), help="processes that read images"
    )
    parser.add_argument(
        "--little", action="store_true", help="small networks and images, to try the script without a GPU"
    )
    return parse_arguments(parser, argv, steps=4, valid=2, little=True, loaders=0)


def measure(name: str, place: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Train one task with both losses in each precision."""
    published, examples, epochs, images = TASKS[name]
    options = {**(LITTLE[name] if arguments.little else {}), "warmup_steps": 0, "learning_rate": 1e-4}
    task = get_task(name, place, options, arguments)
    steps = task.steps(Training(seed=0))
    assert steps is not None
    batch = int(task.recipe("proxy")["batch_size"])
    rows: list[dict[str, Any]] = []
    for precision in ("float32", "bfloat16"):
        for label, loss in (("standard", task.standard), ("published", published)):
            found = _train(task, loss, Execution(device=arguments.device, precision=precision), arguments.valid)
            first = rows[0] if rows else found
            rows.append(
                {
                    "name": name,
                    "precision": precision,
                    "loss": label,
                    "batch": batch,
                    **found,
                    "ratio": round(found["seconds_per_step"] / first["seconds_per_step"], 3),
                    "hours": round(
                        (found["seconds_per_step"] * examples * epochs / batch + found["seconds_per_image"] * images)
                        / 3600,
                        3,
                    ),
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def get_task(name: str, place: Path, options: dict[str, Any], arguments: argparse.Namespace) -> Any:
    """Write so much data that a training has the asked steps, and return the task on it."""
    recipe = autoloss.tasks.get(name, data=write(name, place / "few", 8, 4), held_out=2, **options).recipe("proxy")
    examples = int(recipe["epochs"]) * (OBJECTS if name == "coco-pose" else 1)
    train = -(-(arguments.steps + WARM) * int(recipe["batch_size"]) // examples)
    data = write(name, place / "all", train + arguments.valid, 4)
    share = {} if name == "voc-seg" else {"share": 1.0}
    return autoloss.tasks.get(
        name,
        data=data,
        held_out=arguments.valid,
        loaders=arguments.loaders,
        device=arguments.device,
        **share,
        **options,
    )


def _train(task: Any, loss: Any, execution: Execution, images: int) -> dict[str, float]:
    """Return the median time of a step after the first ones, and that of evaluating one image."""
    if execution.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    criterion = bind(zoo.resolve(loss, task.branches)[1], task.branches)
    at: list[float] = []
    outcome = task.train(criterion, Training(seed=0), execution, lambda step, loss: at.append(time.perf_counter()))
    ended = time.perf_counter()
    if not isinstance(outcome, Scored):
        raise SystemExit(f"{task.name} did not train: {outcome}")
    return {
        "seconds_per_step": round(median(later - earlier for earlier, later in itertools.pairwise(at[WARM - 1 :])), 5),
        "seconds_per_image": round((ended - at[-1]) / images, 5),
        "gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 1) if execution.device.startswith("cuda") else 0.0,
    }


def write(name: str, place: Path, train: int, test: int) -> Path:
    """Write a data set of noise in the task's own format."""
    rng = np.random.default_rng(0)
    return _write_voc(place, train, test, rng) if name == "voc-seg" else _write_coco(place, train, test, rng)


def _write_voc(place: Path, train: int, test: int, rng: np.random.Generator) -> Path:
    root = place / "VOCdevkit/VOC2012"
    folders = [root / name for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation")]
    for folder in folders:
        folder.mkdir(parents=True)
    images, masks, lists = folders
    contents = [_draw_jpeg(rng, 500, 375) for _ in range(8)]
    labels = np.kron(rng.integers(21, size=(15, 20), dtype=np.uint8), np.ones((25, 25), np.uint8))
    for split, count in (("train", train), ("val", test)):
        stems = [f"{split}_{number:06d}" for number in range(count)]
        for number, stem in enumerate(stems):
            (images / f"{stem}.jpg").write_bytes(contents[number % len(contents)])
            mask = Image.fromarray(np.roll(labels, number, axis=0), "P")
            mask.putpalette([0, 0, 0] * 256)
            mask.save(masks / f"{stem}.png")
        (lists / f"{split}.txt").write_text("\n".join(stems))
    return place


def _write_coco(place: Path, train: int, test: int, rng: np.random.Generator) -> Path:
    """Write boxes, masks and joints of the same objects."""
    contents = [_draw_jpeg(rng, WIDTH, HEIGHT) for _ in range(8)]
    (place / "annotations").mkdir(parents=True)
    for split, count in (("train2017", train), ("val2017", test)):
        (place / split).mkdir()
        for number in range(1, count + 1):
            (place / split / f"{number:012d}.jpg").write_bytes(contents[number % len(contents)])
        images = [
            {"id": number, "file_name": f"{number:012d}.jpg", "width": WIDTH, "height": HEIGHT}
            for number in range(1, count + 1)
        ]
        objects = [
            _draw_object(rng, image["id"], image["id"] * OBJECTS + k) for image in images for k in range(OBJECTS)
        ]
        kinds = [{"id": number, "name": f"class {number}"} for number in range(1, CLASSES + 1)]
        person = {"id": 1, "name": "person", "keypoints": list(JOINTS), "skeleton": []}
        people = [{**one, "category_id": 1} for one in objects]
        for kind, annotated, categories in (("instances", objects, kinds), ("person_keypoints", people, [person])):
            content = {"images": images, "annotations": annotated, "categories": categories}
            (place / "annotations" / f"{kind}_{split}.json").write_text(json.dumps(content))
    return place


def _draw_object(rng: np.random.Generator, image: int, identity: int) -> dict[str, Any]:
    width, height = (int(side) for side in rng.integers(24, 240, 2))
    left, top = int(rng.integers(WIDTH - width)), int(rng.integers(HEIGHT - height))
    corners = [left, top, left + width, top, left + width, top + height, left, top + height]
    joints = rng.uniform((left, top), (left + width, top + height), (len(JOINTS), 2)).round(1)
    return {
        "id": identity,
        "image_id": image,
        "category_id": int(rng.integers(1, CLASSES + 1)),
        "bbox": [left, top, width, height],
        "area": width * height,
        "iscrowd": 0,
        "segmentation": [corners],
        "num_keypoints": len(JOINTS),
        "keypoints": [value for x, y in joints.tolist() for value in (x, y, 2)],
    }


def _draw_jpeg(rng: np.random.Generator, width: int, height: int) -> bytes:
    coarse = Image.fromarray(rng.integers(256, size=(height // 20, width // 20, 3), dtype=np.uint8))
    file = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG")
    return file.getvalue()


def _print(result: dict[str, Any]) -> None:
    small = ", little networks and images" if result["little"] else ""
    print(f"Proxy trainings on {result['device']}, {result['loaders']} loaders{small}")
    print(
        f"{'task':<11}{'precision':<10}{'loss':<11}{'batch':>6}{'s/step':>9}{'ratio':>7}{'s/image':>9}{'GB':>6}{'hours':>8}"
    )
    for row in result["rows"]:
        print(
            f"{row['name']:<11}{row['precision']:<10}{row['loss']:<11}{row['batch']:>6}{row['seconds_per_step']:>9.4f}"
            f"{row['ratio']:>7.2f}{row['seconds_per_image']:>9.4f}{row['gigabytes']:>6.1f}{row['hours']:>8.3f}"
        )


if __name__ == "__main__":
    main()
