"""The table of losses and the shared trainings survive a stop: what is kept is not done again, and the rest comes out the same."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import audit
import autoloss
import lossbench
import sharing
from autoloss.comparison.entrant import Entrant
from autoloss.errors import RequestError
from autoloss.run.results import Search
from efficiency import add_earlier
from losstable import LossRow, append_row, read_rows, write_table
from output import make_pool
from problems import PROBLEMS
from quick import BENCH
from reaching import compare_arms, find_reaching, find_score, summarise_task
from searches import EVOLUTION, searched
from sharing import FRESH, Cache, Improvement, OutOfTime, Trace, run_search

pytestmark = pytest.mark.experiment

TASK = "tabular-f1"
COUNT = 15
"""Losses of a table: the known ones, and a few that are drawn."""
ROW = LossRow(
    task=TASK,
    number=3,
    kind="mutated",
    parent=1,
    attempts=2,
    formula="neg(mul(y, log(p)))",
    factor=0.25,
    learning_rate=3.0,
    signature=("1.0e+00", "-2.0e-01"),
    g=0.75,
    gains=(0.5, 1.0),
    size=3,
    eighth_1=0.25,
    quarter_1=0.5,
    whole_1=0.75,
    whole_2=0.0,
    seconds_eighth=0.125,
    seconds_quarter=0.25,
    seconds_whole=1.0,
)
SETTINGS = {
    "evaluations": 4,
    "evolution.initial": 2,
    "search.scale": True,
    "rejection.engine": "reference",
    "rejection.steps": 20,
    "rejection.threshold": 0.01,
}


def test_a_row_is_read_as_it_was_written(tmp_path):
    other = dataclasses.replace(ROW, number=1, parent=None, whole_1=2 / 3)
    for row in (ROW, other):
        append_row(tmp_path / "rows.csv", row)
    assert read_rows(tmp_path / "rows.csv") == [other, ROW]
    write_table(tmp_path / "rows.csv.gz", [other, ROW])
    assert read_rows(tmp_path / "rows.csv.gz") == [other, ROW]


def test_a_row_that_a_kill_cut_off_is_left_out_and_written_over(tmp_path):
    path = tmp_path / "rows.csv"
    for number in (1, 2):
        append_row(path, dataclasses.replace(ROW, number=number))
    path.write_bytes(path.read_bytes()[:-30])
    assert [row.number for row in read_rows(path)] == [1]
    append_row(path, ROW)
    assert [row.number for row in read_rows(path)] == [1, 3]


def test_an_interrupted_table_has_the_rows_of_an_undisturbed_one(monkeypatch):
    monkeypatch.setattr(lossbench, "find_rate", lambda task, quick: 3.0)
    whole: dict[int, LossRow] = {}
    with make_pool(0) as pool:
        rows = list(lossbench.extend_table(TASK, whole, COUNT, True, pool, 0, None))
        kept = {number: row for number, row in whole.items() if number not in (3, 12, 14)}
        again = list(lossbench.extend_table(TASK, kept, COUNT, True, pool, 0, None))
    assert sorted(row.number for row in rows) == list(range(COUNT))
    assert sorted(row.number for row in again) == [3, 12, 14]
    assert {"given", "fresh"} < {row.kind for row in rows}
    assert len({row.signature for row in rows}) == COUNT
    assert [_timeless(kept[number]) for number in range(COUNT)] == [_timeless(whole[number]) for number in range(COUNT)]


def test_an_error_ends_a_pool_before_what_has_not_begun():
    begun: list[int] = []
    unblocked = threading.Event()

    def fail(number: int) -> None:
        begun.append(number)
        raise ValueError(number)

    def run() -> None:
        with make_pool(0) as pool:
            first = pool.submit(fail, 0)
            pool.submit(unblocked.wait, 60)
            for number in range(1, 20):
                pool.submit(fail, number)
            threading.Timer(0.1, unblocked.set).start()
            first.result()

    with pytest.raises(ValueError, match="0"):
        run()
    assert begun == [0]


def test_the_processes_of_a_script_that_is_killed_end():
    code = (
        "import os, time, output\n"
        "if __name__ == '__main__':\n"
        "    with output.make_pool(1) as pool:\n"
        "        print(pool.submit(os.getpid).result(), flush=True)\n"
        "        time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(BENCH / "shared")}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        with subprocess.Popen([sys.executable, script.name], stdout=subprocess.PIPE, env=environment) as killed:
            assert killed.stdout is not None
            child = int(killed.stdout.readline())
            killed.kill()
    end = time.monotonic() + 20
    while Path(f"/proc/{child}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{child}").exists()


def _timeless(row: LossRow) -> LossRow:
    return dataclasses.replace(row, seconds_eighth=0.0, seconds_quarter=0.0, seconds_whole=0.0)


def test_a_search_that_is_stopped_goes_on_without_training_anything_twice(tmp_path, monkeypatch):
    trained: list[object] = []
    task = PROBLEMS[TASK](True)
    train = type(task).train

    def count(self, criterion, training, *rest, **more):
        trained.append(training)
        return train(self, criterion, training, *rest, **more)

    monkeypatch.setattr(type(task), "train", count)
    undisturbed = run_search(task, SETTINGS, 0, Cache(tmp_path / "one.sqlite", TASK))
    needed = len(trained)
    assert undisturbed.equivalents == 4
    assert any(training.seed in FRESH for training in trained)

    cache = Cache(tmp_path / "two.sqlite", TASK)
    with pytest.raises(OutOfTime):
        run_search(task, SETTINGS, 0, cache, end=0.0)
    assert len(trained) == needed
    run_search(task, {**SETTINGS, "evaluations": 2}, 0, cache)
    found = run_search(task, SETTINGS, 0, cache)
    # The losses that were ahead within the shorter budget only are confirmed as well.
    assert len(trained) <= 2 * needed + len(FRESH) * 2
    assert _without_minutes(found) == _without_minutes(undisturbed)
    before = len(trained)
    assert run_search(task, SETTINGS, 0, cache) == found
    run_search(task, {**SETTINGS, "evolution.lag": 3}, 0, cache)
    assert len(trained) - before < needed


def test_a_process_that_opens_the_cache_waits_for_one_that_makes_it(tmp_path):
    path = tmp_path / "trainings.sqlite"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        waiting = threading.Timer(0.2, other.execute, ["COMMIT"])
        waiting.start()
        cache = Cache(path, TASK)
        waiting.join()
    assert cache.find_search(0, "") is None


def _without_minutes(trace: Trace) -> Trace:
    improvements = tuple(dataclasses.replace(each, minutes=0.0) for each in trace.improvements)
    return dataclasses.replace(trace, minutes=0.0, improvements=improvements)


def _trace(*steps: tuple[float, float | None], end: float = 10.0) -> Trace:
    improvements = tuple(Improvement(spent, spent / 2, "loss", 0.5, score) for spent, score in steps)
    return Trace(end, end / 2, 12, 10, improvements)


def test_a_level_is_reached_by_the_first_loss_that_is_confirmed_there():
    trace = _trace((1, 0.2), (2, None), (4, 0.7), (6, 0.9))
    reached = find_reaching(trace, 0.6, 10)
    assert reached is not None
    assert reached.equivalents == 4
    assert find_reaching(trace, 0.6, 3) is None
    assert [find_score(trace, spent, 0.05) for spent in (0.5, 1, 3, 10)] == [0.05, 0.2, 0.05, 0.9]


def test_a_search_that_does_not_reach_a_level_counts_with_its_budget():
    traces = {
        "random": {0: _trace((1, 0.5)), 1: _trace((1, 0.7))},
        "paper": {0: _trace((8, 0.8)), 1: _trace((1, 0.1))},
        "all": {0: _trace((2, 0.8)), 1: _trace((1, 0.7))},
    }
    one = summarise_task("a", traces, {"score": 0.75, "untrained": None}, 10, 10)
    assert one["levels"] == {"random": 0.6, "tuned": 0.75}
    paper = next(row for row in one["arms"] if row["arm"] == "paper")["to"][0]
    assert (paper["reached"], paper["equivalents"]["values"], paper["minutes"]["values"]) == (1, [8, 10], [4, 5])
    ratio = compare_arms([one], "paper", "all", "random", "equivalents")
    assert ratio["ratio"] == pytest.approx((8 + 10) / (2 + 1))
    assert ratio["low"] <= ratio["ratio"] <= ratio["high"]
    assert compare_arms([one, one], "paper", "all", "random", "equivalents")["ratio"] == pytest.approx(6)
    assert compare_arms([one], "paper", "small", "random", "minutes")["ratio"] is None


def test_the_level_of_random_search_does_not_hang_on_one_whose_loss_fails_on_new_seeds():
    traces = {"random": {0: _trace((1, 0.6)), 1: _trace((1, 0.7)), 2: _trace((1, 0.9), (2, None)), 3: _trace((1, 0.8))}}
    one = summarise_task("a", traces, {"score": 0.75, "untrained": 0.1}, 10, 10)
    assert one["levels"]["random"] == pytest.approx(0.65)


def test_tasks_of_an_earlier_document_count_beside_those_of_this_run():
    traces = {arm: {0: _trace((spent, 0.8))} for arm, spent in (("random", 9), ("paper", 8), ("all", 2))}
    cheap, dear = (summarise_task(task, traces, {"score": 0.75, "untrained": None}, 10, 10) for task in ("a", "b"))
    again = {**cheap, "budget": 5}
    assert add_earlier({"budget": 10, "tasks": [cheap, dear]}, [again]) == [dear, again]
    both = compare_arms([dear, again], "paper", "all", "random", "equivalents")
    assert [row["task"] for row in both["tasks"]] == ["b", "a"]
    assert both["ratio"] == pytest.approx(4)


def test_a_search_is_done_again_when_the_code_that_proposes_changes(monkeypatch):
    # What the cached function wraps: patterns that match nothing would leave a cached search in force for ever.
    digest = sharing.digest_code.__wrapped__
    whole = digest()
    monkeypatch.setattr(sharing, "PROPOSING", sharing.PROPOSING[1:])
    assert digest() != whole
    monkeypatch.setattr(sharing, "PROPOSING", ("a/room/that/is/gone/*.py",))
    with pytest.raises(FileNotFoundError, match="a/room/that/is/gone"):
        digest()


def test_a_search_of_a_script_goes_on_and_one_with_other_settings_is_refused(tmp_path):
    """A search changes its own settings, such as the shares of its schedule: these are not what it was asked for."""
    task, arguments = autoloss.tasks.get("tabular", data="iris", steps=60), SimpleNamespace(evaluations=3, workers=0)
    settings = {"evolution.initial": 3, "final.confirm": 2}

    def search(**changes: int) -> Search:
        given = {**settings, **changes}
        return searched(task, EVOLUTION, 0, tmp_path / "search", arguments, settings=given, final=False)

    first = search()
    assert first.configuration.evolution.start != ("shelf",)
    assert search().history == first.history
    with pytest.raises(RequestError, match="other settings"):
        search(**{"final.confirm": 3})


def test_standard_losses_with_the_weights_that_a_search_recommends_are_another_loss_than_those_without():
    weights = {"rcnn_cls": 3.0}
    search = cast(Search, SimpleNamespace(recommendation=SimpleNamespace(loss="standard", recipe={"weights": weights})))
    plain, weighted = (Entrant("standard", "standard", 10.0, weights=tuple(each)) for each in ((), weights.items()))
    assert audit._is_recommended(weighted, search)
    assert not audit._is_recommended(plain, search)
