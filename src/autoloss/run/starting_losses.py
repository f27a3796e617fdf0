"""Losses that a search starts from: by name, by formula, from a file, from the zoo or from another run.

Each is held to the rejection protocol first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from autoloss import zoo
from autoloss.comparison.baselines import fits
from autoloss.errors import RequestError
from autoloss.evaluation.evaluator import Evaluator
from autoloss.rejection.reasons import Reason
from autoloss.run.results import open_run
from autoloss.space.expression import Expression
from autoloss.space.loss import Loss
from autoloss.space.loss_text import join_branches, join_losses
from autoloss.space.operators import Operator
from autoloss.store.run_settings import StartVerdict
from autoloss.tasks.task import Task

COMMENT = "#"
FROM_RUN = 10
"""Number of the best losses of another run that are taken."""


@dataclass(frozen=True, slots=True)
class NamedLoss:
    """A loss to start from as it was given, before it meets a task.

    Args:
        label: As the user wrote it; a word of `COLLECTIONS` stands for many.
        text: The loss itself, where its label is not.
        source: The zoo or the run that it was taken from; empty where it was given itself.
        place: Where it stands in a file, for messages.
        leaves: Branch → leaves of the run that it was taken from.
    """

    label: str
    text: str | Mapping[str, str] = ""
    source: str = ""
    place: str = ""
    leaves: Mapping[str, tuple[str, ...]] | None = None


def parse_starting_losses(
    start: Sequence[NamedLoss], task: Task, operators: Mapping[str, Operator], most: int
) -> tuple[dict[Loss, str], tuple[str, ...]]:
    """Resolve losses to start from.

    Args:
        start: Formulas, names of the zoo, `zoo` for all formulas of the zoo that fit, `shelf` for the known ones that an expert
            would try, and losses of runs.
        most: K. As many losses of `zoo`, `shelf` and runs are taken as there is room for beside those that are given one by one.

    Returns:
        Loss → label, without factors, which the search's own samples give; and a sentence on each `zoo` or run of which some were
        left out.
    """
    found = [pair for named in start for pair in _expand(named, task, operators)]
    given: dict[Loss, NamedLoss] = {}
    for one, loss in found:
        if not one.source and (first := given.setdefault(loss, one)) is not one:
            raise RequestError(f"{one.place}{one.label} is the same loss as {first.label}. Give each loss once.")
    room = most - len(given)
    chosen: dict[Loss, str] = {}
    offered: dict[str, dict[Loss, bool]] = {}
    for one, loss in found:
        taken = True
        if one.source:
            if loss in given or loss in chosen:
                continue
            taken = offered.setdefault(one.source, {}).setdefault(loss, room > 0)
            room -= taken
        if taken:
            chosen[loss] = one.label
    return chosen, tuple(
        f"{count} of the {len(losses)} losses of {source} are left out: the search starts from evolution.initial = "
        f"{most} losses at most."
        for source, losses in offered.items()
        if (count := sum(loss not in chosen for loss in losses))
    )


def name_losses(texts: Iterable[str]) -> list[NamedLoss]:
    """Split texts at the commas between formulas, names and words; no file is looked at.

    >>> [named.label for named in name_losses(["add(y, p), shelf"])]
    ['add(y, p)', 'shelf']
    """
    return [NamedLoss(part.strip()) for text in texts for part in _separated(text)]


def read_losses(start: Iterable[str]) -> list[NamedLoss]:
    """Read losses to start from, of no task yet.

    Args:
        start: Each a file with a loss on each line, a folder of a run, for its best losses, or what `name_losses` splits; folders
            of runs may stand between.
    """
    found: list[NamedLoss] = []
    for text in start:
        if _is(Path.is_file, text):
            found += _read_lines(Path(text))
            continue
        for named in [NamedLoss(text)] if _is(Path.is_dir, text) else name_losses([text]):
            is_run = named.label not in COLLECTIONS and _is(Path.is_dir, named.label)
            found += _read_run(named.label) if is_run else [named]
    return found


def _expand(named: NamedLoss, task: Task, operators: Mapping[str, Operator]) -> Iterator[tuple[NamedLoss, Loss]]:
    """Yield the losses that a name stands for on a task."""
    if named.label in COLLECTIONS:
        standard = [(join_branches(task.standard), task.standard)] if task.standard else []
        for label, text in (*standard, *COLLECTIONS[named.label](task)):
            with suppress(RequestError):
                one = NamedLoss(label, text, f"the {named.label}")
                yield one, _resolve(one, task, operators)
        return
    wanted = {name: tuple(branch.leaves_and_roles) for name, branch in task.branches.items()}
    if named.leaves not in (None, wanted):
        raise RequestError(
            f"A search cannot start from the losses of {named.source}: its branches are {_describe_leaves(named.leaves or {})}; "
            f"those of this task are {_describe_leaves(wanted)}. Name a run whose task has the same branches."
        )
    yield named, _resolve(named, task, operators)


def _is(kind: Callable[[Path], bool], text: str) -> bool:
    """Check what a path is; the system refuses to look at a long one."""
    return len(text) < 1000 and kind(Path(text))


def _resolve(named: NamedLoss, task: Task, operators: Mapping[str, Operator]) -> Loss:
    try:
        losses = zoo.resolve(named.text or named.label, task.branches, operators)[1]
    except RequestError as error:
        raise RequestError(f"{named.place}{error}") from None
    trees = {name: loss.scaled(1.0) for name, loss in losses.items() if isinstance(loss, Expression)}
    if len(trees) < len(losses):
        raise RequestError(f"{named.place}{named.label} is written by hand; a search can start from formulas only.")
    return Loss(trees)


def _list_shelf(task: Task) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the losses of the shelf that fit, each on one branch, with the standard loss on the others; branches take turns."""
    fitting = [[(name, entry.name) for entry in zoo.SHELF if fits(entry, name, task)] for name in task.branches]
    # A small budget does not reach all: it shall reach some of each branch.
    for name, entry in filter(None, chain.from_iterable(zip_longest(*fitting))):
        losses = {**task.standard, name: entry}
        yield join_losses(losses), losses


def _read_run(directory: str) -> list[NamedLoss]:
    """Return the best losses of a run: the best of each size, then those with the highest scores, `FROM_RUN` in all."""
    run = open_run(directory)
    ranking = [found.id for found in run.best_first(len(run.reader.settled))]
    run.choose(None)  # Raises where no loss has a score.
    numbers = set(list(dict.fromkeys([*run.reader.best_by_size, *ranking]))[:FROM_RUN])
    leaves = {name: tuple(found) for name, found in run.settings.leaves.items()}
    chosen = run.losses([number for number in ranking if number in numbers])
    labelled = {f"{Path(directory).name or directory} #{loss.id}": loss.formula for loss in chosen}
    return [NamedLoss(label, loss, directory, f"{label}: ", leaves) for label, loss in labelled.items()]


COLLECTIONS: Mapping[str, Callable[[Task], Iterable[tuple[str, str | Mapping[str, str]]]]] = {
    "zoo": lambda task: ((name, "") for name in zoo.names()),
    "shelf": _list_shelf,
}
"""Word for many known losses → their labels and texts; those that fit the task stand for it, after its standard loss."""


def _describe_leaves(leaves: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name} ({', '.join(found)})" for name, found in leaves.items())


def _separated(text: str) -> Iterator[str]:
    """Split at the commas that do not stand between the arguments of an operator."""
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth <= 0:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def _read_lines(path: Path) -> list[NamedLoss]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} cannot be read as a text file with formulas: {error}") from None
    numbered = [(number, line.partition(COMMENT)[0].strip()) for number, line in enumerate(lines, 1)]
    found = [NamedLoss(line, place=f"{path}, line {number}: ") for number, line in numbered if line]
    if not found:
        raise RequestError(f"{path} holds no formula; write one loss on each line.")
    return found


def try_starting_losses(losses: Mapping[Loss, str], evaluator: Evaluator) -> tuple[StartVerdict, ...]:
    """Hold losses to the rejection protocol, each branch on its own, as the search does."""
    found: list[StartVerdict] = []
    for loss, label in losses.items():
        attempts = evaluator.test_loss(loss)
        reasons = {name: Reason[tested.reason].value for name, tested in attempts.items() if tested.reason is not None}
        scores = {name: tested.score for name, tested in attempts.items()}
        found.append(StartVerdict(label, str(loss), scores, join_branches(reasons) or None))
    return tuple(found)
