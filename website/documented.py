"""Parse docstrings: their sections, the arguments that they list, and the docstrings below the fields of a dataclass."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from autoloss.errors import RequestError

SECTIONS = ("Attributes", "Args", "Returns", "Yields", "Raises", "Source")
_HEAD = re.compile(rf"^(?P<name>{'|'.join(SECTIONS)}):(?P<rest>.*)$")
_ENTRY = re.compile(r"^(?P<names>[\w*]+(?:, [\w*]+)*): (?P<text>.*)$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring in its parts.

    Args:
        text: All paragraphs before the first section.
        sections: Name → its text, without indentation.
        example: The lines from the first `>>>` on, with what they print; empty without one.
    """

    text: str
    sections: Mapping[str, str]
    example: str = ""

    def entries(self, section: str) -> dict[str, str]:
        """Return what a section lists, as name → text on one line."""
        found: dict[str, str] = {}
        for part in _list_entries(self.sections.get(section, "")):
            if match := _ENTRY.match(part):
                found[match["names"]] = match["text"]
        return found


def docstring(thing: Any) -> Docstring:
    """Parse a docstring into its parts."""
    text, sections, example, current = [], {}, [], None
    for line in (inspect.getdoc(thing) or "").splitlines():
        # An example is the last part of a docstring.
        if example or line.startswith(">>>"):
            example.append(line)
        elif head := _HEAD.match(line):
            current = head["name"]
            sections[current] = [head["rest"].strip()]
        elif current is None:
            text.append(line)
        else:
            sections[current].append(line)
    joined = {name: textwrap.dedent("\n".join(lines[1:])) for name, lines in sections.items()}
    whole = {name: f"{sections[name][0]}\n{joined[name]}".strip() for name in sections}
    return Docstring("\n".join(text).strip(), whole, "\n".join(example).strip())


def meaning_of(module: ModuleType, name: str) -> str:
    """Return the docstring below a name that a module assigns."""
    body = ast.parse(inspect.getsource(module)).body
    for above, below in itertools.pairwise(body):
        if isinstance(above, ast.Assign) and ast.unparse(above.targets[0]) == name:
            return _text(below)
    return ""


def fields_of(kind: type) -> dict[str, str]:
    """Return the fields of a dataclass with their meanings, from the docstring below each or from its `Args`."""
    said = docstring(kind).entries("Args")
    for declared in reversed([base for base in kind.__mro__ if dataclasses.is_dataclass(base)]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(declared))).body
        assert isinstance(tree, ast.ClassDef)
        for above, below in itertools.pairwise(tree.body):
            if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and (text := _text(below)):
                said[above.target.id] = " ".join(text.split())
    return {setting.name: said.get(setting.name, "") for setting in dataclasses.fields(kind)}


def format_value(value: Any) -> str:
    """Return a value as `--set` takes it."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple() | list():
            return ",".join(map(format_value, value)) or "none"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value) or "none"


def code(text: str) -> str:
    """Return a text as code in a cell of a table."""
    if "`" in text:
        raise RequestError(f"{text!r} holds a backtick, and cannot stand as code in a table.")
    return f"`{text}`" if text else ""


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown; columns that are empty everywhere are left out."""
    kept = [index for index in range(len(heads)) if any(row[index] for row in rows)]
    lines = [[heads[index] for index in kept], ["---"] * len(kept)]
    lines += [[" ".join(row[index].split()) for index in kept] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(text: str) -> str:
    """Return prose as a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def _list_entries(text: str) -> Iterator[str]:
    """Yield the entries of a section, each on one line."""
    current: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace() and current:
            yield " ".join(current)
            current = []
        if line.strip():
            current.append(line.strip())
    if current:
        yield " ".join(current)


def _text(node: ast.stmt) -> str:
    holds = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return node.value.value if holds else ""
