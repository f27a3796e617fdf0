"""Workers on a Ray cluster: each slot is an actor that supervises one process on its node.

What a job needs travels once to each node, through Ray's object store. Rejection and training share the slots; a slot asks
for one CPU, or for a share of a GPU as well when the task trains on one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, final

from autoloss.errors import RequestError, RunError
from autoloss.run.leases import LeasedWorkers
from autoloss.run.messages import sealed
from autoloss.run.seats import Attendant, Cluster, Command, Gone, News, Opened, Unfit

AUTO = "auto"
LOOPBACK = "127.0.0.1"
STORE_BYTES = 128 << 20
"""Least room of the object store of a cluster that is started here."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise Ray hides GPUs from actors that ask for none, and says so.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
ALONE = {
    # Ray's switch for systems whose firewalls would ask: everything binds to the loopback address.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
AUTH_MODE = "RAY_AUTH_MODE"
PROBE_SECONDS = 30.0


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
    frame = sealed(Opened(perform))
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
            owned.enter_context(_variables({**QUIET, **ALONE, **_token(folder)}))
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
            owned.enter_context(_variables(QUIET))
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


def refuse_unusable(address: str, *, insecure: bool) -> None:
    """Refuse what can be refused before anything starts.

    A cluster that others can reach and that asks nobody who they are is not used: whoever reaches it runs code as its user.

    Args:
        address: As `ray_workers` takes it.
        insecure: Use it all the same.

    Raises:
        RequestError: Ray is missing, or the address is none of a cluster that can be used.
    """
    if importlib.util.find_spec("ray") is None:
        raise RequestError("--ray needs Ray, which is not installed. Install it: pip install autoloss[ray]")
    if address == AUTO:
        return
    if "://" in address or ":" not in address:
        raise RequestError(
            f"--ray takes auto, or host:port of a cluster with this process on one of its nodes; found {address!r}. "
            "Start the search on a node of the cluster: ray start --address=HEAD:6379, then --ray HEAD:6379."
        )
    if insecure or _is_loopback(address.rpartition(":")[0]):
        return
    advice = (
        "Start it with RAY_AUTH_MODE=token on every node (Ray ≥ 2.52), and this command too; or, in a network where you trust "
        "everybody, add --ray-insecure."
    )
    if not _has_token():
        raise RequestError(
            f"The Ray cluster at {address} is not on the loopback address, and no token is used. {advice}"
        )
    if _answers_anybody(address):
        raise RequestError(
            f"The Ray cluster at {address} takes commands without a token from whoever reaches it. {advice}"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _answers_anybody(address: str) -> bool:
    """Ask a cluster for its state without a token."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    asked = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        found = subprocess.run(
            asked, env={**variables, AUTH_MODE: "disabled"}, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"The Ray cluster at {address} did not answer within {PROBE_SECONDS:g} s.") from error
    return found.returncode == 0


def _has_token() -> bool:
    return os.environ.get(AUTH_MODE, "").lower() == "token"


def _token(folder: Path) -> Mapping[str, str]:
    """Return what has Ray ask for a token: the person's own, or else a new one in a file that only this user can read."""
    if _has_token():
        return {}
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(_secret())
    return {AUTH_MODE: "token", "RAY_AUTH_TOKEN_PATH": str(path)}


@cache
def _secret() -> str:
    """Draw a token, once: Ray reads it once per process and stays with it."""
    return secrets.token_hex(32)


@contextlib.contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


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
