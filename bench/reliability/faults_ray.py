"""Work that a search on a Ray cluster repeats when nodes are killed; the history stays the same.

python bench/reliability/faults_ray.py --out results/faults_ray.json        about ten minutes on two cores
python bench/reliability/faults_ray.py --quick

The cluster listens on the loopback address only and has a token of its own; only processes started here are ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import itertools
import os
import secrets
import signal
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from autoloss.workers.pool import Workers
from autoloss.workers.process_table import find_descendants
from autoloss.workers.ray_cluster import AUTH_MODE, ISOLATED, QUIET, start_ray_workers
from beside import Measure, beside_clean, run_measures
from output import Figure
from searches import tell

PATIENT = {"RAY_raylet_start_wait_time_s": "120"}
"""On a busy machine a node takes longer to start than Ray waits by default."""
NODES = 3
WORKERS = (1, 2, 4)
DELAYS = (0.0, 0.2)
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_log_monitor": False, "no_monitor": True}


def workers_and_delays(sizes: Namespace) -> list[dict[str, Any]]:
    """Workers 1, 2, 4 on a cluster of four CPUs, with trainings that take a time of their own."""
    counts, delays, evaluations = WORKERS[: sizes.counts], DELAYS[: sizes.delays], sizes.evaluations
    with _cluster(max(counts)) as cluster:
        return [
            beside_clean(
                f"{count} Ray workers, delays to {delay:g} s",
                evaluations,
                lambda perform, count=count: start_ray_workers(perform, count, cluster.address),
                delay_seconds=delay,
            )
            for count in counts
            for delay in delays
        ]


def nodes_killed(sizes: Namespace) -> list[dict[str, Any]]:
    """Three nodes, one of them killed and replaced at intervals."""
    lasting, evaluations = sizes.seconds, sizes.killed_evaluations
    with _cluster(NODES) as cluster:
        killer = _Killer(cluster, sizes.interval_seconds)
        found = beside_clean(
            f"{NODES} Ray nodes, one killed every {sizes.interval_seconds} s",
            evaluations,
            lambda perform: start_ray_workers(perform, NODES, cluster.address),
            delay_seconds=2 * NODES * lasting / evaluations,
            meddle=killer.meddle,
        )
    return [{**found, "kills": killer.kills}]


class _Killer:
    """Kills the oldest node whenever it is due and all are up, and has another one started in its place."""

    def __init__(self, cluster: Any, interval_seconds: float) -> None:
        self.kills = 0
        self._cluster = cluster
        self._between = interval_seconds
        self._due: float | None = None

    def _all_are_up(self) -> bool:
        """Say whether the node that took the place of the last one has joined: on a slow machine that takes long."""
        import ray

        # The head, and those that take jobs.
        return sum(node["Alive"] for node in ray.nodes()) > NODES

    def meddle(self, workers: Workers, done: int) -> None:
        now = time.monotonic()
        if self._due is None:
            # The first evaluation shows that all is up.
            self._due = now + self._between if done else None
        elif now >= self._due and self._all_are_up():
            self._due = now + self._between
            node = self._cluster.list_all_nodes()[1]
            tell(f"killing a node after {done} evaluations")
            self._cluster.remove_node(node, allow_graceful=False)
            self.kills += 1
            self._cluster.add_node(wait=False, **NODE)


def parts_harmed(sizes: Namespace) -> list[dict[str, Any]]:
    """Actors, raylets and whole nodes that are killed, or frozen for a while."""
    rows = []
    with _cluster(NODES) as cluster:
        for (part, find), (done, number) in itertools.product([*PARTS.items()][: sizes.parts], HARMS.items()):
            harm = _Harm(cluster, sizes.harm_seconds, sizes.harms, find, number)
            try:
                found = beside_clean(
                    f"{part} of Ray {done}",
                    sizes.evaluations,
                    lambda perform: start_ray_workers(perform, NODES, cluster.address),
                    # Long enough for all that is to happen.
                    delay_seconds=3 * NODES * (sizes.harms + 1) * sizes.harm_seconds / sizes.evaluations,
                    meddle=harm.meddle,
                )
            finally:
                harm.end()
            rows.append({**found, "harms": harm.done})
    left = [process for process in filter(str.isdigit, os.listdir("/proc")) if _is_of_the_cluster(process)]
    return [{**found, "left": len(left)} for found in rows]


class _Harm:
    """Sends a signal to a part of the oldest node whenever it is due; what is frozen goes on when the next one is due."""

    def __init__(self, cluster: Any, seconds: float, most: int, find: Find, number: signal.Signals) -> None:
        self.done = 0
        self._cluster = cluster
        self._between = seconds
        self._most = most
        self._find = find
        self._number = number
        self._frozen: list[int] = []
        self._due: float | None = None

    def meddle(self, workers: Workers, done: int) -> None:
        now = time.monotonic()
        if self._due is None:
            self._due = now + self._between if done else None
        elif now >= self._due:
            self._due = now + self._between
            if self._frozen:
                self.end()
            elif self.done < self._most and (processes := self._find(self._raylet())):
                tell(f"{self._number.name} to {len(processes)} processes after {done} evaluations")
                _send(processes, self._number)
                self._frozen = processes if self._number is signal.SIGSTOP else []
                self.done += 1
                self._replace_if_gone()

    def end(self) -> None:
        """Let what is frozen go on."""
        _send(self._frozen, signal.SIGCONT)
        self._frozen = []

    def _raylet(self) -> int:
        return self._cluster.list_all_nodes()[1].all_processes["raylet"][0].process.pid

    def _replace_if_gone(self) -> None:
        node = self._cluster.list_all_nodes()[1]
        time.sleep(0.2)
        if node.all_processes["raylet"][0].process.poll() is not None:
            self._cluster.remove_node(node, allow_graceful=False)
            self._cluster.add_node(wait=False, **NODE)


def _send(processes: Sequence[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def _find_actors(raylet: int) -> list[int]:
    """Return the supervisors of workers: what started the reapers, of which workers are forks with the same name."""
    reapers = {}
    for process in find_descendants(raylet):
        with suppress(psutil.Error):
            if "autoloss.workers.reaper" in process.cmdline():
                reapers[process.pid] = process.ppid()
    return list(set(reapers.values()) - reapers.keys())


Find = Callable[[int], list[int]]
PARTS: Mapping[str, Find] = {
    "an actor": _find_actors,
    "a raylet": lambda raylet: [raylet],
    "a node": lambda raylet: [raylet, *(process.pid for process in find_descendants(raylet))],
}
HARMS = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}


def _is_of_the_cluster(process: str) -> bool:
    """Say whether a process has the token of this one's cluster."""
    with suppress(OSError):
        token = os.environ["RAY_AUTH_TOKEN_PATH"].encode()
        return int(process) != os.getpid() and token in Path(f"/proc/{process}/environ").read_bytes()
    return False


@contextmanager
def _cluster(nodes: int) -> Iterator[Any]:
    """Start a head without CPUs and so many nodes with one, and connect this process."""
    import ray
    from ray.cluster_utils import Cluster

    head = {**NODE, "num_cpus": 0, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        if ray.util.get_node_ip_address() != "127.0.0.1":
            raise RuntimeError("The cluster would be seen from outside; it is ended.")
        for _ in range(nodes):
            cluster.add_node(wait=False, **NODE)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


FIGURES = {
    "killed nodes: evaluations": Figure(("rows", {"name": "nodes_killed"}, "trials")),
    "killed nodes": Figure(("rows", {"name": "nodes_killed"}, "kills")),
    "killed nodes: lost": Figure(("rows", {"name": "nodes_killed"}, "lost")),
    "killed nodes: attempts repeated": Figure(("rows", {"name": "nodes_killed"}, "repeated")),
    "killed nodes: history equal": Figure(("rows", {"name": "nodes_killed"}, "history_equal")),
    "workers and delays: lost": Figure(("rows", {"name": "workers_and_delays"}, "lost")),
}
MEASURES: tuple[Measure, ...] = (workers_and_delays, nodes_killed, parts_harmed)


USUAL = {
    "evaluations": 40,
    "killed_evaluations": 300,
    "counts": 3,
    "delays": 2,
    "seconds": 300,
    "interval_seconds": 30,
    "parts": 3,
    "harms": 3,
    "harm_seconds": 15,
}
QUICK = {
    "evaluations": 6,
    "killed_evaluations": 6,
    "counts": 1,
    "delays": 1,
    "seconds": 4,
    "interval_seconds": 3,
    "parts": 1,
    "harms": 1,
    "harm_seconds": 2,
}


def main(argv: Sequence[str] | None = None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        # Before Ray is imported: it reads some of these only then.
        os.environ.update({**QUIET, **ISOLATED, AUTH_MODE: "token", "RAY_AUTH_TOKEN_PATH": str(token), **PATIENT})
        run_measures(__doc__ or "", MEASURES, argv, USUAL, QUICK)


if __name__ == "__main__":
    main()
