"""Runs of every released schema open, and go on to the history that they would have had."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import autoloss
from autoloss.errors import RunError
from autoloss.proposing.history import as_text
from autoloss.run.results import open_run
from autoloss.store import migrations
from autoloss.store.read import Reader, read_once
from autoloss.store.store import FILE, Store, StoreError
from tests.run.quick import SETTINGS, QuickTask

DATABASES = Path(__file__).parent / "databases"
"""A run of each schema, as its release left it when it was killed: 20 trainings asked for, 11 done, 39 beside the search."""
DECIDED = ("child", "parent", "kinds", "attempts", "loss", "origin", "source", "state")


def version(directory: Path) -> int:
    connection = sqlite3.connect(directory / FILE)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


SCHEMAS = [f"schema{number}" for number in range(1, migrations.SCHEMA + 1)]


@pytest.fixture(params=SCHEMAS)
def old(request, tmp_path) -> Path:
    return Path(shutil.copytree(DATABASES / request.param, tmp_path / "run"))


@pytest.fixture
def first(tmp_path) -> Path:
    return Path(shutil.copytree(DATABASES / SCHEMAS[0], tmp_path / "run"))


def test_every_schema_has_its_database():
    assert sorted(path.name for path in DATABASES.iterdir()) == SCHEMAS


def test_an_old_run_is_read_as_it_is(old):
    before = version(old), (old / FILE).read_bytes()
    found = open_run(old)
    assert len(found.history) == found.reader.count == 14
    assert len(found.reader.trainings) == 39
    assert found.best.id == 10
    assert not found.reader.look()
    assert autoloss.replay(old).difference is None
    assert (version(old), (old / FILE).read_bytes()) == before


def test_a_run_that_is_brought_up_to_date_holds_what_it_held(old):
    def content() -> tuple:
        reader = read_once(old, thorough=True)
        losses = reader.losses(reader.settled)
        return (reader.history(), losses, reader.running, reader.trainings, reader.totals, reader.last_change)

    before = content()
    with Store(old, write=True) as store:
        connection = store.database._connection
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert version(old) == migrations.SCHEMA
    assert content() == before


@pytest.mark.parametrize(
    ("change", "damaged", "left"),
    [
        # Loss 1 has a twin.
        ("UPDATE child SET loss = 'p' WHERE id = 1", "candidate with id 1", 12),
        ("UPDATE outcome SET score = 0.99 WHERE child = 1", "training with rowid 2", 12),
        ("UPDATE trial SET seed = 4 WHERE rowid = 1", "training with rowid 12", 14),
    ],
)
def test_a_damaged_row_of_an_old_run_stays_damaged(change, damaged, left, first):
    with sqlite3.connect(first / FILE) as connection:
        connection.execute(change)
    connection.close()
    for write in (False, True):
        if write:
            Store(first, write=True).close()
        reader = Reader(first)
        assert any(f"the row of {damaged} is damaged" in text for text in reader.damaged)
        assert reader.count == left
        with pytest.raises(StoreError, match="is damaged"):
            read_once(first)


def test_an_old_run_is_resumed_to_the_history_it_would_have_had(old, tmp_path):
    kept = list(as_text(open_run(old).history))
    found = autoloss.resume(old, QuickTask(), workers=0, final=False)
    assert version(old) == migrations.SCHEMA
    history = list(as_text(found.history))
    assert history[: len(kept)] == kept
    new = autoloss.search(
        QuickTask(), evaluations=20, seed=3, workers=0, directory=tmp_path / "new", settings=SETTINGS, final=False
    )

    def decided(lines: list[str]) -> list[dict]:
        # Last digits of scores are the machine's that trained.
        return [{name: json.loads(line)[name] for name in DECIDED} for line in lines]

    assert decided(history) == decided(list(as_text(new.history)))


def test_a_run_without_its_samples_is_not_brought_up_to_date(first):
    (first / migrations.SAMPLES).unlink()
    with pytest.raises(RunError, match=r"samples.safetensors cannot be read: .*Restore it from a copy"):
        Store(first, write=True)
    assert version(first) < migrations.SCHEMA


def test_samples_that_changed_are_not_searched_on(old):
    Store(old, write=True).close()
    data = bytearray((old / migrations.SAMPLES).read_bytes())
    data[-1] ^= 1
    (old / migrations.SAMPLES).write_bytes(data)
    with pytest.raises(RunError, match=r"samples.safetensors is damaged: its digest is"):
        autoloss.resume(old, QuickTask(), workers=0)


def test_a_store_of_trainings_alone_has_no_samples(first):
    (first / migrations.SAMPLES).unlink()
    with sqlite3.connect(first / FILE) as connection:
        for table in ("child", "outcome", "rejected", "setting"):
            connection.execute(f"DELETE FROM {table}")
    (first / "run.tally").unlink(missing_ok=True)
    with Store(first, write=True) as store:
        assert len(store.trainings()) == 39
    assert version(first) == migrations.SCHEMA
