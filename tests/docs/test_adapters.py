"""Every recipe of docs/adapters.md runs with the real packages: tasks are trained whole and short, and take a found loss back."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autoloss import zoo
from autoloss.formulas.python_file import to_python
from autoloss.space.form import BranchForm

PAGE = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
NEEDED = {
    "lightning": "lightning",
    "huggingface": "transformers",
    "monai": "monai",
    "smp": "segmentation_models_pytorch",
    "torchvision": "torchvision",
}
MOST_LINES = 10

DRIVER = """
import importlib, json, runpy, sys, traceback
sys.path.insert(0, ".")
found = {}
for name, file in json.loads(sys.argv[1]):
    try:
        names = vars(importlib.import_module(file)) if file.startswith("with_") else runpy.run_path(f"{file}.py")
        if "task" in names:
            import autoloss
            task = names["task"]
            criterion = autoloss.bind(autoloss.Loss("-y * log(p)"), task.branches)
            samples = task.samples(2, seed=0)["main"]
            whole, again, short, slow = (
                task.train(criterion, autoloss.Training(seed=2**62, **others))
                for others in ({}, {}, {"fidelity": 0.25}, {"learning_rate": 1e-6})
            )
            wrong = task.train(autoloss.bind(autoloss.Loss("exp(exp(exp(p + y + 1)))"), task.branches), autoloss.Training(seed=1))
            found[name] = {
                "score": whole.score, "repeats": whole == again, "diverged": type(wrong).__name__,
                "steps": [len(whole.curve), len(short.curve)], "shapes": [list(one.prediction.shape) for one in samples],
                "tuned": whole.curve != slow.curve,
            }
        else:
            found[name] = {}
    except BaseException:
        found[name] = {"error": traceback.format_exc()}
print("\\n" + json.dumps(found))
"""


def run_blocks(folder: Path) -> dict[str, dict]:
    """Run all blocks in a process of their own: the packages bring loggers, warnings and signal handlers along."""
    text = to_python(zoo.get("seg/miou"), {"main": BranchForm()}, title="Found loss", facts={})
    (folder / "found_loss.py").write_text(text, encoding="utf-8")
    jobs = []
    for name, block in EXAMPLES.items():
        if importlib.util.find_spec(NEEDED[name.split("_")[0]]) is None:
            continue
        file = found[1] if (found := re.match(r"# (with_\w+)\.py\n", block)) else f"example_{name}"
        (folder / f"{file}.py").write_text(block, encoding="utf-8")
        jobs.append((name, file))
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(jobs)],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_library_has_a_way_in_and_a_way_back():
    assert {name for name in EXAMPLES if "_" not in name} == set(NEEDED)
    assert {f"{name}_back" for name in NEEDED if name != "smp"} <= set(EXAMPLES)


@pytest.mark.parametrize("name", NEEDED)
def test_an_adapter_is_short(name):
    lines = [line for line in EXAMPLES[name].partition("# the adapter\n")[2].splitlines() if line.strip()]
    assert 0 < len(lines) <= MOST_LINES


def test_the_blocks_run(tmp_path: Path, subtests: pytest.Subtests):
    outcomes = run_blocks(tmp_path)
    for name, found in outcomes.items():
        with subtests.test(name):
            assert "error" not in found, found["error"]
            if "task = " in EXAMPLES[name]:
                whole, short = found["steps"]
                assert found["repeats"]
                assert found["tuned"]
                assert found["diverged"] == "Diverged"
                assert 1 <= short <= whole / 2
                assert 0 <= found["score"] <= 1
    if "monai" in outcomes:
        # A volume is a sample of its own.
        assert outcomes["monai"]["shapes"] == [[1, 2, 16, 16, 16]] * 2
