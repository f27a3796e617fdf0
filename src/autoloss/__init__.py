"""Search loss functions from scratch, for any PyTorch task and any evaluation metric.

The public names; each is imported when it is first used, so that `import autoloss` costs nothing.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

__version__ = "0.1.0"

with open(f"{__file__}i", encoding="utf-8") as _stub:
    # The one list of public names is the stub that type checkers read.
    _NAMES = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as", _stub.read(), re.MULTILINE)}
__all__ = sorted(_NAMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'autoloss' has no attribute {name!r}")
    if _NAMES[name] == __name__:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return __all__
