"""A run is read look by look: what is new, nothing of the rest, and what is damaged by name."""

from __future__ import annotations

import os
import re
import socket
import sqlite3

import pytest

from autoloss.errors import RequestError
from autoloss.run.results import open_run
from autoloss.store.database import CHECKSUM, insert
from autoloss.store.read import Reader, read_once
from autoloss.store.store import FILE, LOCK, Store, StoreError, lock_run, owner_lives
from tests.report.written import CE, KEY, POOLED, add, begin, candidate, compared, scored, searched


def scores(reader: Reader) -> list[tuple[int, float]]:
    return [(row["id"], row["score"]) for row in reader.losses(reader.settled)]


def running(reader: Reader) -> list[int]:
    return [row["id"] for row in reader.running]


def test_a_reader_knows_what_the_store_holds(tmp_path):
    directory = compared(searched(tmp_path / "run"), found=(0.9, 0.8), standard=(0.7, 0.7))
    reader = read_once(directory)
    with Store(directory) as store:
        outcomes, candidates = store.outcomes(), list(store.candidates())
        assert reader.trainings == store.trainings()
        assert reader.settings == store.settings()
    history = reader.history()
    assert [one.candidate for one in history] == candidates[:5]
    assert [one.outcome for one in history] == [outcomes[0], outcomes[1], outcomes[2], outcomes[0], outcomes[4]]
    assert [reader.outcome(number) for number in range(6)] == [*(one.outcome for one in history), None]
    assert reader.lineage(3) == [(candidates[3], 0.3), (candidates[2], 0.6), (candidates[0], 0.3)]
    assert reader.lineage(7) == []


def test_outcomes_after_a_gap_are_read_and_what_still_trains_is_named(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, (candidate(0), None), (candidate(1, POOLED), scored(0.5)), (candidate(2, parent=0, source=0), None))
    reader = Reader(directory)
    assert scores(reader) == [(1, 0.5)]
    assert running(reader) == [0]
    assert reader.history() == []
    with Store(directory, write=True) as store:
        store.add_training(CE, KEY, scored(0.7), 0)
    assert reader.look()
    assert scores(reader) == [(0, 0.7), (1, 0.5), (2, 0.7)]
    assert running(reader) == []
    assert [one.id for one in reader.history()] == [0, 1, 2]
    assert not reader.look()


def test_a_history_does_not_grow_after_the_look(tmp_path):
    directory = searched(tmp_path / "run")
    reader = Reader(directory)
    with Store(directory, write=True) as store:
        store.add_training(CE, KEY, scored(0.7), 5)
    assert [one.id for one in reader.history()] == [0, 1, 2, 3, 4]


def test_later_looks_add_to_what_is_known(tmp_path):
    directory = searched(tmp_path / "run")
    reader = Reader(directory)
    sampled = reader.totals["sampled"]
    add(directory, (candidate(6, CE), scored(0.95)))
    assert reader.look()
    assert reader.totals["sampled"] == sampled + 90
    assert reader.ranking[0] == 6
    assert reader.totals == Reader(directory).totals


@pytest.mark.parametrize(
    ("table", "change", "left"),
    [
        ("training", "UPDATE training SET score = 0.99 WHERE candidate = 1", [0, 2, 3, 4]),
        ("candidate", "UPDATE candidate SET loss = 'p' WHERE id = 1", [0, 2, 3, 4]),
        ("candidate", "UPDATE candidate SET loss = 'p' WHERE id = 0", [1, 2, 4]),
        ("training", "UPDATE training SET score = 0.99 WHERE candidate = 0", [1, 2, 4]),
    ],
)
def test_a_damaged_row_is_named_once_and_left_out(table, change, left, tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute(change)
    connection.close()
    reader = Reader(directory)
    reader.look()
    (text,) = reader.damaged
    assert f" of {table} is damaged" in text
    number = re.search(r"\d+$", change)[0]
    assert (f"It belongs to candidate {number}." in text) == (table == "training")
    assert reader.settled == left
    assert running(reader) == [5]
    with pytest.raises(StoreError, match="is damaged"):
        read_once(directory)


def test_a_damaged_row_names_no_candidate_where_its_number_cannot_be_read(tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("UPDATE training SET candidate = NULL WHERE candidate = 1")
    connection.close()
    (text,) = Reader(directory).damaged
    assert "row 2 of training is damaged" in text
    assert "belongs" not in text


def test_what_is_damaged_is_no_news_at_the_next_look(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, (candidate(0), None), *((candidate(number), scored(0.5)) for number in (1, 2)))
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("UPDATE candidate SET loss = 'p' WHERE id = 1")
        connection.execute("UPDATE training SET score = 0.9 WHERE candidate = 2")
    connection.close()
    reader = Reader(directory)
    assert len(reader.damaged) == 2
    assert not reader.look()
    assert running(reader) == [0]


def test_a_missing_candidate_is_named(tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("DELETE FROM candidate WHERE id = 1")
    connection.close()
    (text,) = Reader(directory).damaged
    assert "candidate 1 is missing" in text


def test_a_row_that_is_whole_and_means_nothing_is_named_and_left_out(tmp_path):
    directory = searched(tmp_path / "run")
    with Store(directory, write=True) as store:
        store.add_training("baseline/ce", KEY, scored(0.5))
        store.add_training("baseline/dice", KEY, scored(0.5))
    changes = (
        ("candidate", 3, "origin", "wonderful"),
        ("training", 2, "state", "wonderful"),
        ("training", 5, "seed", -1),
        ("training", 6, "state", "failed"),
    )
    with sqlite3.connect(directory / FILE) as connection:
        connection.row_factory = sqlite3.Row
        for table, number, column, value in changes:
            row = dict(connection.execute(f"SELECT * FROM {table} WHERE rowid = ?", (number,)).fetchone())
            del row[CHECKSUM]
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (number,))
            insert(connection, table, {**row, column: value})
            connection.execute(f"UPDATE {table} SET rowid = ? WHERE rowid = last_insert_rowid()", (number,))
    connection.close()
    reader = Reader(directory)
    assert reader.settled == [0, 2, 4]
    assert running(reader) == [5]
    assert reader.trainings == {}
    rows = ("row 3 of candidate is damaged (its origin", "row 2 of training is damaged (its state")
    rows += ("row 5 of training is damaged (Training.seed", "row 6 of training is damaged (A training")
    assert len(reader.damaged) == 4
    for row in rows:
        assert any(row in text and "Restore the file from a copy" in text for text in reader.damaged)


def test_a_damaged_example_is_named_and_the_rest_is_there(tmp_path):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("UPDATE rejected SET formula = 'p' WHERE candidate = 0")
    connection.close()
    reader = Reader(directory)
    (text,) = reader.damaged
    assert "row 1 of rejected is damaged" in text
    assert reader.examples == [{"reason": "STRUCTURE", "candidate": 1, "branch": "main", "formula": "add(1, 1)"}]
    assert reader.totals == Reader(directory, thorough=True).totals
    # A table of the best shows no examples.
    assert not read_once(directory).damaged


def test_a_table_of_the_best_is_read_with_one_look_at_the_file(tmp_path, monkeypatch):
    directory = begin(tmp_path / "run")
    add(directory, *((candidate(number), scored(number / 100)) for number in range(30)))
    opened: list[str] = []
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **options: (opened.append(path), connect(path, **options))[1])
    found = open_run(directory)
    assert [best.id for best in found.top(3)] == [29, 28, 27]
    assert found.best.id == 29
    assert len(found.reader.settled) == 30
    assert sum(path.startswith("file:") for path in opened) == 1


def test_there_has_to_be_a_run_that_began(tmp_path):
    with pytest.raises(RequestError, match="There is no run"):
        Reader(tmp_path)
    Store(tmp_path, write=True).close()
    with pytest.raises(RequestError, match="stopped before it began"):
        Reader(tmp_path)


def test_whether_the_owner_lives_is_read_without_touching_its_lock(tmp_path):
    assert owner_lives(tmp_path) is False
    owner = lock_run(tmp_path)
    assert owner_lives(tmp_path) is True
    owner.close()
    (tmp_path / LOCK).write_text(f"process {2**22 + os.getpid()} on {socket.gethostname()}\n")
    assert owner_lives(tmp_path) is False
    (tmp_path / LOCK).write_text("process 1 on another.machine\n")
    assert owner_lives(tmp_path) is None
