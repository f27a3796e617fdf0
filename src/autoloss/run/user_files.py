"""Objects of a user's own files, `file.py:name`; modules beside such a file can be imported as a script could import them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, final

import cloudpickle

from autoloss.errors import FAILURES, RequestError, describe_user_error, is_text, unknown

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
        own = [key for key in public if _is_own(getattr(module, key), module, kinds)]
        if not own:
            raise RequestError(f"{file.name} defines no {kind}. Define one, and name it as in {file.name}:{attribute}.")
        raise unknown(f"{kind} in {file.name}", attribute, own)
    return getattr(module, attribute)


def _is_own(value: object, module: ModuleType, kinds: tuple[type, ...]) -> bool:
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
