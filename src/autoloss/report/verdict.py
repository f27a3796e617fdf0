"""The judgement of a search in words: the same for terminals and pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from autoloss.comparison.entrant import TEST, Entrant
from autoloss.comparison.judgement import Judgement, Standing
from autoloss.comparison.table import Row
from autoloss.numbers import figure, signed
from autoloss.report.readable import simplify_formulas
from autoloss.run.results import Search

Tone = Literal["good", "open", "bad"]
MEANING = "±: half the width of the 95 % confidence interval (Student's t over the training seeds)"
"""The one kind of ± in all tables and sentences of a search."""
MORE_SEEDS = 10

HEADLINES: Mapping[Standing, tuple[str, Tone]] = {
    Standing.BEATS: ("Yes: {found} beats the best baseline.", "good"),
    Standing.AHEAD: ("Perhaps: {found} is ahead of the best baseline, but chance is not ruled out.", "open"),
    Standing.EQUAL: ("No: {found} does as well as the best baseline, not better.", "bad"),
    Standing.BEHIND: (
        "No: {found} does not beat the best baseline; how far it is behind may be chance.",
        "bad",
    ),
    Standing.WORSE: ("No: {found} does not beat the best baseline; it is significantly worse.", "bad"),
    Standing.ONE_SEED: (
        "Not known yet: {found} and the baselines were trained on one seed, which tells nothing.",
        "open",
    ),
    Standing.NO_SCORE: ("No: {found} did not train on every seed of the comparison.", "bad"),
    Standing.NO_BASELINE: ("Not known: the task names no baseline to compare {found} with.", "open"),
    Standing.NOT_COMPARED: ("Not known yet: nothing was compared with the baselines.", "open"),
}
NOTHING = "Nothing yet: no loss has a score."
REPEATED: tuple[str, Tone] = ("No: {found} is the best baseline again, up to a factor.", "bad")
"""In place of `Standing.AHEAD`."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do next.

    Args:
        command: That does it, where one does.
    """

    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.command}" if self.command else f"{self.text}."


def answer(search: Search) -> tuple[str, Tone]:
    """Answer in a sentence whether the search found something better than the baselines."""
    judgement = search.judgement
    form = REPEATED if _repeats_baseline(search) else HEADLINES[judgement.standing]
    return headline(judgement, identify_best(search), form[0]), form[1]


def headline(judgement: Judgement, identity: str = "", form: str = "") -> str:
    """Answer in a sentence.

    Args:
        identity: What the loss found is on the task, such as `cross entropy × 2`.
        form: The sentence, if it is not that of the standing.
    """
    label = judgement.found and judgement.found.entrant.label
    found = f"{label} ({identity})" if identity else label
    return (form or HEADLINES[judgement.standing][0]).format(found=found)


def _repeats_baseline(search: Search) -> bool:
    """Say whether a loss that is ahead by chance has the gradient of the very baseline that it is ahead of."""
    judgement, formula = search.judgement, search.best.formula
    if judgement.standing is not Standing.AHEAD or judgement.rival is None:
        return False
    identities = simplify_formulas(search, [formula])[formula].identities or {}
    return [one.name for one in identities.values()] == [judgement.rival.entrant.loss]


def identify_best(search: Search) -> str:
    """Return what the best loss is on the task, such as `cross entropy × 2`; empty where it is no loss of the zoo."""
    if not search.top(1):
        return ""
    formula = search.best.formula
    return simplify_formulas(search, [formula])[formula].identity


def explain_identity(search: Search) -> list[str]:
    """Say in a sentence what the best loss is on the task; nothing where it is no loss of the zoo."""
    identity = identify_best(search)
    if not identity:
        return []
    return [
        f"On this task #{search.best.id} is {identity}: its gradient is that of this loss. "
        "A factor on a loss acts like one on the learning rate."
    ]


def evidence(judgement: Judgement) -> list[str]:
    """Say in sentences what the answer rests on."""
    found, rival, paired = judgement.found, judgement.rival, judgement.paired
    if found is None:
        return []
    seeds = _seeds(len(found.scores))
    if found.mean is None:
        return [f"{found.failed} of its trainings on {seeds} have no score: {'; '.join(_first_lines(found))}."]
    means = [f"{row.entrant.label} {_mean(row)}" for row in (found, rival) if row is not None]
    interval = "" if found.interval is None else ", ± 95 % confidence interval"
    sentences = [f"Mean over {seeds} of the {TEST} split{interval}: {', '.join(means)}."]
    if rival is None or paired is None:
        return sentences
    sentences.append(f"Difference {_difference(judgement)}.")
    if judgement.baselines > 1:
        sentences.append(f"{rival.entrant.label} is the best of {judgement.baselines} baselines on the {TEST} split.")
    return sentences


def sentences(search: Search) -> list[str]:
    """Return the answer and what it rests on, for a terminal."""
    if not search.top(1):
        return [NOTHING]
    return [answer(search)[0], *evidence(search.judgement), *explain_identity(search)]


def next_steps(search: Search) -> list[Step]:
    """Say what to do next: which loss to use, and which command goes on."""
    if not search.top(1):
        return [Step("Look at why", _command("failures", search.directory))]
    best, judgement = search.best, search.judgement
    export = _command("export", search.directory, str(best.id), "--out", "my_loss.py")
    found, rival = judgement.found, judgement.rival
    if judgement.is_win and found is not None:
        return [Step(f"Train with #{best.id} {_at(found.entrant)}"), Step("Export it", export)]
    steps = []
    repeats = _repeats_baseline(search)
    lost = (Standing.EQUAL, Standing.BEHIND, Standing.WORSE, Standing.NO_SCORE)
    is_lost = repeats or judgement.standing in lost
    if is_lost and rival is not None:
        steps.append(
            Step(f"Use {_name(rival.entrant)} {_at(rival.entrant)}: on the {TEST} split it has {_mean(rival)}")
        )
    if judgement.standing is Standing.NOT_COMPARED:
        steps.append(Step("Compare it with the baselines", _command("compare", search.directory)))
    elif judgement.standing in (Standing.ONE_SEED, Standing.AHEAD, Standing.BEHIND) and not repeats:
        more = ("--seeds", str(max(MORE_SEEDS, 2 * len(found.scores) if found else 0)))
        steps.append(Step("More training seeds tell more", _command("compare", search.directory, *more)))
    if is_lost:
        more = ("--evaluations", f"+{search.configuration.evaluations}")
        steps.append(Step("A longer search may find a better loss", _command("resume", search.directory, *more)))
        if not search.configuration.evolution.start:
            steps.append(
                Step("So may one that starts from known losses: search again with --start zoo and another --out")
            )
    return [*steps, Step(f"Export the best loss found, #{best.id}", export)]


def _difference(judgement: Judgement) -> str:
    assert judgement.paired is not None
    difference = signed(judgement.paired.difference)
    if judgement.paired.interval is None or judgement.p_value is None:
        why = "one seed has no spread" if judgement.standing is Standing.ONE_SEED else "the same on every seed"
        return f"{difference}; no p-value: {why}"
    corrected = f", Holm-corrected for {judgement.baselines} baselines" if judgement.baselines > 1 else ""
    return (
        f"{difference} ± {figure(judgement.paired.interval)}, p = {judgement.p_value:.2g} "
        f"(paired t-test, two-sided{corrected})"
    )


def _at(entrant: Entrant) -> str:
    """Say how a loss was scaled where it was compared."""
    if entrant.scale != 1:
        return f"multiplied by {entrant.scale:g}, at the recipe's learning rate"
    factor = entrant.learning_rate
    return "at the recipe's learning rate" if factor == 1 else f"at {factor:g} × the recipe's learning rate"


def _name(entrant: Entrant) -> str:
    return entrant.loss if len(entrant.loss) <= len(entrant.label) else entrant.label


def _mean(row: Row) -> str:
    return figure(row.mean) + ("" if row.interval is None else f" ± {figure(row.interval)}")


def _seeds(count: int) -> str:
    return f"{count} training seed" + "s" * (count != 1)


def _first_lines(row: Row) -> list[str]:
    return [reason.splitlines()[0] for reason in row.reasons]


def _command(name: str, directory: Path, *arguments: str) -> str:
    return shlex.join(["autoloss", name, str(directory), *arguments])
