"""Objects of a user's own files, `file.py:name`, and permission to run the code that a stored run names.

Modules beside such a file can be imported as a script could import them. A run that somebody hands over is data until the caller
vouches for it: it names code by the file of its task, of a metric and of operators. A search signs these names with a key that only
its user can read, so that the user's own runs ask nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import json
import os
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, final

import cloudpickle

from autoloss.errors import FAILURES, RequestError, describe_user_error, is_text, join_names, unknown
from autoloss.store.run_settings import RunSettings, TaskReference

PREFIX = "autoloss_file_"
"""Begins the names of the modules that are made of users' files; the rest tells files of one name apart."""


@final
class _Scope:
    """The folders and modules that were put on the import path since it began."""

    def __init__(self) -> None:
        self.folders: list[str] = []
        self._before = frozenset(sys.modules)

    def modules(self, folder: str) -> list[str]:
        """Return the names of the modules that were imported from a folder, and of those inside them."""
        new = [name for name in sys.modules if name not in self._before and not name.startswith(PREFIX)]
        return [name for name in new if _lies_in(sys.modules.get(name.partition(".")[0]), folder)]

    @contextmanager
    def first(self, folder: str) -> Iterator[None]:
        """Import from this folder first, and do not take modules that were imported from the other ones."""
        others = [name for other in self.folders if other != folder for name in self.modules(other)]
        hidden = {name: sys.modules.pop(name) for name in others}
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)
            if folder not in sys.path:
                sys.path.insert(len(self.folders), folder)
                self.folders.append(folder)
            sys.modules.update(hidden)

    def close(self) -> None:
        for folder in self.folders:
            for name in self.modules(folder):
                del sys.modules[name]
            with suppress(ValueError):
                sys.path.remove(folder)


_open: list[_Scope] = []
"""The scope that is open, if one is."""
_driving = threading.RLock()
"""Held by the thread that searches or trains: import path and global generators belong to the process."""


@contextmanager
def importable_files() -> Iterator[None]:
    """Keep the modules beside users' files importable while these files are used; afterwards, the import path is as before.

    A task may import such a module whenever it runs, in this process and in workers, which inherit the import path. Another task
    does not get it. Inside another such scope, this one does nothing.

    Raises:
        RequestError: Another thread of this process is in such a scope.
    """
    if not _driving.acquire(blocking=False):
        raise RequestError(
            "Another thread of this process searches or trains with autoloss. Both would share the global random generators. Wait "
            "for it, or start this one in another process."
        )
    try:
        if _open:
            yield
            return
        _open.append(_Scope())
        try:
            yield
        finally:
            _open.pop().close()
    finally:
        _driving.release()


@importable_files()
def load_object(name: str, kind: str, kinds: tuple[type, ...] = ()) -> Any:
    """Load what `file.py:name` names.

    Args:
        kind: What it should be, for messages.
        kinds: Types of objects that a message names as known, besides functions and classes.
    """
    path, _, attribute = name.rpartition(":")
    file = Path(path)
    if not file.is_file():
        article = "An" if kind[0] in "aeiou" else "A"
        raise RequestError(f"There is no file {path}. {article} {kind} of your own is named file.py:name.")
    module = _load_module(file)
    public = [key for key in vars(module) if not key.startswith("_")]
    if attribute not in public:
        own = [key for key in public if _defines(module, getattr(module, key), kinds)]
        if not own:
            raise RequestError(f"{file.name} defines no {kind}. Define one, and name it as in {file.name}:{attribute}.")
        raise unknown(f"{kind} in {file.name}", attribute, own)
    return getattr(module, attribute)


def _defines(module: ModuleType, value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, type | FunctionType):
        return value.__module__ == module.__name__
    return isinstance(value, kinds)


def _load_module(file: Path) -> ModuleType:
    full = str(file.resolve())
    if not is_text(full):
        raise RequestError(f"The path {full!a} is not valid UTF-8. Rename the folder or file.")
    name = f"{PREFIX}{file.stem}_{hashlib.blake2b(full.encode(), digest_size=4).hexdigest()}"
    specification = importlib.util.spec_from_file_location(name, full)
    if specification is None or specification.loader is None:
        raise RequestError(f"{file} cannot be imported as Python.")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    # Workers, and processes that load data while the file runs, get what is in it by value: they do not import it.
    cloudpickle.register_pickle_by_value(module)
    try:
        with _open[0].first(os.path.dirname(full)):
            specification.loader.exec_module(module)
    except RequestError as error:
        raise RequestError(f"{file.name}: {error}") from error
    except FAILURES as error:
        raise RequestError(f"{file} fails on import: {describe_user_error(error)}.") from error
    return module


def _lies_in(module: ModuleType | None, folder: str) -> bool:
    if module is None:
        return False
    # A package without a file has a path of folders.
    places = [*module.__dict__.get("__path__", ()), module.__dict__.get("__file__")]
    return places[0] is not None and os.path.dirname(os.path.abspath(places[0])) == folder


def absolute_name(name: str) -> str:
    """Return `file.py:name` with the file's full path, so that a run is resumed from any folder; other names stay.

    >>> absolute_name("digits-seg")
    'digits-seg'
    """
    path, colon, attribute = name.rpartition(":")
    return f"{Path(path).resolve()}:{attribute}" if colon and path.endswith(".py") else name


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
    named = json.dumps([asdict(task), list(operators)], sort_keys=True)
    return hmac.new(key, named.encode(), hashlib.sha256).hexdigest()


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
