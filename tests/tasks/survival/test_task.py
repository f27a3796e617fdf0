"""The task `survival`: its data, what bad input gets, and a search from a CSV file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import autoloss
from autoloss.errors import RequestError
from autoloss.space.pairs import PairBranch
from autoloss.tasks.survival import BUNDLED
from autoloss.training.training import Scored, Training
from autoloss.zoo import resolve
from tests.screens import run
from tests.tasks import conformance


def write(path: Path, rows: int = 80, **columns: object) -> Path:
    rng = np.random.default_rng(0)
    age = rng.normal(size=rows)
    times = np.ceil(10 * rng.exponential(np.exp(-age)))
    found = {
        "age": age,
        "kind": rng.choice(["a", "b"], rows),
        "days": times,
        "died": rng.integers(0, 2, rows),
    } | columns
    lines = [",".join(found)] + [",".join(map(str, row)) for row in zip(*found.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def get(path: Path, metric: str = "c_index", **options: object):
    given = {"time": "days", "event": "died", "steps": 20, "batch_size": 16, "rows_per_sample": 24, **options}
    return autoloss.tasks.get("survival", metric, data=str(path), **given)


def test_what_is_read_is_said(tmp_path: Path):
    ages = ["", *range(79)]
    read = get(write(tmp_path / "table.csv", age=ages), missing="drop").choices()[0]
    assert read.startswith(
        "Read table.csv: 79 rows, without 1 that lack a value. Time days, event died. Inputs: age (number"
    )
    assert read.endswith("kind (2 categories).")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return get(write(tmp_path_factory.mktemp("data") / "table.csv"))


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim, task):
    claim(task)


@pytest.mark.parametrize("metric", ["uno_c", "time_auc"])
def test_a_metric_with_weights_gives_pairs_their_weight(tmp_path: Path, metric: str):
    task = get(write(tmp_path / "table.csv"), metric)
    branch = task.branches["main"]
    assert isinstance(branch, PairBranch)
    assert "w" in branch.leaves_and_roles
    assert float(task.samples(1, 0)["main"][0].context["pair_weight"].min()) >= 0
    for loss in ("baseline/cox", "baseline/lambdarank", "baseline/ranknet"):
        losses = resolve(loss, task.branches)[1]
        assert isinstance(task.train(autoloss.bind(losses, task.branches), Training(seed=0)), Scored)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_tables(name: str):
    pytest.importorskip("lifelines")
    task = autoloss.tasks.get("survival", data=name, steps=2, batch_size=16)
    assert 0.2 < task.untrained(0) < 0.8
    assert task.splits == ("valid", "test")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"died": np.zeros(80, int)}, {}, "0 events"),
        ({"days": np.ones(80), "died": np.ones(80, int)}, {}, "No time in column 'days' is later"),
        ({"days": np.ones(80)}, {}, "No time in column 'days' is later"),
        ({}, {"pairs": 10**12}, "at most 4194304"),
        ({"days": [*range(79), -1]}, {}, "Line 81, column 'days': -1 is below the minimum 0"),
        ({"died": np.full(80, 2)}, {}, "expected 1 or true where the event was observed"),
        ({"died": ["yes", "no"] * 40}, {}, "Line 2, column 'died': 'yes'; expected 1 or true"),
        ({"days": [9, 9, 9, *[5] * 75, 10, 11], "died": [1] * 3 + [0] * 77}, {}, "in the .* split"),
        ({"days": [*range(79), ""]}, {}, "drops their rows; or correct the file.$"),
        ({"days": ["soon"] * 80}, {}, "text"),
        ({}, {"event": ""}, "Give event=<one of age, kind, days, died>"),
        ({}, {"time": "years"}, "years"),
        ({}, {"time": "died"}, "named twice: time=died, event=died"),
        ({}, {"data": "rosi"}, "rossi"),
        ({}, {"data": "rossi"}, "leave out"),
    ],
)
def test_bad_input_is_refused_with_a_reason(tmp_path: Path, columns, options, message: str):
    path = write(tmp_path / "table.csv", **columns)
    with pytest.raises(RequestError, match=message):
        get(path, **options) if "data" not in options else autoloss.tasks.get(
            "survival", time="days", event="died", **options
        )


def test_events_may_be_true_or_false(tmp_path: Path):
    numbers = np.arange(80) % 3 > 0
    tasks = [get(write(tmp_path / "table.csv", died=died)) for died in (numbers.astype(int), numbers)]
    one, other = (task.samples(1, 0)["main"][0].context["target"] for task in tasks)
    assert torch.equal(one, other)


def test_scores_that_are_no_numbers_end_a_training(task):
    criterion = {"main": lambda prediction, context: (prediction.sum() - prediction.detach().sum()).sqrt()}
    assert not isinstance(task.train(criterion, Training(seed=0)), Scored)


def test_more_pairs_than_the_limit_are_drawn(tmp_path: Path):
    task = get(write(tmp_path / "table.csv"), pairs=30)
    sample = task.samples(1, 0)["main"][0]
    assert 0 < len(sample.context["first"]) <= 30
    assert torch.equal(sample.context["first"], task.samples(1, 0)["main"][0].context["first"])


def test_a_search_from_a_csv_file_gives_a_report_and_a_module(tmp_path: Path):
    path, out = write(tmp_path / "table.csv"), tmp_path / "run"
    options = ["time=days", "event=died", "steps=10", "batch_size=16", "rows_per_sample=24"]
    settings = ["rejection.steps=20", "ladder.share=0", "final.confirm=0", "final.compare=0", "evolution.initial=2"]
    sets = [part for one in options + settings for part in ("--set", one)]
    code, _, said = run("search", "survival", "--data", path, *sets, "--evaluations", 3, "--workers", 0, "--out", out)
    assert code == 0, said
    code, text, said = run("export", out)
    assert (code, "scores: Tensor, target: Tensor, events: Tensor" in text) == (0, True), said
    code, _, said = run("report", out, "--out", tmp_path / "page.html")
    assert code == 0, said
    assert "difference of the scores of a pair" in (tmp_path / "page.html").read_text(encoding="utf-8")
