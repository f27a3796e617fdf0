"""Who may reach a Ray cluster: what is refused before anything starts, and the variables that keep a cluster to oneself."""

from __future__ import annotations

import contextlib
import importlib.util
import ipaddress
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from autoloss.errors import RequestError, RunError

AUTO = "auto"
LOOPBACK = "127.0.0.1"
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


def refuse_unusable(address: str, *, insecure: bool) -> None:
    """Refuse what can be refused before anything starts.

    A cluster that others can reach and that asks nobody who they are is not used: whoever reaches it runs code as its user.

    Args:
        address: As `ray_workers` takes it.
        insecure: Use it all the same.

    Raises:
        RequestError: Ray is missing, or the address is none of a cluster that can be used.
    """
    if address != AUTO and ("://" in address or ":" not in address):
        raise RequestError(
            f"--ray takes auto, or host:port of a cluster with this process on one of its nodes; found {address!r}. "
            "Start the search on a node of the cluster: ray start --address=HEAD:6379, then --ray HEAD:6379."
        )
    if importlib.util.find_spec("ray") is None:
        raise RequestError("--ray needs Ray, which is not installed. Install it: pip install autoloss[ray]")
    if insecure or address == AUTO or _is_loopback(address.rpartition(":")[0]):
        return
    advice = (
        "Start it with RAY_AUTH_MODE=token on every node (Ray ≥ 2.52), and this command too; or, in a network where you trust "
        "everybody, add --ray-insecure."
    )
    if not has_token():
        raise RequestError(
            f"The Ray cluster at {address} is not on the loopback address, and no token is used. {advice}"
        )
    if answers_anybody(address):
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


def answers_anybody(address: str) -> bool:
    """Ask a cluster for its state without a token."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")}
    asked = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        found = subprocess.run(
            asked, env={**own, AUTH_MODE: "disabled"}, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RunError(f"The Ray cluster at {address} did not answer within {PROBE_SECONDS:g} s.") from error
    return found.returncode == 0


def has_token() -> bool:
    """Say whether Ray is told to use a token."""
    return os.environ.get(AUTH_MODE, "").lower() == "token"


def token_in(folder: Path) -> Mapping[str, str]:
    """Return what has Ray ask for a token: the person's own, or else a new one in a file that only this user can read."""
    if has_token():
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
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
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
