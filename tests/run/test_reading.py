"""A run is read look by look: what is new, nothing of the rest, and what is damaged by name."""

from __future__ import annotations

import os
import socket
import sqlite3

import pytest

from autoloss.errors import RequestError
from autoloss.run.reading import Reading, read_once
from autoloss.run.results import open_run
from autoloss.store.lock import FILE as LOCK
from autoloss.store.lock import Ownership, owner_lives
from autoloss.store.rows import CHECKSUM, insert
from autoloss.store.store import FILE, Store, StoreError
from tests.report.written import CE, POOLED, add, begin, child, compared, scored, searched


def test_a_look_reads_what_a_whole_reading_does(tmp_path):
    directory = compared(searched(tmp_path / "run"), found=(0.9, 0.8), standard=(0.7, 0.7))
    found, whole = read_once(directory).search, open_run(directory)
    assert found.best == whole.best
    assert found.top(9) == whole.top(9)
    assert found.comparison == whole.comparison
    assert [one.id for one in found.history] == [one.id for one in whole.history]


def test_outcomes_after_a_gap_are_read_and_what_still_trains_is_named(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, (child(0), None), (child(1, POOLED), scored(0.5)), (child(2, parent=0, source=0), None))
    reading = Reading(directory)
    assert [one.id for one in reading.search.history] == [1]
    assert [one.child.id for one in reading.running] == [0]
    with Store(directory, write=True) as store:
        store.add_outcome(0, scored(0.7))
    assert reading.look()
    assert [(one.id, one.score) for one in reading.search.history] == [(0, 0.7), (1, 0.5), (2, 0.7)]
    assert reading.running == []
    assert not reading.look()


def test_later_looks_add_to_what_is_known(tmp_path):
    directory = searched(tmp_path / "run")
    reading = Reading(directory)
    sampled = reading.totals["sampled"]
    add(directory, (child(6, CE), scored(0.95)))
    assert reading.look()
    assert reading.totals["sampled"] == sampled + 90
    assert reading.search.best.id == 6
    assert reading.totals == Reading(directory).totals


def test_the_curve_of_a_twin_is_that_of_its_source(tmp_path):
    reading = Reading(searched(tmp_path / "run"))
    twin = next(one for one in reading.search.history if one.id == 3)
    assert twin.outcome.curve == scored(0.3).curve


@pytest.mark.parametrize(
    ("table", "change", "left"),
    [
        ("outcome", "UPDATE outcome SET score = 0.99 WHERE child = 1", [0, 2, 3, 4]),
        ("child", "UPDATE child SET loss = 'p' WHERE id = 1", [0, 2, 3, 4]),
        ("outcome", "UPDATE outcome SET score = 0.99 WHERE child = 0", [1, 2, 4]),
    ],
)
def test_a_damaged_row_is_named_once_and_left_out(table, change, left, tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute(change)
    connection.close()
    reading = Reading(directory)
    reading.look()
    (text,) = reading.damaged
    assert f"the row of {table}" in text
    assert "is damaged" in text
    assert [one.id for one in reading.search.history] == left
    assert [one.child.id for one in reading.running] == [5]
    with pytest.raises(StoreError, match="is damaged"):
        read_once(directory)


def test_what_is_damaged_is_no_news_at_the_next_look(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, (child(0), None), *((child(number), scored(0.5)) for number in (1, 2)))
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("UPDATE child SET loss = 'p' WHERE id = 1")
        connection.execute("UPDATE outcome SET score = 0.9 WHERE child = 2")
    connection.close()
    reading = Reading(directory)
    assert len(reading.damaged) == 2
    assert not reading.look()
    assert [one.child.id for one in reading.running] == [0]


def test_a_missing_child_is_named(tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("DELETE FROM child WHERE id = 1")
    connection.close()
    (text,) = Reading(directory).damaged
    assert "child 1 is missing" in text


@pytest.mark.parametrize(("table", "kept"), [("child", 4), ("outcome", 3)])
def test_rows_missing_at_the_end_are_named(table, kept, tmp_path):
    directory = searched(tmp_path / "run")
    column = {"child": "id", "outcome": "child"}[table]
    with sqlite3.connect(directory / FILE) as connection:
        written = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
        connection.execute(f"DELETE FROM {table} WHERE {column} >= {kept}")
    connection.close()
    (text,) = Reading(directory).damaged
    assert f"rows of {table}, and {written} were written" in text
    with pytest.raises(StoreError, match="were written"):
        read_once(directory)


def test_a_row_that_is_whole_and_means_nothing_is_named_and_left_out(tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.row_factory = sqlite3.Row
        for table, number, column in (("child", 2, "origin"), ("outcome", 1, "state")):
            name = {"child": "id", "outcome": "child"}[table]
            row = dict(connection.execute(f"SELECT * FROM {table} WHERE {name} = ?", (number,)).fetchone())
            del row[CHECKSUM]
            insert(connection, table, {**row, column: "wonderful"}, replace=True)
    connection.close()
    reading = Reading(directory)
    assert [one.id for one in reading.search.history] == [0, 3, 4]
    assert [one.child.id for one in reading.running] == [5]
    assert sorted(reading.damaged) == sorted(
        f"{directory / FILE}: the row of {table} {number} is damaged (its {column} is 'wonderful'). "
        "Restore the file from a copy."
        for table, number, column in (("child", 2, "origin"), ("outcome", 1, "state"))
    )


def test_a_damaged_example_is_named_and_the_rest_is_there(tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("UPDATE rejected SET formula = 'p' WHERE child = 0")
    connection.close()
    reading = Reading(directory)
    (text,) = reading.damaged
    assert "the row of rejected" in text
    assert reading.examples["STRUCTURE"] == (1, "main", 7, "add(1, 1)")
    assert reading.totals == Reading(directory, thorough=True).totals
    # A table of the best shows no examples.
    assert not read_once(directory).damaged


def test_only_rows_that_are_shown_are_read_whole(tmp_path, monkeypatch):
    directory = begin(tmp_path / "run")
    add(directory, *((child(number), scored(number / 100)) for number in range(30)))
    found = read_once(directory).search
    read: list[int] = []
    whole = Store.child
    monkeypatch.setattr(Store, "child", lambda store, number: (read.append(number), whole(store, number))[1])
    assert [best.id for best in found.top(3)] == [29, 28, 27]
    assert found.best.id == 29
    assert len(found.history) == 30
    assert set(read) <= set(range(20, 30))
    assert [one.id for one in found.history[-2:]] == [28, 29]


def test_there_has_to_be_a_run_that_began(tmp_path):
    with pytest.raises(RequestError, match="There is no run"):
        Reading(tmp_path)
    Store(tmp_path, write=True).close()
    with pytest.raises(RequestError, match="stopped before it began"):
        Reading(tmp_path)


def test_whether_the_owner_lives_is_read_without_touching_its_lock(tmp_path):
    assert owner_lives(tmp_path) is False
    owner = Ownership(tmp_path)
    assert owner_lives(tmp_path) is True
    owner.close()
    (tmp_path / LOCK).write_text(f"process {2**22 + os.getpid()} on {socket.gethostname()}\n")
    assert owner_lives(tmp_path) is False
    (tmp_path / LOCK).write_text("process 1 on another.machine\n")
    assert owner_lives(tmp_path) is None
