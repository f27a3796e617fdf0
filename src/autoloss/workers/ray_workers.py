"""Workers on a Ray cluster: each slot is an actor that supervises one process on its node.

What a job needs travels once to each node, through Ray's object store. Rejection and training share the slots; a slot asks
for one CPU, or for a share of a GPU as well when the task trains on one.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

from autoloss.errors import RequestError
from autoloss.workers.leases import LeasedWorkers
from autoloss.workers.messages import seal
from autoloss.workers.ray_access import ALONE, AUTH_MODE, AUTO, LOOPBACK, QUIET, token_in, variables
from autoloss.workers.seats import Attendant, Cluster, Command, Gone, News, Opened, Unfit

STORE_BYTES = 128 << 20
"""Least room of the object store of a cluster that is started here."""


def ray_workers(
    perform: Callable[[Any], Any],
    slots: int,
    address: str,
    *,
    on_gpu: bool = False,
    memory_limit_bytes: int | None = None,
) -> LeasedWorkers:
    """Return workers on a cluster that `refuse_unusable` lets pass.

    Args:
        address: `auto` starts a cluster on this machine's loopback address and ends it again; anything else is the
            host:port of one that is there, with this process on one of its nodes.
        on_gpu: Whether jobs train on a GPU.
        memory_limit_bytes: Of each worker's processes.

    Raises:
        RequestError: The cluster is not there, or lacks the GPUs.
    """
    frame = seal(Opened(perform))
    if address == AUTO:
        cluster = RayCluster.started(frame, slots, on_gpu=on_gpu, memory_limit_bytes=memory_limit_bytes)
    else:
        cluster = RayCluster.joined(frame, slots, address, on_gpu=on_gpu, memory_limit_bytes=memory_limit_bytes)
    return LeasedWorkers(cluster, slots)


@final
class RayCluster(Cluster):
    """Seats as actors; made by `started` or `joined`.

    Args:
        owned: What ends with these workers: the connection to Ray, and a cluster that was started for them.
    """

    def __init__(
        self,
        ray: ModuleType,
        owned: contextlib.ExitStack,
        frame: bytes,
        slots: int,
        on_gpu: bool,
        memory_limit_bytes: int | None,
    ) -> None:
        self._ray = ray
        self._memory_limit_bytes = memory_limit_bytes
        self._share = gpu_share(slots, ray.cluster_resources().get("GPU", 0.0)) if on_gpu else 0.0
        if on_gpu and not self._share:
            raise RequestError(
                f"The task trains on a GPU, and the cluster has none. {self.describe()} Use --device cpu."
            )
        self._frame = ray.put(frame)
        self._seats = ray.remote(
            num_cpus=1, num_gpus=self._share, max_restarts=0, max_task_retries=0, scheduling_strategy="SPREAD"
        )(Attendant)
        # From here on it is this object's to close.
        self._owned = owned.pop_all()

    @classmethod
    def started(cls, frame: bytes, slots: int, *, on_gpu: bool, memory_limit_bytes: int | None) -> RayCluster:
        """Start a cluster on the loopback address, with a token of its own."""
        with contextlib.ExitStack() as owned:
            folder = Path(tempfile.mkdtemp(prefix="autoloss-ray-"))
            owned.callback(shutil.rmtree, folder, ignore_errors=True)
            owned.enter_context(variables({**QUIET, **ALONE, **token_in(folder)}))
            ray = _imported()
            if ray.is_initialized():
                raise RequestError(
                    "This process is connected to a Ray cluster already. Name its address in place of auto, or call ray.shutdown()."
                )
            found = ray.util.get_node_ip_address()
            if found != LOOPBACK:
                asked = {**ALONE, AUTH_MODE: "token"}
                raise RequestError(
                    f"Ray was imported before autoloss could tell it to stay on this machine: it would listen on {found}. "
                    f"Import it later, or set {' '.join(f'{name}={value}' for name, value in asked.items())} for this process."
                )
            _connect(
                ray,
                owned,
                address="local",
                num_cpus=slots,
                include_dashboard=False,
                object_store_memory=max(STORE_BYTES, 2 * len(frame)),
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder),
            )
            return cls(ray, owned, frame, slots, on_gpu, memory_limit_bytes)

    @classmethod
    def joined(
        cls, frame: bytes, slots: int, address: str, *, on_gpu: bool, memory_limit_bytes: int | None
    ) -> RayCluster:
        """Use a cluster that is there; a connection that this process has already is used and kept."""
        with contextlib.ExitStack() as owned:
            owned.enter_context(variables(QUIET))
            ray = _imported()
            if not ray.is_initialized():
                _connect(ray, owned, address=address)
            elif ray.get_runtime_context().gcs_address != address:
                raise RequestError(
                    f"This process is connected to the Ray cluster at {ray.get_runtime_context().gcs_address}, not to {address}. "
                    "Name that one, or call ray.shutdown()."
                )
            return cls(ray, owned, frame, slots, on_gpu, memory_limit_bytes)

    def open(self) -> Any:
        return self._seats.remote(self._frame, self._memory_limit_bytes)

    def call(self, seat: Any, command: Command) -> Any:
        return seat.turn.remote(command)

    def wait(self, calls: Sequence[Any], timeout_seconds: float) -> Sequence[tuple[Any, News]]:
        if not calls:
            threading.Event().wait(timeout_seconds)
            return []
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=timeout_seconds)
        if ready:
            # The others that are there by now as well.
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [(call, self._news(call)) for call in ready]

    def end(self, seat: Any) -> None:
        # A seat on a lost node cannot be killed; its node is gone, or will be told when it is back.
        with contextlib.suppress(Exception):
            self._ray.kill(seat, no_restart=True)

    def close(self) -> None:
        self._owned.close()

    def describe(self) -> str:
        found = self._ray.cluster_resources()
        asked = "1 CPU" + (f" and {self._share:g} GPU" if self._share else "")
        return f"It has {found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs; a worker asks for {asked}."

    def _news(self, call: Any) -> News:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.OutOfMemoryError as error:
            return Gone("memory", _first_lines(error))
        except errors.RayTaskError as error:
            return Unfit(f"A worker on the cluster fails: {error}")
        except errors.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                return Unfit(f"A worker could not start on the cluster: {error}")
            return Gone("node", _first_lines(error))
        except errors.RayError as error:
            # A lost object, a worker that crashed, a raylet that is gone: never the fault of what was computed.
            return Gone("node", f"{type(error).__name__}: {_first_lines(error)}")


def gpu_share(slots: int, gpus: float) -> float:
    """Return what a slot asks of a GPU, so that all slots fit and none lies across two."""
    if not gpus:
        return 0.0
    # Ray counts in steps of 0.0001.
    return math.floor(10_000 / math.ceil(slots / gpus)) / 10_000


def _imported() -> ModuleType:
    """Import Ray, once its variables are set."""
    import ray

    return ray


def _connect(ray: ModuleType, owned: contextlib.ExitStack, **how: Any) -> None:
    with _handlers_kept():
        try:
            ray.init(log_to_driver=False, configure_logging=False, **how)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RequestError(f"The Ray cluster at {how['address']} cannot be used: {error}") from error
    owned.enter_context(complaints_to_stderr(ray))
    owned.callback(ray.shutdown)


@contextlib.contextmanager
def complaints_to_stderr(ray: ModuleType) -> Iterator[None]:
    """Have what Ray says of lost nodes written to stderr, by its first line; it prints pages to stdout, where results go."""
    place, name = ray._private.worker, "print_to_stdstream"
    before = getattr(place, name, None)

    def complain(data: Mapping[str, Any], *_: Any, **__: Any) -> None:
        lines = [str(text).partition("\n")[0] for text in data.get("lines", ())]
        print("\n".join(f"ray: {text}" for text in lines), file=sys.stderr, flush=True)

    if before is not None:
        setattr(place, name, complain)
    try:
        yield
    finally:
        if before is not None:
            setattr(place, name, before)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Give signals back their handlers: Ray's would end this process without a word to its owner."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split("\n")[:2])
