"""The store gives back what it was given, names what is damaged, and is never written by a reader."""

from __future__ import annotations

import dataclasses
import math
import shutil
import sqlite3
import threading
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path

import pytest

from autoloss.errors import RequestError, RunError
from autoloss.proposing.records import Candidate, Origin, Outcome, State, Train
from autoloss.settings import Configuration
from autoloss.space.form import BranchForm
from autoloss.store import database, samples
from autoloss.store.database import SCHEMA, Database, checksum
from autoloss.store.run_settings import Comparison, RunSettings, StartVerdict, TaskReference
from autoloss.store.store import FILE, Store, StoreError, exists
from autoloss.training.training import ItemWeights, Replicates, Training
from faults_file import synced

SETTINGS = RunSettings(
    configuration=Configuration(), task=TaskReference(None), title="quick", branches={"main": BranchForm()}, release="1"
)


def candidate(number: int, **changes) -> Candidate:
    values = {
        "id": number,
        "parent": None,
        "kinds": {"main": "fresh"},
        "attempts": {"main": 17},
        "loss": "neg(mul(y, log(p)))",
        "origin": Origin.TRAINED,
        "source": None,
        "signature": {"main": ("1.2e+00", "0")},
        "scores": {"main": (0.75, 0.1 + 0.2, -1e-17)},
        "counts": {"sampled": 18, "simulated": 3, "STRUCTURE": 15},
        "rejected": {"main": b"\x00\xff" * 8},
        "accepted": {"main": b"12345678"},
        **changes,
    }
    return Candidate(**values)


OUTCOMES = [
    Outcome(state=State.SCORED, score=0.1 + 0.2, also={"gacc": 1 / 3}, curve=((1, 2.5), (100, 1e-30)), seconds=1.5),
    Outcome(state=State.SCORED, score=-math.pi, seconds=0.25, replicates=Replicates(113, (-3.25, None, 1 / 3))),
    Outcome(state=State.SCORED, score=-0.0, seconds=0.0),
    Outcome(state=State.DIVERGED, step=19, reason="loss is nan", seconds=0.1),
    Outcome(state=State.FAILED, reason="killed: signal 9\nlast words 'x\"y'", seconds=3.0),
]


TEXTS = ["", "p", "it's", 'a "b"', "'\"", "back\\slash", "line\nbreak", "50 %s %", "\x00", "ü √", "None", "1"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_checksum_depends_on_every_value(text):
    row = (text, "'", None, 2**62, 0.1 + 0.2, -1e-300, math.inf)
    for place, other in enumerate((text + "x", "", 0, 7, 0.3, 1e-300, -math.inf)):
        assert checksum([*row[:place], other, *row[place + 1 :]]) != checksum(row)


def of_search(seed: int = 7) -> Training:
    return Training(seed=seed)


KEY = Training(
    seed=2**63 - 1,
    split="test",
    fold=2,
    schedule="full",
    fidelity=0.1,
    learning_rate=0.3,
    scale={"reg": 10, "cls": 0.1},
    paced_by="neg(p)",
    item_weights=(ItemWeights("cls", "class", (0.5, 2.0)),),
)


def test_candidates_and_outcomes_come_back_as_they_went_in(tmp_path):
    candidates = [
        candidate(0),
        candidate(1, parent=0, origin=Origin.COPIED, source=0, attempts={"main": None}, scores={}),
    ]
    with Store(tmp_path, write=True) as store:
        for one in candidates:
            store.add_candidate(one, {})
        for number, outcome in enumerate(OUTCOMES[:2]):
            store.add_training("neg(p)", of_search(), outcome, number)
    with Store(tmp_path) as store:
        assert list(store.candidates()) == candidates
        assert list(store.candidates("id IN (1, 5)")) == candidates[1:]
        assert store.outcomes() == dict(enumerate(OUTCOMES[:2]))
        assert store.trainings() == {}


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.state.value)
def test_trainings_beside_the_search_come_back_exactly(outcome, tmp_path):
    with Store(tmp_path, write=True) as store:
        store.add_training("baseline/ce", KEY, outcome)
        assert store.trainings() == {Train("baseline/ce", KEY): outcome}
        assert store.outcomes() == {}


def test_nothing_is_written_twice(tmp_path):
    with Store(tmp_path, write=True) as store:
        for number in (0, None):
            store.add_training("neg(p)", KEY, OUTCOMES[0], number)
            with pytest.raises(sqlite3.IntegrityError):
                store.add_training("neg(p)", KEY, OUTCOMES[2], number)
        assert store.outcomes() == {0: OUTCOMES[0]}
        assert store.trainings() == {Train("neg(p)", KEY): OUTCOMES[0]}


@pytest.mark.parametrize("field", [field.name for field in fields(Training) if field.compare])
def test_every_field_of_a_training_is_part_of_its_key(field, tmp_path):
    others = {
        "seed": 1,
        "split": "valid",
        "fold": 0,
        "schedule": "proxy",
        "fidelity": 1.0,
        "learning_rate": 1.0,
        "scale": {},
        "step_rule": "one_norm",
        "length": 2.0,
        "tuned_threshold": True,
        "paced_by": "",
        "item_weights": (ItemWeights("cls", "confidence", (0.5, 2.0)),),
    }
    other = replace(KEY, **{field: others[field]})
    with Store(tmp_path, write=True) as store:
        store.add_training("neg(p)", KEY, OUTCOMES[0])
        store.add_training("neg(p)", other, OUTCOMES[1])
        assert store.trainings() == {Train("neg(p)", KEY): OUTCOMES[0], Train("neg(p)", other): OUTCOMES[1]}


def test_a_loss_that_failed_is_trained_again_as_another_candidate(tmp_path):
    with Store(tmp_path, write=True) as store:
        for number, outcome in ((0, OUTCOMES[3]), (1, OUTCOMES[0])):
            store.add_training("neg(p)", of_search(), outcome, number)
        assert store.outcomes() == {0: OUTCOMES[3], 1: OUTCOMES[0]}


def test_of_a_promoted_candidate_the_longest_training_counts(tmp_path):
    with Store(tmp_path, write=True) as store:
        for fidelity, outcome in ((0.25, OUTCOMES[0]), (1.0, OUTCOMES[1])):
            store.add_training("neg(p)", Training(seed=7, fidelity=fidelity), outcome, 0)
        assert store.outcomes() == store.outcomes("candidate = 0") == {0: OUTCOMES[1]}


def test_several_trainings_of_a_candidate_are_kept_one_by_one_and_pooled(tmp_path):
    with Store(tmp_path, write=True) as store:
        for fold, score in enumerate((0.5, 0.75, 1.0)):
            training = Training(seed=7, fold=fold)
            store.add_training("neg(p)", training, Outcome(state=State.SCORED, score=score, also={"auc": score}), 0)
        (pooled,) = store.outcomes().values()
    assert (pooled.score, pooled.deviation, pooled.count, pooled.also) == (0.75, 0.25, 3, {"auc": 0.75})


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("training", "UPDATE training SET score = 0.9 WHERE candidate = 0"),
        ("training", "UPDATE training SET reason = 'x' WHERE candidate = 0"),
        ("training", "UPDATE training SET scale = '{\"main\":2.0}' WHERE candidate IS NULL"),
        ("training", "UPDATE training SET candidate = 5 WHERE candidate IS NULL"),
        ("candidate", "UPDATE candidate SET loss = 'y'"),
        ("candidate", "UPDATE candidate SET counts = '{}'"),
        ("setting", "UPDATE setting SET value = '7'"),
    ],
)
def test_a_changed_row_is_named_and_never_read(table, change, tmp_path):
    with Store(tmp_path, write=True) as store:
        store.write_settings(SETTINGS)
        store.add_candidate(candidate(0), {})
        store.add_training("neg(p)", of_search(), OUTCOMES[0], 0)
        store.add_training("baseline/ce", of_search(), OUTCOMES[0])
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute(change)
    connection.commit()
    connection.close()
    with Store(tmp_path) as store, pytest.raises(StoreError, match=rf"row \d+ of {table} is damaged"):
        [list(read()) for read in (lambda: [store.settings()], store.candidates, store.outcomes, store.trainings)]


def test_a_missing_candidate_is_named(tmp_path):
    with Store(tmp_path, write=True) as store:
        store.add_candidate(candidate(0), {})
        store.add_candidate(candidate(2), {})
    with Store(tmp_path) as store, pytest.raises(StoreError, match="candidate 1 is missing"):
        list(store.candidates())


def test_a_truncated_file_is_an_error_and_no_traceback(tmp_path):
    with Store(tmp_path, write=True) as store:
        for number in range(200):
            store.add_candidate(candidate(number), {})
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data[: len(data) // 2])
    with pytest.raises(StoreError):
        _read_all(tmp_path)


def _read_all(directory):
    with Store(directory) as store:
        return list(store.candidates())


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path):
    (tmp_path / FILE).write_text("hello, this is no database" * 100)
    with pytest.raises(StoreError, match="cannot be opened as a run"):
        Store(tmp_path)


def test_another_schema_is_refused_with_the_way_out(tmp_path):
    Store(tmp_path, write=True).close()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for write in (False, True):
        with pytest.raises(RequestError, match=f"written by schema 99; this release reads schema {SCHEMA}"):
            Store(tmp_path, write=write)
    assert exists(tmp_path)


def test_a_folder_without_a_run_is_a_wrong_request(tmp_path):
    with pytest.raises(RequestError, match="There is no run in"):
        Store(tmp_path)
    assert not (tmp_path / FILE).exists()


def test_a_reader_cannot_write(tmp_path):
    Store(tmp_path, write=True).close()
    with Store(tmp_path) as store, pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.add_candidate(candidate(0), {})


def test_readers_see_whole_rows_while_a_writer_commits(tmp_path):
    writer = Store(tmp_path, write=True)
    faults: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                with Store(tmp_path) as store:
                    found = list(store.candidates())
                    assert [one.id for one in found] == list(range(len(found)))
            except Exception as error:
                faults.append(error)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for number in range(100):
        writer.add_candidate(candidate(number), {})
    done.set()
    for reader in readers:
        reader.join()
    writer.close()
    assert not faults


def test_a_commit_is_synced_before_anything_follows_from_it(tmp_path):
    assert synced(tmp_path) == []


def test_a_lost_log_takes_the_last_transactions_along_and_leaves_a_whole_run(tmp_path):
    with Store(tmp_path, write=True) as store:
        for number in range(database.LOG_PAGES):
            store.add_candidate(candidate(number), {})
        copy = tmp_path / "copy"
        copy.mkdir()
        shutil.copy(tmp_path / FILE, copy)
    with Store(copy) as store:
        found = list(store.candidates())
    assert found == [candidate(number) for number in range(len(found))]
    assert len(found) > database.LOG_PAGES / 4


def test_rows_are_compared_with_their_indexes_when_a_file_is_opened(tmp_path):
    with Store(tmp_path, write=True) as store:
        for number in range(3):
            store.add_candidate(candidate(number), {("main", 7): ("p", "STRUCTURE")})
    with sqlite3.connect(tmp_path / FILE) as connection:
        # The index holds a row that the table does not have.
        pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_master"))
    connection.close()
    data, size = bytearray((tmp_path / FILE).read_bytes()), 4096
    start = (pages["candidate"] - 1) * size
    data[start + 3 : start + 5] = (2).to_bytes(2, "big")
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(StoreError, match=r"is damaged: .*Restore the file from a copy"):
        Store(tmp_path)


def test_a_missing_setting_is_named(tmp_path):
    with Store(tmp_path, write=True) as store:
        store.write_settings(SETTINGS)
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("DELETE FROM setting WHERE name = 'task'")
    with Store(tmp_path) as store, pytest.raises(StoreError, match="the setting 'task' is missing"):
        store.settings()


UNREADABLE = {
    "configuration": ["", "{", "[1]", '{"evolution": {"lagg": 1}}', '{"seed": -1}'],
    "task": ["null", "[]", '{"name": "x", "colour": 1}'],
    "branches": ["[]", '{"main": 3}', '{"main": {"leaves": ["p q"]}}', '{"main": {"activation": "tanh"}}'],
    "comparison": ["{", '{"seed": 3}'],
    "start": ['["x"]'],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in UNREADABLE.items() for text in texts])
def test_a_setting_that_cannot_be_read_is_named(name, text):
    rows = {**SETTINGS.to_rows(), name: text}
    with pytest.raises(StoreError, match=rf"run: the setting '{name}' cannot be read \(.*Restore the file from a copy"):
        RunSettings.from_rows(rows, Path("run"))


def test_settings_survive_the_store(tmp_path):
    changed = dataclasses.replace(
        SETTINGS,
        task=TaskReference("tabular", {"data": "iris"}, {"main": "baseline/ce"}),
        samples_digest="d",
        untrained=0.25,
        start=(StartVerdict("ce", "p", {"main": None}, "too little gain"),),
        also=("auc",),
        comparison=Comparison(2, ({"label": "#1", "loss": "p"},)),
    )
    with Store(tmp_path, write=True) as store:
        store.write_settings(SETTINGS)
        assert store.settings() == SETTINGS
        for setting in dataclasses.fields(changed):
            store.change_setting(setting.name, getattr(changed, setting.name))
        assert store.settings() == changed


def test_a_full_disk_is_told_once_and_waited_for(tmp_path):
    said: list[str] = []
    with Store(tmp_path, write=True, say=said.append) as store:
        connection = store.database.connection
        connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
        rests: list[float] = []

        def rest(seconds: float) -> None:
            rests.append(seconds)
            if len(rests) == 3:
                connection.execute("PRAGMA max_page_count = 100000")

        store.database.rest = rest
        for number in range(40):
            store.add_candidate(candidate(number), {})
        assert [one.id for one in store.candidates()] == list(range(40))
    assert len(rests) == 3
    assert len(said) == 2
    assert "database or disk is full. Make room on its disk: the run waits and loses nothing" in said[0]
    assert "There is room again" in said[1]


@pytest.mark.parametrize("lock", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_lock_of_another_program_is_told_once_and_waited_for(lock, tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.02)
    said: list[str] = []
    with Store(tmp_path, write=True, say=said.append) as store:
        other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        rests: list[float] = []

        def rest(seconds: float) -> None:
            rests.append(seconds)
            if len(rests) == 2:
                other.execute("ROLLBACK")

        store.database.rest = rest
        store.add_candidate(candidate(0), {})
        other.execute(lock)
        store.add_candidate(candidate(1), {})
        store.add_candidate(candidate(2), {})
        assert [one.id for one in store.candidates()] == [0, 1, 2]
        other.close()
    assert len(rests) == 2
    assert len(said) == 2
    assert "is locked. Another program has locked it" in said[0]
    assert "the run waits and loses nothing" in said[0]
    assert said[1] == "It is no longer locked; the run goes on."


def test_a_file_that_stays_locked_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "OPENING_SECONDS", 0.02)
    Store(tmp_path, write=True).close()
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    for write in (True, False):
        with pytest.raises(StoreError, match=r"Another program has locked it.*try again"):
            Store(tmp_path, write=write)
    other.close()


def test_a_folder_that_may_not_be_written_ends_the_run_in_words(tmp_path):
    with Store(tmp_path, write=True) as store:
        store.database.connection.execute("PRAGMA query_only = 1")
        with pytest.raises(StoreError, match=r"cannot be written: attempt to write a readonly.*autoloss resume"):
            store.add_candidate(candidate(0), {})


@pytest.mark.parametrize(
    "act", [shutil.rmtree, lambda path: shutil.move(path, path.parent / "elsewhere")], ids=["gone", "moved"]
)
def test_a_folder_that_is_moved_or_deleted_ends_the_run_at_once(act, tmp_path):
    (tmp_path / "run").mkdir()
    with Store(tmp_path / "run", write=True) as store:
        store.add_candidate(candidate(0), {})
        act(tmp_path / "run")
        with pytest.raises(StoreError, match=r"was moved, replaced or deleted.*resume it there"):
            store.add_candidate(candidate(1), {})
    if (tmp_path / "elsewhere").exists():
        with Store(tmp_path / "elsewhere", write=True) as store:
            assert [one.id for one in store.candidates()] == [0]


def test_samples_without_room_are_an_error_that_says_so(tmp_path):
    (tmp_path / f"{samples.FILE}.partial").mkdir()
    with pytest.raises(RunError, match=r"cannot be written.*Make room on its disk"):
        samples.save(tmp_path, {})


def test_a_database_of_another_program_is_no_run_and_stays_as_it_is(tmp_path):
    path = tmp_path / "run.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (number)")
        connection.commit()
    before = path.read_bytes()
    for write in (False, True):
        with pytest.raises(StoreError, match="holds the tables of another program"):
            Database(path, write=write)
    assert path.read_bytes() == before
