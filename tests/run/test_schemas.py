"""Runs of every released schema open, and go on to the history that they would have had."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

import autoloss
from autoloss.errors import RunError
from autoloss.run.results import open_run
from autoloss.search.history import as_text
from autoloss.store import migrations
from autoloss.store.store import FILE, Store

from .quick import SETTINGS, QuickTask

DATABASES = Path(__file__).parent / "databases"
"""A run of each schema, as its release left it when it was killed: 20 trainings asked for, 11 done, 39 trials."""
DECIDED = ("child", "parent", "kinds", "attempts", "loss", "origin", "source", "state")


def version(directory: Path) -> int:
    connection = sqlite3.connect(directory / FILE)
    found = connection.execute("PRAGMA user_version").fetchone()[0]
    connection.close()
    return found


@pytest.fixture(params=sorted(path.name for path in DATABASES.iterdir()))
def old(request, tmp_path) -> Path:
    return Path(shutil.copytree(DATABASES / request.param, tmp_path / "run"))


def test_every_older_schema_has_its_database():
    assert sorted(path.name for path in DATABASES.iterdir()) == [f"schema{number}" for number in migrations.STEPS]


def test_an_old_run_is_read_as_it_is(old):
    before = version(old)
    assert len(open_run(old).history) == 14
    assert version(old) == before


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


def test_a_run_without_its_samples_is_not_brought_up_to_date(old):
    (old / migrations.SAMPLES).unlink()
    with pytest.raises(RunError, match=r"samples.safetensors cannot be read: .*Restore it from a copy"):
        Store(old, write=True)
    assert version(old) < migrations.SCHEMA


def test_samples_that_changed_are_not_searched_on(old):
    Store(old, write=True).close()
    data = bytearray((old / migrations.SAMPLES).read_bytes())
    data[-1] ^= 1
    (old / migrations.SAMPLES).write_bytes(data)
    with pytest.raises(RunError, match=r"samples.safetensors is damaged: its digest is"):
        autoloss.resume(old, QuickTask(), workers=0)


def test_a_store_of_trainings_alone_has_no_samples(old):
    (old / migrations.SAMPLES).unlink()
    with sqlite3.connect(old / FILE) as connection:
        for table in ("child", "outcome", "rejected", "setting"):
            connection.execute(f"DELETE FROM {table}")
    (old / "run.tally").unlink(missing_ok=True)
    with Store(old, write=True) as store:
        assert store.trials()
    assert version(old) == migrations.SCHEMA
