"""The import path of a worker: libraries are loaded before a user's files can stand in for what they import.

The driver loaded them before the folder of the task was on its import path. A worker that began with the same path would import a
`cuda.py` beside the task in place of a library that torch looks for.
"""

from __future__ import annotations

import importlib
import os
import site
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_LOADED, _PACKAGES, _PATH = "AUTOLOSS_LOADED", "AUTOLOSS_PACKAGES", "AUTOLOSS_IMPORT_PATH"


def path_variables(libraries: Sequence[str]) -> Mapping[str, str]:
    """Return the variables that tell a new worker its import path: first with the packages alone, then as the driver has it.

    Args:
        libraries: Names of those to load at once, where the driver has loaded them.
    """
    loaded = [name for name in libraries if name in sys.modules]
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(folder, "lib-dynload") for folder in standard}
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    # Also the folders from which the driver has its libraries.
    files = [file for name in loaded if (file := sys.modules[name].__file__) is not None]
    packages |= {str(Path(file).parents[1]) for file in files} | {str(Path(__file__).parents[2])}
    entries = list(map(os.path.abspath, sys.path))
    # The driver has the standard library loaded; a worker would import a user's `random.py` instead of its module.
    used = sorted(entries, key=lambda entry: entry not in standard)
    start = sorted(entries, key=lambda entry: 0 if entry in standard else 1 if entry in packages else 2)
    alone = [entry for entry in start if entry in standard | packages]
    paths = {"PYTHONPATH": start, _PACKAGES: alone, _PATH: used}
    return {_LOADED: ",".join(loaded), **{name: os.pathsep.join(path) for name, path in paths.items()}}


def load_libraries() -> None:
    """Import what the driver has loaded, then put the user's files where the driver has them on its path."""
    loaded, packages, path = (os.environ.pop(name, "") for name in (_LOADED, _PACKAGES, _PATH))
    if not path:
        return
    sys.path[:] = packages.split(os.pathsep)
    for name in filter(None, loaded.split(",")):
        # One that is missing is named where it is needed.
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    sys.path[:] = path.split(os.pathsep)
    os.environ["PYTHONPATH"] = path
