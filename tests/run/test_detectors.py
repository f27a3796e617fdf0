"""A detector's search and retraining from end to end: four losses at once, kept, killed, gone on with, and a table."""

from __future__ import annotations

from pathlib import Path

import pytest

import autoloss
from autoloss import recipes
from autoloss.comparison.retrain import FILE, Pace
from autoloss.report.trainings import to_markdown
from autoloss.run.results import open_run
from autoloss.run.retraining import asked, retrain
from autoloss.store.run_settings import TaskReference
from autoloss.store.store import Store
from autoloss.training.checkpoints import NETWORK, list_checkpoints

pytest.importorskip("autoloss.tasks.detection.task")

OPTIONS = {"train": 8, "valid": 2, "test": 2, "epochs": 1, "batch_size": 4, "size": 64}
ANYTHING_PASSES = {"rejection.threshold": -9.0, "rejection.steps": 2, "rejection.samples": 1, "evolution.initial": 1}


class Killed(BaseException):
    """Stands in for a kill: nothing may catch it."""


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("detectors") / "run"
    autoloss.search(
        "digits-det",
        metric="ap50",
        evaluations=1,
        workers=0,
        directory=path,
        options=OPTIONS,
        settings=ANYTHING_PASSES,
        final=False,
    )
    return path


def test_four_losses_are_found_at_once_and_the_run_knows_where_trainings_begin(run):
    found = open_run(run)
    assert list(found.best.loss) == ["rpn_cls", "rpn_reg", "rcnn_cls", "rcnn_reg"]
    assert found.never_trained.untrained is not None
    assert 0 <= found.never_trained.untrained < 0.1


def test_a_retrained_detector_killed_midway_goes_on_to_the_same_table(run, tmp_path):
    def kill(pace: Pace) -> None:
        if pace.step == 2:
            raise Killed

    given = {"against": [], "training_seeds": 2, "precision": "bfloat16"}
    whole = retrain(run, out=tmp_path / "whole", **given)
    with pytest.raises(Killed):
        retrain(run, out=tmp_path / "killed", checkpoint_seconds=0, observe=kill, **given)
    assert list_checkpoints(next((tmp_path / "killed").glob("*/seed-1")))
    again = retrain(run, out=tmp_path / "killed", **given)
    assert [row.outcomes for row in again.rows] == [row.outcomes for row in whole.rows]
    with Store(tmp_path / "killed", file=FILE) as store:
        assert len(store.trainings()) == len(list((tmp_path / "killed").rglob(NETWORK))) == 2
    assert whole.metric == "ap50"
    assert {"map", "voc07"} < set(whole.figures)
    assert "| loss | seeds | ap50 |" in to_markdown(whole)


def test_the_papers_detectors_stand_beside():
    run = TaskReference("coco-det", {"metric": "map", "share": "0.1"})
    name, published = asked(run, "coco-r101-faster-rcnn", {"data": "coco"})
    options = {"metric": "map", "share": "0.1", **recipes.get("coco-r101-faster-rcnn").options, "data": "coco"}
    assert name == TaskReference("coco-det", options)
    assert [(row.loss, row.figures["map"]) for row in published] == [("CE + L1 + CE + IoU", 39.7), ("found", 39.9)]
