"""A function with a part of its text replaced, for as long as a test wants to see what notices."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType
from typing import Any


@contextmanager
def mutated(name: str, changes: Mapping[str, str]) -> Iterator[None]:
    """Replace parts of a function's text.

    The function itself stays and gets other code, so whoever imported it, and every process forked from here, has the mutant.

    Args:
        name: `module:function` or `module:Class.method`.
        changes: Text that the function holds exactly once → what stands there instead.
    """
    module_name, _, path = name.partition(":")
    module = import_module(module_name)
    function: Any = module
    for part in path.split("."):
        function = inspect.getattr_static(function, part)
    text = textwrap.dedent(inspect.getsource(function))
    for old, new in changes.items():
        if text.count(old) != 1:
            raise LookupError(f"{name} holds {old!r} {text.count(old)} times; a mutant changes one place.")
        text = text.replace(old, new)
    honest = function.__code__
    function.__code__ = _compiled(text, module.__dict__, function.__name__).__code__
    try:
        yield
    finally:
        function.__code__ = honest


def _compiled(text: str, names: Mapping[str, Any], name: str) -> FunctionType:
    scope = dict(names)
    # Our own source, changed by the table of a test.
    exec(compile(f"from __future__ import annotations\n{text}", f"<mutant of {name}>", "exec"), scope)  # noqa: S102
    return scope[name]
