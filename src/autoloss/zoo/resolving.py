"""Read a loss: a name of the zoo, a formula, or a file that holds a formula."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autoloss.errors import RequestError, unknown
from autoloss.space.loss_text import join_branches, split_branches
from autoloss.zoo.branches import check_leaves, only_branch
from autoloss.zoo.entries import ENTRIES
from autoloss.zoo.entry import Entry

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss
    from autoloss.space.expression import Expression
    from autoloss.space.loss import Loss
    from autoloss.space.operators import Operator
    from autoloss.zoo.handwritten import HandWritten

Losses = dict[str, "Expression | BranchLoss"]
"""Branch → tree or hand-written loss: what `autoloss.bind` takes."""

_NAME = re.compile(r"[\w.~-]*(?:[/\\][\w.~-]+)*")
"""What a name or a path looks like; nearly all formulas have parentheses, spaces or operators."""


def names() -> tuple[str, ...]:
    return tuple(ENTRIES)


def entry(name: str) -> Entry:
    """Return the row of a name.

    Raises:
        RequestError: There is none; the message lists all.
    """
    if name not in ENTRIES:
        raise unknown("loss in the zoo", name, ENTRIES)
    return ENTRIES[name]


def get(name: str) -> Loss | HandWritten:
    """Return a loss by name: a `Loss` where it is trees, else an object with the same `criterion()`.

    Raises:
        RequestError: The name is unknown.
    """
    return entry(name).loss()


def resolve(
    text: str | Mapping[str, str], branches: Mapping[str, Branch], operators: Mapping[str, Operator] | None = None
) -> tuple[str, Losses]:
    """Read a loss for a task.

    Args:
        text: A name of the zoo; a formula, `branch: formula or name; …` for several branches; or the path of a text file with a
            formula. As a mapping, such as `Task.standard`: a name or a formula for each branch.
        branches: The task's.
        operators: Those that a formula may hold, by name; Table 1's when left out.

    Returns:
        A short label, and what `autoloss.bind` takes.

    Raises:
        RequestError: It is none of these, or does not fit the branches.
    """
    from autoloss.space.parsing import FormulaError

    if not isinstance(text, str):
        _check_branches(text, branches)
        label = next(iter(text.values())) if len(text) == 1 else join_branches(text)
        return label, {
            name: resolve(text[name], {name: branch}, operators)[1][name] for name, branch in branches.items()
        }
    text = text.strip()
    if text in ENTRIES:
        return text, ENTRIES[text].losses(branches)
    parts = split_branches(text)
    if any(part in ENTRIES for part in parts.values()):
        return text, resolve(parts, branches, operators)[1]
    try:
        return text, _from_formula(text, branches, operators)
    except FormulaError as error:
        if os.path.isfile(text):
            return os.path.basename(text), _from_file(text, branches, operators)
        if text and _NAME.fullmatch(text):
            raise RequestError(
                f"{unknown('loss', text, ENTRIES)} It is no file, and as a formula it fails too: {error.problem}"
            ) from None
        raise


def _from_formula(text: str, branches: Mapping[str, Branch], operators: Mapping[str, Operator] | None = None) -> Losses:
    from autoloss.space.loss import Loss
    from autoloss.space.operators import OPERATORS
    from autoloss.space.parsing import parse

    known = OPERATORS if operators is None else operators
    if ":" in text:
        loss = Loss.parse(text, {name: branch.leaves_and_roles for name, branch in branches.items()}, known)
        _check_branches(loss, branches)
        return {name: check_leaves(loss[name], name, branch) for name, branch in branches.items()}
    leaves = dict.fromkeys(leaf for branch in branches.values() for leaf in branch.leaves_and_roles)
    tree = parse(text, leaves, known)
    name, branch = only_branch(branches, text)
    return {name: check_leaves(tree, name, branch)}


def _from_file(path: str, branches: Mapping[str, Branch], operators: Mapping[str, Operator] | None = None) -> Losses:
    from autoloss.space.parsing import MAXIMUM_CHARACTERS, FormulaError

    try:
        with open(path, encoding="utf-8") as file:
            # One character too many is enough for the parser to refuse the rest.
            text = file.read(MAXIMUM_CHARACTERS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read as a text file with a formula: {error}") from None
    try:
        return _from_formula(text, branches, operators)
    except FormulaError as error:
        raise RequestError(f"{path}: {error}") from None


def _check_branches(found: Mapping[str, object], branches: Mapping[str, Branch]) -> None:
    if set(found) != set(branches):
        raise RequestError(
            f"Losses were given for the branches {', '.join(found)}; this task has {', '.join(branches)}. "
            "Give one for each."
        )
