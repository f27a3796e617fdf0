"""Several runs on one page, score against size, formulas to copy, and the words of the page explained."""

from __future__ import annotations

import re

import pytest

from autoloss.errors import RequestError
from autoloss.report.page.contents import gather_contents, gather_runs
from autoloss.report.page.rendering import page
from autoloss.report.page.writing import write_comparison
from autoloss.run.results import open_run
from autoloss.store.read import read_once
from autoloss.store.run_settings import TaskReference
from tests.report.written import POOLED, begin, compared, searched, tags
from tests.screens import exit_code as run


@pytest.fixture
def runs(tmp_path):
    first = compared(searched(tmp_path / "a"), found=(0.9, 0.91, 0.92), standard=(0.7, 0.72, 0.71))
    return [first, searched(tmp_path / "b", **{"evolution.lag": 2})]


def test_several_runs_stand_beside_each_other(runs, tmp_path, capsys):
    out = tmp_path / "both.html"
    assert run("report", *runs, "--out", out) == 0
    text = out.read_text()
    assert "Wrote" in capsys.readouterr().err
    assert "Yes: #1 beats the best baseline." in text
    assert "0.9100 ±" in text
    assert re.search(r"<code>evolution.lag</code></th><td>4</td><td>2</td>", text)
    assert "different tasks" not in text
    assert not [
        tag
        for tag, attributes in tags(text)
        if "src" in attributes or str(attributes.get("href", "")).startswith("http")
    ]
    # An earlier report is replaced, any other file is not.
    write_comparison(runs, out)
    other = tmp_path / "notes.html"
    other.write_text("mine")
    with pytest.raises(RequestError, match="so it is not replaced"):
        write_comparison(runs, other)


def test_the_lines_of_several_runs_end_where_their_best_do(runs):
    contents = gather_runs([open_run(directory) for directory in runs])
    assert contents.chart is not None
    assert "a ends at 0.9000; b ends at 0.9000" in contents.chart.description
    assert [layer.name for layer in contents.chart.layers] == ["a", "b"]
    assert contents.settings == {"evolution.lag": ("4", "2")}


def test_runs_of_one_name_are_told_apart_and_other_tasks_are_warned_of(tmp_path):
    one = searched(tmp_path / "one" / "run")
    two = searched(tmp_path / "two" / "run", task=TaskReference("digits-seg", {"metric": "bf1"}))
    contents = gather_runs([open_run(one), open_run(two)])
    assert list(contents.runs) == ["one/run", "two/run"]
    assert "different tasks or metrics" in contents.warning
    assert contents.chart is None
    empty = begin(tmp_path / "empty")
    assert gather_runs([open_run(one), open_run(empty)]).runs["empty"].best is None


def test_a_run_is_not_compared_with_itself(runs, capsys):
    assert run("report", runs[0], runs[0]) == 2
    assert "a comparison needs different runs" in capsys.readouterr().err
    assert run("report", *runs, "--scenes") == 2
    assert "--scenes works for one run" in capsys.readouterr().err


def test_the_page_draws_score_against_size(runs):
    contents = gather_contents(read_once(runs[0]))
    chart = contents.by_size
    assert chart is not None
    assert "Score against size of 3 losses. The best rises from" in chart.description
    assert chart.x.label == "size, in operators"
    assert gather_contents(read_once(begin(runs[0].parent / "empty"))).by_size is None


def test_every_formula_can_be_copied_and_every_word_is_explained(runs):
    text = page(gather_contents(read_once(runs[0])))
    copied = [attributes for tag, attributes in tags(text) if "copied" in str(attributes.get("class"))]
    assert len(copied) > 3
    assert f">{POOLED}</code>" in text
    for word in ("candidate", "training seed", "twin, copy", "valid and test split", "factor"):
        assert f"<dt>{word}" in text


def test_narrow_pages_leave_out_the_columns_that_are_least_needed(runs):
    found = tags(page(gather_contents(read_once(runs[0]))))
    minor = [tag for tag, attributes in found if "minor" in str(attributes.get("class")).split()]
    assert minor.count("th") >= 5
    assert minor.count("td") >= minor.count("th")
