"""Workers on a Ray cluster: each slot is an actor that supervises one worker process on its node.

The function, with the task and its data, travels once to each node through Ray's object store. A worker asks for one CPU, and for
a share of a GPU if the task trains on one. An open cluster, which runs code for anyone who reaches it, is refused.
"""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

from autoloss.errors import RequestError, RunError
from autoloss.workers.leases import Cluster, Heartbeat, LeasedWorkers, Request, Supervisor
from autoloss.workers.messages import START, Lost, Raised, encode_function
from autoloss.workers.pool import JobFunction
from autoloss.workers.ray_keeper import keeper

AUTO = "auto"
LOOPBACK = "127.0.0.1"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise Ray hides GPUs from actors that ask for none, and says so.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Ray prints messages about lost nodes to stdout, where results go; these variables suppress them.
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
"""Environment variables that Ray reads when it is imported."""
# Ray's switch for systems whose firewalls would ask: everything binds to the loopback address.
ISOLATED = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
AUTH_MODE = "RAY_AUTH_MODE"
TOKEN = secrets.token_hex(32)
"""One for all clusters of this process: Ray reads it once and keeps it."""
PROBE_SECONDS = 30.0
STORE_BYTES = 128 << 20
"""Least size of the object store of a cluster that is started here."""


def check_address(address: str, *, insecure: bool) -> None:
    """Check the address of a cluster before anything starts.

    Args:
        address: As `start_ray_workers` takes it.
        insecure: Also accept a cluster that asks for no token.
    """
    if address != AUTO and ("://" in address or ":" not in address):
        raise RequestError(
            f"ray is {address!r}; expected auto, or host:port of a cluster with this process on one of its nodes. "
            "Run ray start --address=HEAD:6379 on this machine, then set ray to HEAD:6379."
        )
    if importlib.util.find_spec("ray") is None:
        raise RequestError(f"ray is {address!r}, and Ray is not installed. Install it: pip install autoloss[ray]")
    if insecure or address == AUTO or _is_loopback(address.rpartition(":")[0]):
        return
    advice = (
        "Start it with RAY_AUTH_MODE=token on every node (Ray ≥ 2.52), and this process too; or, in a network where you trust "
        "everyone, allow it with ray_insecure."
    )
    if not _has_token():
        raise RequestError(f"The Ray cluster at {address} is not on the loopback address and uses no token. {advice}")
    if answers_without_token(address):
        raise RequestError(f"The Ray cluster at {address} accepts commands without a token. {advice}")


def start_ray_workers(
    function: JobFunction,
    slots: int,
    address: str,
    *,
    on_gpu: bool = False,
    memory_limit_bytes: int | None = None,
    resume: str = "the command that resumes it",
) -> LeasedWorkers:
    """Start workers on a cluster that passed `check_address`.

    Args:
        address: `auto` starts a cluster on this machine's loopback address, which `close` ends; anything else is the
            host:port of an existing one, with this process on one of its nodes.
        on_gpu: Whether jobs train on a GPU.
        memory_limit_bytes: Resident memory allowed for each worker's process group.
        resume: Command that resumes the run; printed if the cluster is lost and Ray ends this process.
    """
    frame = encode_function(function)
    with contextlib.ExitStack() as owned:
        lost = (
            f"The search ended: Ray lost the node at {address} on which it ran, or its process was killed. Everything finished is "
            f"saved. Go on with: {resume}"
        )
        if address == AUTO:
            ray = _start_cluster(owned, slots, len(frame), lost)
        else:
            owned.enter_context(keeper(lost))
            ray = _join_cluster(owned, address)
        share = gpu_share(slots, ray.cluster_resources().get("GPU", 0.0)) if on_gpu else 0.0
        if on_gpu and not share:
            raise RequestError(f"The task trains on a GPU, and the Ray cluster at {address} has none. Use the CPU.")
        arguments = ray.put(frame), memory_limit_bytes
        return LeasedWorkers(RayCluster(ray, arguments, share, owned.pop_all()), slots)


def gpu_share(slots: int, gpus: float) -> float:
    """Return the share of a GPU for a slot, such that all slots fit and none is spread over two GPUs.

    >>> gpu_share(16, 8)
    0.5
    """
    if not gpus:
        return 0.0
    # Ray counts in steps of 0.0001.
    return math.floor(10_000 / math.ceil(slots / gpus)) / 10_000


@final
class RayCluster(Cluster):
    """Supervisors as actors.

    Args:
        arguments: Those of a `Supervisor`.
        share: Share of a GPU for each supervisor.
        owned: Closed with the cluster: the connection to Ray, and a cluster that was started for it.
    """

    def __init__(
        self, ray: ModuleType, arguments: tuple[Any, int | None], share: float, owned: contextlib.ExitStack
    ) -> None:
        self._ray = ray
        self._arguments = arguments
        self._share = share
        self._owned = owned
        options = {"num_cpus": 1, "num_gpus": share, "max_restarts": 0, "max_task_retries": 0}
        self._actor = ray.remote(**options, scheduling_strategy="SPREAD")(Supervisor)

    def start(self) -> Any:
        with self._asking():
            return self._actor.remote(*self._arguments)

    def call(self, supervisor: Any, request: Request | None) -> Any:
        with self._asking():
            return supervisor.beat.remote(request)

    def wait(self, calls: Sequence[Any], timeout_seconds: float) -> Sequence[tuple[Any, Heartbeat | Lost | Raised]]:
        if not calls:
            threading.Event().wait(timeout_seconds)
            return []
        with self._asking():
            ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=timeout_seconds)
            if ready:
                # Also take the other calls that are answered by now.
                ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [(call, self._answer(call)) for call in ready]

    def end(self, supervisor: Any) -> None:
        # An actor on a lost node cannot be killed; Ray ends it when its node is back.
        with contextlib.suppress(Exception):
            self._ray.kill(supervisor, no_restart=True)

    def close(self) -> None:
        self._owned.close()

    def describe(self) -> str:
        found = self._ray.cluster_resources()
        asked = "1 CPU" + (f" and {self._share:g} GPU" if self._share else "")
        return f"It has {found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs; a worker asks for {asked}."

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn the exceptions that Ray raises when the whole cluster is lost into an error of the run."""
        try:
            yield
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            raise RunError(f"The Ray cluster was lost: {_first_lines(error)} Resume the run.") from error

    def _answer(self, call: Any) -> Heartbeat | Lost | Raised:
        errors = self._ray.exceptions
        try:
            return self._ray.get(call)
        except errors.OutOfMemoryError as error:
            return Lost(START, "memory", _first_lines(error), 0.0)
        except errors.RayTaskError as error:
            return Raised(START, f"A worker on the cluster fails: {error}", "", 0.0)
        except errors.RayError as error:
            if isinstance(error, errors.RayActorError) and error.actor_init_failed:
                return Raised(START, f"A worker could not start on the cluster: {error}", "", 0.0)
            # A lost actor or object, a crashed worker, a lost raylet: never the fault of the job's code.
            return Lost(START, "node", f"{type(error).__name__}: {_first_lines(error)}", 0.0)


def _start_cluster(owned: contextlib.ExitStack, slots: int, function_bytes: int, lost: str) -> ModuleType:
    """Start a cluster on the loopback address, with its own token.

    Args:
        lost: Message printed when Ray ends this process.
    """
    # A folder that only this user can enter.
    folder = Path(tempfile.mkdtemp(prefix="autoloss-ray-"))
    owned.enter_context(keeper(lost, folder))
    _set_variables(owned, {**QUIET, **ISOLATED, **_token_in(folder)})
    import ray

    if ray.is_initialized():
        raise RequestError("A Ray cluster is connected already. Name its address, or call ray.shutdown() first.")
    found = ray.util.get_node_ip_address()
    if found != LOOPBACK:
        asked = " ".join(f"{name}={value}" for name, value in {**ISOLATED, AUTH_MODE: "token"}.items())
        raise RequestError(
            f"Ray was imported before autoloss could tell it to stay on this machine: it would listen on {found}. "
            f"Import it later, or set {asked} for this process."
        )
    _connect(
        owned,
        address="local",
        num_cpus=slots,
        include_dashboard=False,
        object_store_memory=max(STORE_BYTES, 2 * function_bytes),
        _node_ip_address=LOOPBACK,
        # Ray opens its own folder to all users; the folder around it is closed to them.
        _temp_dir=str(folder / "ray"),
    )
    return ray


def _join_cluster(owned: contextlib.ExitStack, address: str) -> ModuleType:
    """Connect to an existing cluster; an existing connection of this process is used and kept."""
    _set_variables(owned, QUIET)
    import ray

    if not ray.is_initialized():
        _connect(owned, address=address)
    elif (connected := ray.get_runtime_context().gcs_address) != address:
        raise RequestError(f"Ray is connected to {connected}, not to {address}. Name that one, or call ray.shutdown().")
    return ray


def _connect(owned: contextlib.ExitStack, **options: Any) -> None:
    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(log_to_driver=False, configure_logging=False, **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RequestError(f"The Ray cluster at {options['address']} cannot be used: {error}") from error
    finally:
        # Ray's handlers would end this process before it can say how to resume.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
    owned.callback(ray.shutdown)


def _set_variables(owned: contextlib.ExitStack, values: Mapping[str, str]) -> None:
    for name, value in values.items():
        if (before := os.environ.get(name)) is None:
            owned.callback(os.environ.pop, name, None)
        else:
            owned.callback(os.environ.__setitem__, name, before)
        os.environ[name] = value


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def answers_without_token(address: str) -> bool:
    """Return True if a cluster reports its status without a token."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        own = {**others, AUTH_MODE: "disabled"}
        found = subprocess.run(command, env=own, capture_output=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"The Ray cluster at {address} did not answer within {PROBE_SECONDS:g} s.") from error
    return found.returncode == 0


def _has_token() -> bool:
    return os.environ.get(AUTH_MODE, "").lower() == "token"


def _token_in(folder: Path) -> Mapping[str, str]:
    """Return the variables for a token: none if the user has one, else those of a new file that only this user can read."""
    if _has_token():
        return {}
    path = folder / "token"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(TOKEN)
    return {AUTH_MODE: "token", "RAY_AUTH_TOKEN_PATH": str(path)}


def _first_lines(error: BaseException) -> str:
    return " ".join(str(error).split("\n")[:2])
