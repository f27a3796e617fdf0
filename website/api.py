"""Write the page of the Python interface from the public names and their docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, get_origin

import autoloss
from autoloss import tasks, zoo
from website.documented import Docstring, docstring, meaning_of

INTRODUCTION = """\
# Python

`import autoloss` gives these names; each is loaded when it is first used. [Start](../start.md) shows them at work.
"""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Search": (
        "autoloss.run.",
        "autoloss.settings.",
        "autoloss.evaluation.",
        "autoloss.comparison.",
        "autoloss.report.",
    ),
    "Losses": ("autoloss.space.", "autoloss.formulas."),
    "Tasks": ("autoloss.tasks.", "autoloss.training."),
    "Named losses": ("autoloss.zoo.",),
    "Parts of the algorithm": ("autoloss.rejection.", "autoloss.proposing."),
    "Errors": ("autoloss.errors.",),
}
"""Heading → the packages whose public names are listed below it."""


def page() -> str:
    """Return the page."""
    parts = [INTRODUCTION]
    for title, packages in GROUPS.items():
        parts.append(f"## {title}")
        for name, thing in _public():
            home = autoloss._NAMES.get(name.removeprefix("autoloss."), thing.__module__)
            if f"{home}.".startswith(packages):
                parts.extend(_alias_entry(name, thing, home) if get_origin(thing) else _entry(name, thing))
    return "\n\n".join(parts) + "\n"


def _public() -> Iterator[tuple[str, Any]]:
    """Yield every public name with its object, including the functions of `autoloss.tasks` and `autoloss.zoo`."""
    # Functions before classes: what people call comes first.
    for name in sorted(autoloss.__all__, key=lambda name: inspect.isclass(getattr(autoloss, name))):
        thing = getattr(autoloss, name)
        if not inspect.ismodule(thing):
            yield f"autoloss.{name}", thing
    losses = ("RegionLoss", "weighted_cross_entropy", "AutoSegLoss", "Curve")
    for module, names in ((tasks, ("names", "get")), (zoo, ("names", "get", *losses))):
        for name in names:
            yield f"{module.__name__}.{name}", getattr(module, name)


def _alias_entry(name: str, thing: Any, home: str) -> Iterator[str]:
    yield f"### {name}"
    text = str(thing).replace("collections.abc.", "").replace("torch.", "")
    yield f"```python\n{name} = {text}\n```"
    yield meaning_of(import_module(home), name.rpartition(".")[2])


def _entry(name: str, thing: Any) -> Iterator[str]:
    yield f"### {name}"
    yield f"```python\n{_signature(name, thing)}\n```"
    yield from _render_docstring(docstring(thing))
    if inspect.isclass(thing) and not issubclass(thing, BaseException):
        for method, function in _methods(thing):
            yield f"#### {name}.{method}"
            if callable(function):
                yield f"```python\n{_signature(method, function)}\n```"
            yield from _render_docstring(docstring(function))


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class defines and documents."""
    for name, member in vars(kind).items():
        member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        shown = inspect.isfunction(member) or isinstance(member, property)
        if shown and not name.startswith("_") and inspect.getdoc(member):
            yield name, member


def _signature(name: str, thing: Any) -> str:
    """Return a call with its arguments, one on each line where there are many."""
    parameters = list(_parameters(thing))
    line = f"{name}({', '.join(parameters)})"
    return line if len(line) <= 88 else "\n".join([f"{name}(", *(f"    {part}," for part in parameters), ")"])


def _parameters(thing: Any) -> Iterator[str]:
    keyword = False
    if inspect.isclass(thing) and issubclass(thing, BaseException):
        return
    for parameter in inspect.signature(thing).parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword:
            keyword = True
            yield "*"
        default = parameter.default
        text = str(parameter.replace(default=parameter.empty)).replace("'", "")
        yield text if default is parameter.empty else f"{text} = {_format_default(default)}"


def _format_default(default: Any) -> str:
    text = repr(default)
    return text if len(text) < 40 and "<" not in text else f"{type(default).__name__}()"


def _render_docstring(parts: Docstring) -> Iterator[str]:
    yield parts.text
    for section in ("Attributes", "Args", "Returns", "Yields", "Raises"):
        entries = parts.entries(section)
        if entries and section in ("Attributes", "Args", "Raises"):
            yield f"{section}:"
            yield "\n".join(f"- `{name}`: {text}" for name, text in entries.items())
        elif section in parts.sections:
            yield f"{section}: {' '.join(parts.sections[section].split())}"
    if parts.example:
        yield f"```pycon\n{parts.example}\n```"
