"""A run whose data have moved goes on with them where they are now."""

from __future__ import annotations

import random
from pathlib import Path

import autoloss
from tests.run.quick import SETTINGS
from tests.screens import refusal, run

QUICK = {**SETTINGS, "rejection.engine": "reference", "rejection.threshold": 0.01}


def write(path: Path, seed: int) -> Path:
    draw = random.Random(seed)
    rows = [(draw.random(), draw.random()) for _ in range(90)]
    path.write_text("a,b,y\n" + "".join(f"{a},{b},{'no' if a < b else 'yes'}\n" for a, b in rows))
    return path


def test_a_run_goes_on_with_data_that_moved(tmp_path: Path):
    data, directory = write(tmp_path / "data.csv", 0), tmp_path / "run"
    options = {"data": str(data), "target": "y", "steps": 4}
    autoloss.search(
        "tabular", options=options, evaluations=2, workers=0, final=False, settings=QUICK, directory=directory
    )
    moved = data.rename(tmp_path / "elsewhere.csv")
    said = refusal("compare", directory, "--seeds", 2, "--workers", 0)
    assert f"not at {data} any more" in said
    assert f"autoloss resume {directory} --data PATH" in said
    words = ["--data", moved, "--evaluations", "+1", "--no-final", "--workers", 0]
    code, said, _ = run("resume", directory, *words)
    assert code == 0
    assert "3 of 3" in said
    assert "The task has changed" not in said
    # What follows finds them there.
    assert run("compare", directory, "--seeds", 2, "--workers", 0)[0] == 0
    other = write(tmp_path / "other.csv", 1)
    code, said, _ = run("resume", directory, "--data", other, *words[2:])
    assert code == 0
    assert "The task has changed" in said
    assert "the test data differ" in said


def test_a_task_without_such_an_option_has_no_data_that_move(tmp_path: Path):
    autoloss.search(
        "digits-seg",
        options={"train": 32, "valid": 8, "test": 8, "epochs": 1},
        evaluations=1,
        workers=0,
        final=False,
        settings=QUICK,
        directory=tmp_path / "run",
    )
    assert "has no option data" in refusal("resume", tmp_path / "run", "--data", "here")
