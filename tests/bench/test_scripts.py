"""Every script under bench/ runs, prints what it promises, and claims in docs/results.md what its full run measured."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from importlib import import_module

import pytest

import quick
from autoloss.workers.process_table import has_ended
from output import NOT_RUN, Figure

SCRIPTS = quick.find_scripts()
SMALLEST: Mapping[str, Sequence[str]] = {
    "agreement": ["--trees", "3", "--accepts", "2", "--places", "rows, Kendall's τ"],
    "away": ["--arms", "gate", "ladder"],
    "audit": ["--tasks", "tabular:f1:data=wine", "--evaluations", "2", "--test-seeds", "1"],
    "criterion": [
        "--images",
        "1",
        "--side",
        "16",
        "--items",
        "32",
        "--pairs",
        "2",
        "--losses",
        "gAcc",
        "--backend",
        "aot_eager",
    ],
    "detection": ["--samples", "1", "--steps", "2", "--branches", "rpn_reg"],
    "digits": ["--evaluations", "2", "--workers", "0"],
    "driver": ["--candidates", "20", "--part", "costs"],
    "efficiency": ["--arms", "random", "paper", "--budget", "2", "--level-budget", "2", "--seeds", "1"],
    "faults": ["--only", "races", "--races", "2"],
    "faults_workers": ["--only", "killed_every_twenty", "--killed-evaluations", "3"],
    "faults_trainings": ["--only", "soak", "--children", "5"],
    "faults_ray": ["--only", "workers_and_delays", "--counts", "1", "--evaluations", "1"],
    "hostile": ["--texts", "200"],
    "lag": ["--trainings", "5", "--evaluations", "2", "--steps", "5", "--lags", "1", "--workers", "2"],
    "loading": ["--rounds", "1", "--pictures", "8"],
    "lossbench": ["--tasks", "worst-digit", "--count", "4"],
    "pairs": ["--sets", "modechoice", "--evaluations", "1", "--steps", "5"],
    "rejection": ["--processes", "0", "--compared", "2", "--drawn", "500", "--branches"],
    "report": ["--candidates", "30", "--only", "top"],
    "scenes_voc": ["--epochs", "1", "--scenes", "10", "--metrics", "--processes", "0"],
    "segmentation": ["--metrics", "miou", "--samples", "1", "--steps", "2", "--untrained"],
    "simplify": ["--trees", "5"],
    "sweep": ["--sides", "16", "32", "--classes", "5", "--rows", "32", "--workers", "--repeats", "1"],
}
"""Arguments that make a run smaller still than `--quick` does. A new script runs with `--quick` alone."""

IN_A_PROCESS = {"faults_ray"}
"""Ray reads the environment once, when it is imported."""


@pytest.mark.experiment
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_smallest_run_of_a_script_prints_its_figures(name, capsys):
    arguments = SMALLEST.get(name, ())
    if name in IN_A_PROCESS:
        run = quick.run_script(SCRIPTS[name], 250, arguments)
        assert run.failure == ""
        result = run.result
    else:
        import_module(name).main(["--quick", "--json", *arguments])
        result = json.loads(capsys.readouterr().out)
    assert {"processor", "cores", "date"} <= result["machine"].keys()
    assert NOT_RUN in result or any(_holds(result, figure) for figure in quick.read_figures(name).values())


def _holds(result: Mapping[str, object], figure: Figure) -> bool:
    try:
        return figure.format(result) != "–"
    except KeyError:
        return False


@pytest.mark.parametrize("name", [*SCRIPTS, "quick"])
def test_a_script_says_what_it_does_and_how_small_it_can_be(name, capsys):
    with pytest.raises(SystemExit) as left:
        import_module(name).main(["--help"])
    assert left.value.code == 0
    assert name == "quick" or {"--quick", "--json", "--out"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_page_repeats_the_figures_of_the_full_run(name):
    page, results = quick.read_pages(), quick.read_results(name)
    texts = {label: figure.format(results) for label, figure in quick.read_figures(name).items()}
    assert texts
    assert {label: text for label, text in texts.items() if not quick.is_claimed(text, name, page)} == {}


def test_every_file_is_a_script_or_part_of_one():
    files = [*quick.BENCH.glob("*.py"), *quick.BENCH.glob("*/*.py")]
    trees = {path.stem: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    assert len(trees) == len(files)
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert set(trees) - imported - set(SCRIPTS) == {"quick"}


def test_a_claim_is_a_whole_number_in_a_section_that_names_the_script():
    page = "## A\n`bench/x/one.py` 1.25 and −0.5, 1,000\n## B\n`bench/x/two.py` 7"
    assert quick.is_claimed("1.25", "one", page)
    assert quick.is_claimed("−0.5", "one", page)
    assert not any(quick.is_claimed(text, "one", page) for text in ("1.2", "25", "0.5", "000", "1", "7"))


def test_a_figure_is_found_in_its_row_and_rounded_as_people_do():
    result = {
        "rows": [{"loss": "a", "ratio": 1.0}, {"loss": "b", "ratio": 1.605, "seeds": [1.0, 2.0]}],
        "count": 103_076,
    }
    assert Figure(("rows", {"loss": "b"}, "ratio")).format(result) == "1.61"
    assert Figure(("rows", {"loss": "b"}, "seeds"), digits=1).format(result) == "1.5"
    assert Figure(("rows", {"loss": "a"}, "ratio"), digits=0, percent=True).format(result) == "100 %"
    assert Figure(("count",)).format(result) == "103,076"
    with pytest.raises(KeyError, match="no row with"):
        Figure(("rows", {"loss": "c"}, "ratio")).format(result)


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        ("raise SystemExit('no disk')", "exit code 1: no disk"),
        ("print('hello')", "printed no JSON document"),
        ("import time; time.sleep(60)", "took more than 1 s"),
    ],
)
def test_a_script_that_fails_is_named_with_its_reason(code, failure, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text(code)
    run = quick.run_script(script, 1.0 if "sleep" in code else 60.0)
    assert run.failure == failure
    assert f"FAILED: {failure}" in quick.format_table([run], page="")


def test_a_script_at_its_limit_takes_the_drivers_that_it_started_along(tmp_path):
    script, place = tmp_path / "driver.py", tmp_path / "pid"
    script.write_text(
        "import subprocess, sys, time\nfrom pathlib import Path\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        f"Path({str(place)!r}).write_text(str(child.pid))\ntime.sleep(60)\n"
    )
    assert "took more than" in quick.run_script(script, 2.0).failure
    assert has_ended(int(place.read_text()))
