"""The experiments on drivers and stores fail where they should: each mutant breaks one promise, and is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest

import autoloss
import faults_clients
import faults_data
import faults_driver
import faults_file
import faults_folders
import faults_sharing
from autoloss.report.page import serving
from promise import Shown

from .mutating import mutated

pytestmark = pytest.mark.experiment

Experiment = Callable[[Path], Shown]
EVALUATIONS = 5


def kills(*points: str) -> Experiment:
    """Kill drivers of the mutant at points, each when it passes one for the third time; compare with an honest run."""
    return lambda folder: faults_driver.kills_at_points(folder, honest(), points, counts=(3,))


def kills_of_one_code(*points: str) -> Experiment:
    """Compare with an undisturbed run of the mutant itself, whose history is another one from the beginning."""

    def experiment(folder: Path) -> Shown:
        return faults_driver.kills_at_points(
            folder, faults_driver.clean(folder / "own", EVALUATIONS), points, counts=(3,)
        )

    return experiment


@lru_cache
def honest() -> faults_driver.Clean:
    """Run undisturbed; asked for before a mutant takes the place of a function."""
    with TemporaryDirectory() as folder:
        return faults_driver.clean(Path(folder), EVALUATIONS)


def damage(folder: Path) -> Shown:
    return faults_file.damaged(folder, flips=100, truncations=0)


def races(folder: Path) -> Shown:
    return faults_sharing.races(folder, 1)


def races_of_the_impatient(folder: Path) -> Shown:
    """Wait no longer than a mutant deserves whose drivers both stay."""
    return faults_sharing.races(folder, 1, patience_seconds=4.0)


def readers(folder: Path) -> Shown:
    return faults_sharing.readers(folder, 4, 40)


def full_disk(folder: Path) -> Shown:
    return faults_file.full_disk(folder, honest(), periods=1, kinds=("quota",))


def synced(folder: Path) -> Shown:
    folder.mkdir(exist_ok=True)
    return Shown(promise="synced", trials=1, violations=tuple(faults_file.synced(folder)))


def clients(*kinds: str) -> Experiment:
    def experiment(folder: Path) -> Shown:
        few = mock.patch.multiple(serving, CONNECTIONS=6), mock.patch.object(faults_clients, "REQUEST_SECONDS", 1.0)
        with few[0], few[1]:
            return faults_clients.hostile_clients(folder, honest(), 1, kinds)

    return experiment


def data(*kinds: str) -> Experiment:
    return lambda folder: faults_data.hostile_files(folder, 100, kinds)


def folders(*kinds: str) -> Experiment:
    return lambda folder: faults_folders.folders(folder, honest(), 1, kinds)


def replayed(folder: Path) -> Shown:
    """Replay a run that honest code made; the mutant is what replays it."""
    found = autoloss.replay(folder / "run")
    return Shown(promise="replay", trials=1, violations=() if found.difference is None else (str(found.difference),))


@dataclass(frozen=True)
class Mutant:
    """A small fault, and the experiment that has to notice.

    Args:
        function: See `mutated`.
        found: A word of the violation where there is one: that it is the right one.
    """

    function: str
    changes: dict[str, str]
    experiment: Experiment
    found: str = ""


MUTANTS = {
    "commit removed": Mutant(
        "autoloss.store.database:Database._try",
        # From the second outcome on.
        {
            'execute("COMMIT")': 'execute("ROLLBACK" if self.connection.execute('
            '"SELECT count(candidate) FROM training").fetchone()[0] == 2 else "COMMIT")'
        },
        kills("outcome-told"),
    ),
    "outcome not kept": Mutant(
        "autoloss.run.loop:run_loop",
        {"store.add_training(job.loss, job.training, outcome, job.candidate)": "pass"},
        kills("outcome-told"),
    ),
    "commits not synced": Mutant(
        "autoloss.store.database:Database._prepare_to_write",
        {"synchronous = FULL": "synchronous = NORMAL"},
        synced,
        "level 1",
    ),
    "samples not synced": Mutant(
        "autoloss.files:commit_file",
        {"os.fsync(file.fileno())": "pass"},
        synced,
        "samples are written by",
    ),
    "lock ignored": Mutant(
        "autoloss.store.store:lock_run",
        {"fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)": "pass"},
        races_of_the_impatient,
    ),
    "owner not named": Mutant(
        "autoloss.store.store:_owner",
        {'return name or "another process"': 'return "another process"'},
        races,
        "does not name",
    ),
    "readers lock": Mutant(
        "autoloss.store.database:Database.__init__",
        {
            "else 'ro'": "else 'rw'",
            "timeout=OPENING_SECONDS": "timeout=0.01",
            # Held for as long as a slow look takes: a short one comes between two commits and is not noticed.
            "if write else None": "if write else (self.connection.execute('BEGIN IMMEDIATE'), time.sleep(0.05))",
        },
        readers,
    ),
    "attempts keyed without their candidate": Mutant(
        "autoloss.proposing.mutation:draw_attempt",
        {'"attempt", candidate, branch, number': '"attempt", branch, number'},
        replayed,
        "differs in loss",
    ),
    "parents keyed by what is known so far": Mutant(
        "autoloss.proposing.view:View.__init__",
        {"k - ledger.lag + 1": "k"},
        replayed,
    ),
    "trainings keyed by their driver": Mutant(
        "autoloss.proposing.history:History._list_trainings",
        {"number, fold)": 'number + __import__("os").getpid(), fold)'},
        kills_of_one_code("outcome-received"),
    ),
    "keys forgotten by a resumed run": Mutant(
        "autoloss.proposing.history:History.restore",
        {'verdicts.record_all(candidate.rejected.get(branch, b""), False)': "pass"},
        kills("outcome-told", "outcome-told"),
    ),
    "checksums not looked at": Mutant(
        "autoloss.store.database:Database.read",
        {"checksum(values[1:-1]) == row[CHECKSUM]": "True"},
        damage,
        "silently wrong",
    ),
    "full disk not waited for": Mutant(
        "autoloss.store.database:Database._transact",
        {"cause = _passing_cause(error)": "cause = None"},
        full_disk,
        "ended with 1",
    ),
    "any host is known": Mutant(
        "autoloss.report.page.serving:_Handler.do_GET",
        {"len(hosts) != 1 or not self.server.knows(hosts[0].strip())": "not hosts"},
        clients("two hosts", "a user before the host"),
        "was answered with",
    ),
    "clients wait for ever": Mutant(
        "autoloss.report.page.serving:Server.service_actions",
        {"if end < now": "if end < 0"},
        clients("drips bytes"),
        "takes its time",
    ),
    "any number of clients": Mutant(
        "autoloss.report.page.serving:Server.verify_request",
        {">= CONNECTIONS": ">= 1000"},
        clients("opens many connections"),
        "connections were open",
    ),
    "weights that run": Mutant(
        "autoloss.tasks.weights:load_state_dict",
        {"weights_only=True": "weights_only=False"},
        data("weights"),
        "a program",
    ),
    "JSON without a bottom": Mutant(
        "autoloss.files:parse_json",
        {"except RecursionError": "except MemoryError"},
        data("file beside a run"),
        "RecursionError",
    ),
    "a folder that is gone": Mutant(
        "autoloss.store.database:Database.append",
        {"not self.in_place": "False"},
        folders("moved"),
        "nobody",
    ),
    "a folder that is locked": Mutant(
        "autoloss.store.store:lock_run",
        {"raise RequestError(": "raise OSError("},
        folders("made read-only"),
        "ended with 1",
    ),
    "trainings keyed by the time": Mutant(
        "autoloss.proposing.history:History._list_trainings",
        {"number, fold)": 'number + (__import__("time").time() > 2e9), fold)'},
        folders("under a clock that jumps"),
        "another history",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_caught(name, tmp_path):
    mutant = MUTANTS[name]
    if mutant.experiment is replayed:
        faults_driver.driven_here(tmp_path / "run", 12)
        assert replayed(tmp_path).kept
    honest()
    with mutated(mutant.function, mutant.changes):
        shown = mutant.experiment(tmp_path)
    assert not shown.kept
    assert any(mutant.found in text for text in shown.violations) or not mutant.found


def test_a_mutant_that_changes_nothing_is_an_error():
    with pytest.raises(LookupError, match="0 times"), mutated("autoloss.store.database:checksum", {"no such text": ""}):
        pass


def test_the_honest_code_is_back_afterwards():
    from autoloss.store.database import checksum

    honest = checksum([1])
    with mutated("autoloss.store.database:checksum", {"digest_size=8": "digest_size=4"}):
        assert len(checksum([1])) == 8
    assert checksum([1]) == honest
