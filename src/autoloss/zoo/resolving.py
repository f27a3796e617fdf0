"""Losses from text: a name of the zoo, a formula, or a file that contains a formula."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autoloss.errors import RequestError, quote, suggest
from autoloss.space.loss_text import join_losses, split_branches
from autoloss.zoo.entries import ENTRIES
from autoloss.zoo.entry import Entry, check_leaves, get_only_branch

if TYPE_CHECKING:
    from autoloss.space.branch import Branch, BranchLoss
    from autoloss.space.expression import Expression
    from autoloss.space.loss import HandWritten, Loss
    from autoloss.space.operators import Operator

Losses = dict[str, "Expression | BranchLoss"]
"""Branch → tree or hand-written loss, as `autoloss.bind` takes them."""

_NAME = re.compile(r"[\w.~-]*(?:[/\\][\w.~-]+)*")
"""Matches names and paths; nearly all formulas have parentheses, spaces or operators."""


def names() -> tuple[str, ...]:
    """Return the names of all losses.

    >>> names()[:3]
    ('seg/miou', 'seg/fwiou', 'seg/gacc')
    """
    return tuple(ENTRIES)


def refuse_name(kind: str, name: str) -> RequestError:
    """Return the error for an unknown loss; of a class of torch, such as `CrossEntropyLoss`, the loss of that title is named."""
    short = re.sub(r"[\W_]|withlogits|loss", "", name.lower())
    titles = {re.sub(r"\W|loss", "", entry.title.lower()): entry.name for entry in ENTRIES.values() if entry.title}
    titles |= {"bce": "baseline/bce", "mse": "baseline/mse", "l1": "shelf/absolute_error"}
    near = f" Did you mean {titles[short]!r}?" if short in titles else suggest(name, ENTRIES)
    return RequestError(f"There is no {kind} named {quote(name)}.{near} `autoloss zoo` lists all.")


def get_entry(name: str) -> Entry:
    """Return a loss by name with its description, source and settings.

    Raises:
        RequestError: The name is unknown; the message lists all names.

    >>> get_entry("baseline/ce").formula
    '-y * log(p)'
    """
    if name not in ENTRIES:
        raise refuse_name("loss in the zoo", str(name))
    return ENTRIES[name]


def get(name: str) -> Loss | HandWritten:
    """Return a loss by name: a `Loss`, or for a hand-written loss an object with the same `criterion()`.

    Raises:
        RequestError: The name is unknown.

    >>> import torch
    >>> str(get("det/rcnn_reg"))
    'neg(log(mul(i, inv(e))))'
    >>> get("baseline/ce").criterion()(torch.zeros(2, 4), torch.tensor([0, 3]))
    tensor(1.3863)
    """
    return get_entry(name).make_loss()


def resolve(
    text: str | Mapping[str, str], branches: Mapping[str, Branch], operators: Mapping[str, Operator] | None = None
) -> tuple[str, Losses]:
    """Resolve a loss for the branches of a task.

    Args:
        text: A name of the zoo; a formula, `branch: formula or name; …` for several branches; or the path of a text file with a
            formula. As a mapping, such as `Task.standard`: a name or a formula for each branch.
        branches: The branches of the task.
        operators: The allowed operators, by name; those of Table 1 by default.

    Returns:
        A short label, and the losses that `autoloss.bind` takes.

    Raises:
        RequestError: The text is none of these, or the loss does not fit the branches.

    >>> from autoloss import ActivatedBranch
    >>> label, losses = resolve("baseline/ce", {"main": ActivatedBranch()})
    >>> label, str(losses["main"])
    ('baseline/ce', 'neg(mul(y, log(p)))')
    """
    from autoloss.space.parsing import FormulaError

    if not isinstance(text, str):
        _check_branches(text, branches)
        found = {name: resolve(text[name], {name: branch}, operators)[1][name] for name, branch in branches.items()}
        return join_losses(text), found
    text = text.strip()
    if text in ENTRIES:
        return text, ENTRIES[text].make_losses(branches)
    parts = split_branches(text)
    if any(part in ENTRIES for part in parts.values()):
        return text, resolve(parts, branches, operators)[1]
    try:
        return text, _parse_formula(text, branches, operators)
    except FormulaError as error:
        if os.path.isfile(text):
            return os.path.basename(text), _read_file(text, branches, operators)
        if text and _NAME.fullmatch(text):
            raise RequestError(f"{refuse_name('loss', text)} Nor is it a file or formula: {error.problem}") from None
        raise


def _parse_formula(text: str, branches: Mapping[str, Branch], operators: Mapping[str, Operator] | None) -> Losses:
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
    name, branch = get_only_branch(branches, text)
    return {name: check_leaves(tree, name, branch)}


def _read_file(path: str, branches: Mapping[str, Branch], operators: Mapping[str, Operator] | None) -> Losses:
    from autoloss.space.parsing import MAXIMUM_CHARACTERS, FormulaError

    try:
        with open(path, encoding="utf-8") as file:
            # One character more than allowed is enough for the parser to reject the text.
            text = file.read(MAXIMUM_CHARACTERS + 1).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read as a text file with a formula: {error}") from None
    try:
        return _parse_formula(text, branches, operators)
    except FormulaError as error:
        raise RequestError(f"{path}: {error}") from None


def _check_branches(found: Mapping[str, object], branches: Mapping[str, Branch]) -> None:
    if set(found) != set(branches):
        raise RequestError(
            f"The loss has the branches {', '.join(found)}; this task has {', '.join(branches)}. Give one for each."
        )
