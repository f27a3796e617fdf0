"""A replay derives every child from the recorded scores, and names the first that cannot have come about so."""

from __future__ import annotations

import json
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import autoloss
from autoloss.cli import main
from autoloss.errors import RequestError
from autoloss.proposing.records import Origin
from autoloss.store.database import CHECKSUM, StoreError, checksum
from autoloss.store.store import FILE, Store

from .quick import SETTINGS, QuickTask

BRANCHES = ("cls", "reg")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("replay") / "run"
    settings = {**SETTINGS, "offspring.copy": 0.3, "evolution.tournament": 1.0}
    autoloss.search(
        QuickTask(BRANCHES), evaluations=14, seed=5, workers=0, directory=path, settings=settings, final=False
    )
    return path


@pytest.mark.parametrize("full", [False, True])
def test_a_run_equals_its_replay(full, directory):
    found = autoloss.replay(directory, QuickTask(BRANCHES), full=full)
    with Store(directory) as store:
        children = list(store.candidates())
    assert found.difference is None
    assert found.children == len(children)
    assert {child.origin.value for child in children} == {"trained", "twin", "copied"}


def test_a_replay_needs_no_task_and_writes_nothing(directory):
    before = (directory / FILE).read_bytes()
    assert autoloss.replay(directory).difference is None
    assert (directory / FILE).read_bytes() == before


def test_an_unfinished_run_is_replayed_as_far_as_it_is(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "run")
    with sqlite3.connect(tmp_path / "run" / FILE) as connection:
        connection.execute("DELETE FROM training WHERE candidate > 6")
        connection.execute("DELETE FROM candidate WHERE id > 10")
    connection.close()
    found = autoloss.replay(tmp_path / "run", QuickTask(BRANCHES), full=True)
    assert found.difference is None
    assert found.children == 11


def forged(directory: Path, copy: Path, table: str, where: str, **values: object) -> Path:
    """Copy a run and change a row together with its checksum: what only a replay can notice."""
    shutil.copytree(directory, copy)
    connection = sqlite3.connect(copy / FILE)
    connection.row_factory = sqlite3.Row
    row = {**dict(connection.execute(f"SELECT * FROM {table} WHERE {where}").fetchone()), **values}
    row.pop(CHECKSUM)
    row[CHECKSUM] = checksum(row.values())
    columns = ", ".join(f"{name} = ?" for name in row)
    connection.execute(f"UPDATE {table} SET {columns} WHERE {where}", tuple(row.values()))
    connection.commit()
    connection.close()
    return copy


FORGERIES = {
    "attempts": {"attempts": '{"cls":0,"reg":0}'},
    "loss": {"loss": "cls: neg(mul(y, log(p))); reg: neg(mul(y, log(p)))"},
    "kinds": {"kinds": '{"cls":"copied","reg":"fresh"}'},
    "parent": {"parent": 0},
    "origin": {"origin": "twin", "source": 0},
    "counts": {"counts": '{"STRUCTURE":1,"passed":2,"sampled":3,"simulated":2}'},
}


@pytest.mark.parametrize("column", FORGERIES)
def test_a_forged_child_is_the_first_that_differs(column, directory, tmp_path):
    copy = forged(directory, tmp_path / "run", "candidate", "id = 3", **FORGERIES[column])
    found = autoloss.replay(copy)
    assert found.children == 3
    assert found.difference is not None
    assert found.difference.child == 3
    # Another attempt number is another tree.
    assert found.difference.column in {"attempts": ("counts", "loss"), "counts": ("counts",)}.get(column, (column,))


def test_a_forged_score_shows_in_the_children_that_were_bred_from_it(directory, tmp_path):
    with Store(directory) as store:
        children = list(store.candidates())
    trained = [child.id for child in children if child.origin is Origin.TRAINED]
    parent = next(child.parent for child in reversed(children) if child.parent in trained)
    copy = forged(directory, tmp_path / "run", "training", f"candidate = {parent}", score=-1e9)
    found = autoloss.replay(copy)
    assert found.difference is not None
    assert found.difference.column == "parent"
    assert found.difference.stored == parent


def test_a_full_replay_tests_what_a_plain_one_believes(directory, tmp_path):
    with Store(directory) as store:
        child = next(child for child in store.candidates() if child.scores)
    branch, (score, *gains) = next(iter(child.scores.items()))
    scores = json.dumps({**child.scores, branch: [score + 1e-9, *gains]}, separators=(",", ":"))
    copy = forged(directory, tmp_path / "run", "candidate", f"id = {child.id}", scores=scores)
    assert autoloss.replay(copy).difference is None
    found = autoloss.replay(copy, QuickTask(BRANCHES), full=True)
    assert found.difference == replace(found.difference, child=child.id, column="scores", stored=scores)


@pytest.mark.parametrize(
    ("alphabets", "said"),
    [
        ({}, r"'alphabets' .* Restore the file from a copy"),
        ({key: {"roles": {"y": "aim"}, "operators": ["add"]} for key in BRANCHES}, "'alphabets'"),
        ({key: {"roles": {"y": "target"}, "operators": ["sine"]} for key in BRANCHES}, "operator.*sine"),
    ],
)
def test_a_run_that_does_not_say_what_trees_are_drawn_from_is_named(directory, tmp_path, alphabets, said):
    shutil.copytree(directory, tmp_path / "run")
    with Store(tmp_path / "run", write=True) as store:
        store.change_setting("alphabets", alphabets)
    with pytest.raises((StoreError, RequestError), match=said):
        autoloss.replay(tmp_path / "run")


def test_a_full_replay_asks_for_the_task_of_a_run_of_an_object(directory):
    with pytest.raises(RequestError, match="was given as an object"):
        autoloss.replay(directory, full=True)


def command(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_the_command_says_what_it_found_and_fails_where_something_differs(directory, tmp_path, capsys):
    assert command("replay", directory) == 0
    assert "all equal what is stored" in capsys.readouterr().out
    assert command("replay", directory, "--json") == 0
    assert json.loads(capsys.readouterr().out)["difference"] is None
    copy = forged(directory, tmp_path / "run", "candidate", "id = 3", parent=0)
    assert command("replay", copy, "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["difference"]["child"] == 3
    assert "candidate 3 differs in parent: stored is 0" in said.err
