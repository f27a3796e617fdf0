"""What a Ray cluster that loses nodes changes in a history (nothing): three nodes, one killed every 30 s, and workers 1, 2, 4.

python bench/faults_ray.py --out results/faults_ray.json        about ten minutes on two cores
python bench/faults_ray.py --quick

Everything stays on the loopback address, with a token of its own; only what was started here is ended.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoloss.workers.pool import Workers
from autoloss.workers.ray_cluster import AUTH_MODE, ISOLATED, QUIET, start_ray_workers
from beside import Measure, beside_clean, main
from searches import tell

NODES = 3
BETWEEN_KILLS_SECONDS = 30.0
LASTING_SECONDS = 300.0
WORKERS = (1, 2, 4)
DELAYS = (0.0, 0.2)
NODE = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_log_monitor": False, "no_monitor": True}


def workers_and_delays(quick: bool) -> list[dict[str, Any]]:
    """Workers 1, 2, 4 on a cluster of four CPUs, with trainings that take a time of their own."""
    counts, delays = (WORKERS[:2], DELAYS[:1]) if quick else (WORKERS, DELAYS)
    evaluations = 10 if quick else 40
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


def nodes_killed(quick: bool) -> list[dict[str, Any]]:
    """Three nodes, one of them killed every 30 s and replaced, for 5 minutes."""
    lasting, evaluations = (40.0, 30) if quick else (LASTING_SECONDS, 300)
    with _cluster(NODES) as cluster:
        killer = _Killer(cluster, quick)
        found = beside_clean(
            f"{NODES} Ray nodes, one killed every {BETWEEN_KILLS_SECONDS:g} s",
            evaluations,
            lambda perform: start_ray_workers(perform, NODES, cluster.address),
            delay_seconds=2 * NODES * lasting / evaluations,
            meddle=killer.meddle,
        )
    return [{**found, "kills": killer.kills}]


class _Killer:
    """Kills the oldest node whenever it is due and all are up, and has another one started in its place."""

    def __init__(self, cluster: Any, quick: bool) -> None:
        self.kills = 0
        self._cluster = cluster
        self._between = 15.0 if quick else BETWEEN_KILLS_SECONDS
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


MEASURES: tuple[Measure, ...] = (workers_and_delays, nodes_killed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32), encoding="ascii")
        # Before Ray is imported: it reads some of these only then.
        os.environ.update({**QUIET, **ISOLATED, AUTH_MODE: "token", "RAY_AUTH_TOKEN_PATH": str(token)})
        main(__doc__, MEASURES, quick="few evaluations, one node killed")
