"""Workers on a Ray cluster: the same contract, the same history, and nothing that others can reach.

One test starts one cluster for all checks. Skipped where Ray is not installed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.store.store import Store
from autoloss.workers import ray_cluster
from autoloss.workers.leases import LeasedWorkers
from autoloss.workers.messages import Finished, JobOutcome, Lost, Raised
from autoloss.workers.pool import JobFunction, Workers
from autoloss.workers.ray_cluster import check_address, gpu_share, start_ray_workers
from histories import as_text
from tests.run.quick import SETTINGS, QuickTask

from . import conformance
from .conformance import PROMISES, closed_workers_return_nothing_and_close_twice, outcomes_of
from .test_process_workers import call
from .test_worker_faults import is_gone, loop_in_c, stop_group

cloudpickle.register_pickle_by_value(sys.modules[__name__])
cloudpickle.register_pickle_by_value(conformance)

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (pip install autoloss[ray])")
# Imported here, Ray would not learn of the variables that keep it on the loopback address.


HANDLED = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Cluster:
    """What the checks share.

    Args:
        workers: Two, which perform what they get when it can be called; the cluster is theirs.
        folder: Of this test.
        handlers: Of signals, before the cluster was started.
    """

    workers: LeasedWorkers
    address: str
    folder: Path
    handlers: dict[int, Any]

    def make_room(self) -> None:
        """End the idle supervisors: on a slow machine one that was lost is back already and holds the last CPU."""
        for slot in self.workers._slots:
            self.workers._vacate(slot)

    def start(self, function: JobFunction) -> LeasedWorkers:
        self.make_room()
        return start_ray_workers(function, 1, self.address)


class Lent(Workers):
    """The cluster's workers, which get a function with each of its jobs: a supervisor takes seconds to start."""

    def __init__(self, workers: LeasedWorkers, function: JobFunction) -> None:
        self._workers, self._function = workers, function

    @property
    def slots(self) -> int:
        return self._workers.slots

    @property
    def busy(self) -> Collection[int]:
        return self._workers.busy

    def submit(self, job: int, payload: Any, *, deadline_seconds: float) -> None:
        self._workers.submit(job, partial(self._function, payload), deadline_seconds=deadline_seconds)

    def wait(self, timeout_seconds: float | None = None) -> list[JobOutcome]:
        return self._workers.wait(timeout_seconds)

    def cancel(self, job: int) -> None:
        self._workers.cancel(job)

    def close(self) -> None:
        while self._workers.busy:
            self._workers.wait()


def jobs_come_back_once_and_survive_what_happens_to_their_processes(cluster: Cluster) -> None:
    workers = cluster.workers
    outcomes = outcomes_of(workers, [lambda n=n: (n, os.getpid()) for n in range(20)])
    assert [outcome.value[0] for outcome in outcomes] == list(range(20))
    groups = tuple({outcome.value[1] for outcome in outcomes})
    workers.submit(20, loop_in_c, deadline_seconds=0.5)
    workers.submit(21, stop_group, deadline_seconds=0.5)
    lost = [*workers.wait(None), *workers.wait(None)][:2]
    assert [outcome.cause for outcome in lost if isinstance(outcome, Lost)] == ["deadline"] * 2
    assert is_gone(groups, 2.0)
    assert isinstance(outcomes_of(workers, [lambda: 1])[0], Finished)


def a_supervisor_that_is_killed_costs_its_job_and_is_replaced(cluster: Cluster) -> None:
    workers = cluster.workers
    # Between a supervisor and its worker is a reaper.
    reaper = outcomes_of(workers, [os.getppid])[0].value
    supervisor = int(Path(f"/proc/{reaper}/stat").read_text().rpartition(")")[2].split()[1])
    for job in (1, 2):
        workers.submit(job, lambda: time.sleep(60), deadline_seconds=60)
    workers.wait(0.2)
    os.kill(supervisor, signal.SIGKILL)
    (lost,) = workers.wait(None)
    assert isinstance(lost, Lost)
    assert lost.cause == "node"
    (left,) = workers.busy
    workers.cancel(left)
    assert isinstance(outcomes_of(workers, [lambda: 1])[0], Finished)


def ray_workers_keep_the_contract_of_all_workers(cluster: Cluster) -> None:
    for promise in PROMISES:
        if promise is closed_workers_return_nothing_and_close_twice:
            promise(cluster.start)
        else:
            promise(partial(Lent, cluster.workers))


def what_cannot_be_loaded_is_told_with_its_reason(cluster: Cluster) -> None:
    def refuse():
        raise ModuleNotFoundError("No module named 'nowhere'")

    with cluster.start(call(refuse)) as workers:
        (outcome,) = outcomes_of(workers, [1])
    assert isinstance(outcome, Raised)
    assert outcome.at_start
    assert "No module named 'nowhere'" in outcome.message


def the_history_on_ray_is_the_one_of_this_process(cluster: Cluster) -> None:
    cluster.make_room()
    lines = []
    for name, how in {"here": {"workers": 0}, "ray": {"workers": 2, "ray": cluster.address}}.items():
        found = autoloss.search(
            QuickTask(delay_seconds=0.05),
            evaluations=6,
            seed=3,
            directory=cluster.folder / name,
            settings=SETTINGS,
            final=False,
            **how,
        )
        lines.append(list(as_text(found.history)))
    assert lines[0] == lines[1]


def a_cluster_of_its_own_listens_on_the_loopback_address_alone(cluster: Cluster) -> None:
    listening = _listening(
        {int(name) for name in os.listdir("/proc") if name.isdigit() and _is_of_the_cluster(int(name))}
    )
    assert len(listening) > 3
    assert all(host in LOOPBACKS for host in listening), listening


def a_cluster_of_its_own_asks_for_a_token_that_only_this_user_can_read(cluster: Cluster) -> None:
    assert os.environ["RAY_AUTH_MODE"] == "token"
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    # Ray opens its own folder to everybody.
    assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
    assert len(token.read_text()) == 64
    assert not ray_cluster.answers_without_token(cluster.address)


def the_handlers_of_signals_are_still_ours(cluster: Cluster) -> None:
    assert {number: signal.getsignal(number) for number in HANDLED} == cluster.handlers


# A dozen processes have to start, and more after each that is killed: on a machine that is busy that takes long.
@pytest.mark.timeout(900)
@needs_ray
def test_workers_on_a_cluster_that_is_started_for_them(
    subtests: pytest.Subtests, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    with start_ray_workers(lambda payload: payload(), 2, "auto") as workers:
        import ray

        cluster = Cluster(workers, ray.get_runtime_context().gcs_address, tmp_path, handlers)
        for check in (
            the_handlers_of_signals_are_still_ours,
            jobs_come_back_once_and_survive_what_happens_to_their_processes,
            a_supervisor_that_is_killed_costs_its_job_and_is_replaced,
            a_cluster_of_its_own_listens_on_the_loopback_address_alone,
            a_cluster_of_its_own_asks_for_a_token_that_only_this_user_can_read,
            what_cannot_be_loaded_is_told_with_its_reason,
            ray_workers_keep_the_contract_of_all_workers,
            the_history_on_ray_is_the_one_of_this_process,
        ):
            with subtests.test(check.__name__):
                check(cluster)
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert not token.parent.exists()
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ
    assert not ray.is_initialized()
    # Results go to stdout, so Ray may not print there, whatever it has to say of what was killed.
    assert capfd.readouterr().out == ""


DRIVER = """
import sys
sys.path[:0] = {path!r}
import autoloss
from tests.run.quick import SETTINGS, QuickTask

if __name__ == "__main__":
    task = QuickTask(delay_seconds=0.3)
    autoloss.search(task, evaluations=500, ray="auto", workers=1, settings=SETTINGS, directory={run!r}, final=False)
"""


@pytest.mark.timeout(300)
@needs_ray
def test_a_lost_cluster_ends_the_search_with_one_sentence_and_leaves_nothing(tmp_path: Path):
    script, temporary, run = tmp_path / "driver.py", Path(tempfile.mkdtemp(prefix="t")), tmp_path / "run"
    script.write_text(DRIVER.format(path=sys.path, run=str(run)))
    variables = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True, env=variables) as driver:
        while not raylets(temporary):
            assert driver.poll() is None
            time.sleep(0.1)
        while not (run / "run.sqlite").exists() or not trained(run):
            assert driver.poll() is None
            time.sleep(0.1)
        for process in raylets(temporary):
            os.kill(process, signal.SIGKILL)
        _, said = driver.communicate()
    assert driver.returncode == 1
    assert f"Go on with: autoloss resume {run}" in said
    assert "Traceback" not in said
    end = time.monotonic() + 20
    while any(temporary.iterdir()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(temporary.iterdir())
    temporary.rmdir()


def raylets(folder: Path) -> list[int]:
    """Return the raylets whose files are in a folder."""
    found = []
    for place in (Path("/proc", name) for name in filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):
            words = (place / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"/raylet") and any(str(folder).encode() in word for word in words):
                found.append(int(place.name))
    return found


def trained(run: Path) -> bool:
    with Store(run) as store:
        return bool(store.texts()) and bool(store.outcomes())


LOOPBACKS = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1 as /proc writes it, plain and in IPv6, and ::1."""


def _is_of_the_cluster(pid: int) -> bool:
    """Say whether a process belongs to the cluster that this process started."""
    token = os.environ["RAY_AUTH_TOKEN_PATH"].encode()
    with contextlib.suppress(OSError):
        return pid == os.getpid() or token in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _listening(pids: set[int]) -> list[str]:
    """Return the addresses at which processes take TCP connections, as /proc writes them."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for row in Path(table).read_text().splitlines()[1:]:
            fields = row.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                found.append(fields[1].partition(":")[0])
    return found


# What needs no cluster


@needs_ray
@pytest.mark.parametrize(
    ("address", "expected"),
    {
        "10.1.2.3:6379": "is not on the loopback address and uses no token. Start it with RAY_AUTH_MODE=token",
        "head.example:6379": "allow it with ray_insecure",
        "ray://10.1.2.3:10001": "expected auto, or host:port of a cluster with this process on one of its nodes",
        "somewhere": "ray is 'somewhere'; expected auto, or host:port",
    }.items(),
)
def test_an_open_cluster_is_refused_before_anything_starts(address: str, expected: str, monkeypatch, tmp_path):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(RequestError, match=expected):
        autoloss.search(QuickTask(), ray=address, directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@needs_ray
def test_a_cluster_that_answers_without_a_token_is_refused_even_to_who_has_one(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setattr(ray_cluster, "answers_without_token", lambda address: True)
    with pytest.raises(RequestError, match=r"10\.1\.2\.3:6379 .*without a token"):
        check_address("10.1.2.3:6379", insecure=False)
    check_address("10.1.2.3:6379", insecure=True)
    check_address("127.0.0.1:6379", insecure=False)


def test_without_ray_the_request_says_what_to_install(monkeypatch):
    monkeypatch.setattr(ray_cluster.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RequestError, match=r"Install it: pip install autoloss\[ray\]"):
        check_address("auto", insecure=False)


@pytest.mark.parametrize(
    ("slots", "gpus", "share"), [(8, 8, 1), (16, 8, 0.5), (12, 8, 0.5), (3, 1, 0.3333), (2, 8, 1), (4, 0, 0)]
)
def test_slots_share_gpus_so_that_all_fit_and_none_lies_across_two(slots: int, gpus: float, share: float):
    assert gpu_share(slots, gpus) == share
