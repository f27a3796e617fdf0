"""OKS by its formula, the protocol's metric, suppression, and AP equal to pycocotools' on generated data."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autoloss.tasks.pose.data.coco import load_keypoints, to_people
from autoloss.tasks.pose.heatmaps import draw_heatmaps
from autoloss.tasks.pose.metrics import METRICS, Poses, evaluate_poses, share_of_thresholds, similarity, suppress
from autoloss.tasks.pose.people import JOINTS, People
from tests.tasks.pose.drawn import draw_evaluation

# As cocodataset.org states them.
SIGMAS = [
    0.026,
    0.025,
    0.025,
    0.035,
    0.035,
    0.079,
    0.079,
    0.072,
    0.072,
    0.062,
    0.062,
    0.107,
    0.107,
    0.087,
    0.087,
    0.089,
]
SIGMAS += [0.089]


def test_similarity_is_cocos_formula():
    rng = np.random.default_rng(0)
    joints, others = rng.uniform(0, 50, (2, 17, 2))
    others = joints + (others - joints) / 10
    counts = np.arange(17) % 3 > 0
    terms = [
        math.exp(-((joints[k] - others[k]) ** 2).sum() / (2 * 900.0 * (2 * SIGMAS[k]) ** 2))
        for k in range(17)
        if counts[k]
    ]
    assert float(similarity(joints, others, counts, np.array(900.0))) == pytest.approx(sum(terms) / len(terms))
    assert math.isnan(similarity(joints, others, np.zeros(17, bool), np.array(900.0)))


def context_of(joints: torch.Tensor, labelled: torch.Tensor, area: float) -> dict[str, torch.Tensor]:
    target = draw_heatmaps(joints, labelled, (64, 48), 2.0)
    return {"target": target, "labelled": labelled, "joints": joints, "area": torch.full((len(joints),), area)}


def test_the_protocols_metric_is_the_share_of_thresholds_of_each_person():
    generator = torch.Generator().manual_seed(0)
    # At the centres of cells decoding is exact.
    joints = torch.randint(5, 40, (3, 17, 2), generator=generator) + 0.5
    labelled = torch.rand(3, 17, generator=generator) < 0.8
    context = context_of(joints, labelled, 400.0)
    assert share_of_thresholds(context["target"], context) == 1.0
    moved = joints.clone()
    moved[1, :, 0] += 1
    shares = []
    for person in range(3):
        e = [
            math.exp(-float(((moved - joints)[person, k] ** 2).sum()) / (2 * 400 * (2 * SIGMAS[k]) ** 2))
            for k in range(17)
            if labelled[person, k]
        ]
        shares.append(sum(sum(e) / len(e) >= 0.5 + step * 0.05 - 1e-12 for step in range(10)) / 10)
    heatmaps = draw_heatmaps(moved, torch.ones_like(labelled), (64, 48), 2.0)
    assert 0 < shares[1] < 1
    assert share_of_thresholds(heatmaps, context) == pytest.approx(sum(shares) / 3)


def test_the_protocols_metric_skips_persons_without_joints_and_is_undefined_without_any():
    joints = torch.full((2, 17, 2), 9.5)
    labelled = torch.ones(2, 17, dtype=torch.bool)
    labelled[1] = False
    context = context_of(joints, labelled, 400.0)
    assert share_of_thresholds(context["target"], context) == 1.0
    nobody = {**context, "labelled": torch.zeros(2, 17, dtype=torch.bool)}
    assert math.isnan(share_of_thresholds(context["target"], nobody))


def test_suppression_keeps_the_better_of_two_alike_and_both_of_two_that_differ():
    pose = np.random.default_rng(0).uniform(0, 40, (17, 2))
    poses = Poses(np.stack([pose, pose + 0.1, pose + 30]), np.array([0.4, 0.9, 0.1]), np.full(3, 1600.0))
    kept = suppress(poses, 0.9)
    assert kept.scores.tolist() == [0.9, 0.1]
    assert suppress(poses, 1.0).scores.tolist() == [0.9, 0.4, 0.1]
    nothing = suppress(Poses(np.zeros((0, 17, 2)), np.zeros(0), np.zeros(0)), 0.9)
    assert nothing.joints.shape == (0, 17, 2)


def read(folder: Path, dataset: dict) -> list[People]:
    """Read the data set as the task does."""
    (folder / "annotations").mkdir(parents=True)
    for image in dataset["images"]:
        image["file_name"] = f"{image['id']}.png"
    category = {"id": 1, "name": "person", "keypoints": list(JOINTS)}
    file = folder / "annotations" / "person_keypoints_val2017.json"
    file.write_text(json.dumps({**dataset, "categories": [category]}))
    return list(to_people(load_keypoints(folder, "val2017")[0]).people)


@pytest.mark.parametrize("seed", range(4))
def test_ap_is_that_of_pycocotools(seed, tmp_path):
    coco, cocoeval = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    dataset, results = draw_evaluation(seed)
    people = read(tmp_path, dataset)
    poses = []
    for image in dataset["images"]:
        own = [row for row in results if row["image_id"] == image["id"]]
        joints = np.array([row["keypoints"] for row in own]).reshape(-1, 17, 3)[..., :2] + 0.5
        poses.append(Poses(joints, np.array([row["score"] for row in own]), np.ones(len(own))))
    found = evaluate_poses(poses, people)
    with contextlib.redirect_stdout(io.StringIO()):
        truth = coco.COCO()
        truth.dataset = dataset
        truth.createIndex()
        evaluation = cocoeval.COCOeval(truth, truth.loadRes(results), "keypoints")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    expected = dict(zip(("map", "ap50", "ap75", "map_medium", "map_large", "mar"), evaluation.stats[:6], strict=True))
    assert 0.05 < expected["map"] < 0.95
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-6)


def perfect(people: People, score: float = 1.0) -> Poses:
    return Poses(people.joints, np.full(len(people.joints), score), np.ones(len(people.joints)))


def persons(count: int, area: float = 2000.0, seed: int = 0) -> People:
    rng = np.random.default_rng(seed)
    boxes = np.tile([0.0, 0.0, 60.0, 60.0], (count, 1))
    joints = rng.integers(0, 60, (count, 17, 2)) + 0.5
    return People(boxes, joints, np.full((count, 17), 2, np.int8), np.full(count, area), np.zeros(count, bool))


def nothing() -> Poses:
    return Poses(np.zeros((0, 17, 2)), np.zeros(0), np.zeros(0))


def test_perfect_poses_have_ap_1_and_no_poses_ap_0():
    people = [persons(2, seed=1), persons(0), persons(1, seed=2)]
    figures = evaluate_poses([perfect(each) for each in people], people)
    assert set(figures) == set(METRICS)
    assert {figures[name] for name in METRICS if name != "map_large"} == {1.0}
    assert math.isnan(figures["map_large"])
    figures = evaluate_poses([nothing() for _ in people], people)
    assert (figures["map"], figures["mar"], figures["oks"]) == (0, 0, 0)


def test_without_persons_nothing_is_defined():
    empty = persons(0)
    assert all(math.isnan(value) for value in evaluate_poses([nothing()], [empty]).values())
    assert math.isnan(evaluate_poses([perfect(persons(1))], [empty])["map"])
    unlabelled = persons(1)
    unlabelled.visibility[:] = 0
    assert math.isnan(evaluate_poses([perfect(unlabelled)], [unlabelled])["map"])


def test_a_pose_that_matches_nobody_costs_precision_only_where_it_ranks_before():
    people = [persons(1)]
    wrong = persons(1, seed=9).joints + 500
    for score, expected in ((0.1, 1.0), (0.9, 0.5)):
        poses = Poses(np.concatenate([people[0].joints, wrong]), np.array([0.5, score]), np.ones(2))
        assert evaluate_poses([poses], people)["map"] == pytest.approx(expected)


def test_images_need_not_be_readable_to_be_evaluated(tmp_path):
    dataset, _ = draw_evaluation(0)
    assert not list(tmp_path.rglob("*.png"))
    assert len(read(tmp_path / "folder", dataset)) == 12
    Image.new("RGB", (2, 2)).save(tmp_path / "one.png")
