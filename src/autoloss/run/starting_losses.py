"""Losses that a search starts from: by name, by formula or from a file, each held to the rejection protocol first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.rejection.reasons import Reason
from autoloss.space.branch import Branch
from autoloss.space.expression import Expression
from autoloss.space.loss import Loss
from autoloss.space.loss_text import join_branches
from autoloss.space.operators import Operator
from autoloss.store.run_settings import StartVerdict
from autoloss.tasks.training.threads import one_thread
from autoloss.workers.job_runner import JobRunner

COMMENT = "#"


@dataclass(frozen=True, slots=True)
class StartingLoss:
    """A loss to start from.

    Args:
        label: As the user wrote it.
        formula: Its text, as it is stored with the run.
    """

    label: str
    formula: str


def describe_start(start: StartVerdict) -> str:
    """Say in a sentence whether a search starts from a loss."""
    scores = ", ".join(
        ("g " if name == "main" else f"{name} g ") + ("–" if g is None else f"{g:.3f}") for name, g in start.g.items()
    )
    if start.reason is None:
        return f"Starts from {start.label}: {scores}."
    return f"Does not start from {start.label}: {start.reason} ({scores}). Its place is drawn at random."


def parse_starting_losses(
    start: Sequence[str], branches: Mapping[str, Branch], operators: Mapping[str, Operator]
) -> tuple[StartingLoss, ...]:
    """Read losses to start from.

    Args:
        start: Each a file with a loss on each line, or names of the zoo and formulas with commas between.

    Raises:
        RequestError: One is unknown, is written by hand rather than a tree, does not fit the branches, or comes twice.
    """
    found: dict[str, StartingLoss] = {}
    for place, label in _labels(start):
        try:
            losses = zoo.resolve(label, branches, operators)[1]
        except RequestError as error:
            raise RequestError(f"{place}{error}") from None
        trees = {name: loss for name, loss in losses.items() if isinstance(loss, Expression)}
        if len(trees) < len(losses):
            raise RequestError(f"{place}{label} is written by hand; a search can start from formulas only.")
        text = str(Loss(trees))
        if text in found:
            raise RequestError(f"{place}{label} is the loss {found[text].label} once more; give each once.")
        found[text] = StartingLoss(label, text)
    return tuple(found.values())


def _labels(start: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Give each loss with where it stands, for messages."""
    for text in start:
        path = Path(text)
        if len(text) < 1000 and path.is_file():
            yield from _lines(path)
        else:
            yield from (("", part.strip()) for part in _separated(text))


def _separated(text: str) -> Iterator[str]:
    """Split at the commas that do not stand between the arguments of an operator."""
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read as a text file with formulas: {error}") from None
    numbered = [(number, line.partition(COMMENT)[0].strip()) for number, line in enumerate(lines, 1)]
    found = [(f"{path}, line {number}: ", line) for number, line in numbered if line]
    if not found:
        raise RequestError(f"{path} holds no formula; write one loss on each line.")
    yield from found


def check_starting_losses(losses: Sequence[StartingLoss], runner: JobRunner) -> tuple[StartVerdict, ...]:
    """Hold losses to the rejection protocol, each branch on its own, as the search does."""
    with one_thread():
        return tuple(_check(loss, runner) for loss in losses)


def _check(loss: StartingLoss, runner: JobRunner) -> StartVerdict:
    leaves = {name: branch.leaves_and_roles for name, branch in runner.task.branches.items()}
    trees = Loss.parse(loss.formula, leaves, runner.operators)
    attempts = {name: runner.get_tester(name).test(0, [tree])[0] for name, tree in trees.items()}
    reasons = {name: Reason[attempt.reason].value for name, attempt in attempts.items() if attempt.reason is not None}
    scores = {name: attempt.score for name, attempt in attempts.items()}
    return StartVerdict(loss.label, loss.formula, scores, join_branches(reasons) or None)
