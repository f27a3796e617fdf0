"""Permission to run code that a stored run names: a run that somebody hands over is data until the caller vouches for it.

A run names code by the file of its task, of a metric and of operators. A search signs these names with a key that only its user can
read, so that the user's own runs ask nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from autoloss.errors import RequestError, join_names
from autoloss.run.user_files import absolute_name
from autoloss.store.run_settings import RunSettings, TaskReference

Trust = bool | Sequence[str]
"""True for all code that a run names, or those `file.py:name` that the caller vouches for."""
KEY_BYTES = 32


def sign_code(task: TaskReference, operators: Sequence[str]) -> str:
    """Return what shows later that this user started a run of that task and these operators; empty without code or a key."""
    if not _list_code(task, operators) or (key := _read_key(make=True)) is None:
        return ""
    return _digest(key, task, operators)


def check_trust(settings: RunSettings, directory: Path, trust: Trust = False, *, task: bool = True) -> None:
    """Refuse to run code that a stored run names, unless this user started the run or the caller vouches for the code.

    Args:
        trust: What the caller vouches for.
        task: Whether the task's file is about to be loaded, beside the operators.

    Raises:
        RequestError: Nobody vouches for the code, or the run does not name what the caller vouches for.
    """
    own = settings.configuration.space.operators
    vouched = [] if isinstance(trust, bool) else [absolute_name(name) for name in trust]
    if strangers := [name for name in vouched if name not in _list_code(settings.task, own)]:
        raise RequestError(
            f"The run in {directory} does not name {join_names(strangers)}; it names "
            f"{join_names(own) or 'no operators of its own'}. Leave it out, or name what the run names."
        )
    if trust is True or is_own(settings):
        return
    needed = _list_code(settings.task if task else TaskReference(None), own)
    if missing := [name for name in needed if name not in vouched]:
        raise RequestError(
            f"The run in {directory} names code in files, and was not started by you on this machine: "
            f"{join_names(missing)}. Nothing of it was run. Read these files; then add --trust (in Python trust=True)."
        )


def is_own(settings: RunSettings) -> bool:
    """Return whether this user started a run that names code."""
    key = _read_key(make=False)
    expected = "" if key is None else _digest(key, settings.task, settings.configuration.space.operators)
    return bool(expected) and hmac.compare_digest(expected.encode(), settings.author.encode())


def _list_code(task: TaskReference, operators: Sequence[str]) -> list[str]:
    """Return the names that stand for code in a file."""
    names = [task.name, *task.options.values(), *operators]
    return [name for name in names if isinstance(name, str) and ".py:" in name]


def _digest(key: bytes, task: TaskReference, operators: Sequence[str]) -> str:
    return hmac.new(key, json.dumps([task.to_json(), list(operators)]).encode(), hashlib.sha256).hexdigest()


def _read_key(make: bool) -> bytes | None:
    """Return the user's key, made at its first use; None where none can be kept."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "autoloss"
    path = folder / "key"
    try:
        if make and not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = folder / f"key.{os.getpid()}.{secrets.token_hex(4)}"
            draft.touch(mode=0o600)
            draft.write_bytes(secrets.token_bytes(KEY_BYTES))
            try:
                # A process that was quicker keeps its key.
                os.link(draft, path)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        key = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    return key if len(key) == KEY_BYTES else None
