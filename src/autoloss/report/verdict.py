"""The judgement of a search in words, for terminals and pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from autoloss.comparison.entrant import TEST, Entrant, Measurements, Row
from autoloss.comparison.judgement import SIGNIFICANT, Judgement, Standing, describe_noise
from autoloss.comparison.noise import Estimate, find_quantile
from autoloss.numbers import difference, figure, plus_minus
from autoloss.report.readable import Readable, simplify_formulas
from autoloss.report.shares import at_share, trains_short
from autoloss.report.state import State
from autoloss.run.results import FoundLoss, Search
from autoloss.space.loss_text import split_branches

Tone = Literal["good", "open", "bad"]
MEANING = (
    "±: half the width of the 95 % confidence interval over training seeds and, where the metric was measured on resamples of "
    "the split, its examples"
)
"""Meaning of ± in all tables and sentences of a search."""
MORE_SEEDS = 10
MANY_ERRORS = 6.0
"""Where a difference of fewer standard errors cannot be significant, the verdict says so."""


@dataclass(frozen=True, slots=True)
class Form:
    """Wording and consequences of one standing.

    Args:
        is_lost: The best baseline is the better choice.
        needs_seeds: More training seeds may change the answer.
    """

    headline: str
    tone: Tone
    is_lost: bool = False
    needs_seeds: bool = False


FORMS: Mapping[Standing, Form] = {
    Standing.BEATS: Form("Yes: {found} beats the best baseline.", "good"),
    Standing.AHEAD: Form(
        "Perhaps: {found} is ahead of the best baseline, but not significantly.", "open", needs_seeds=True
    ),
    Standing.EQUAL: Form("No: {found} does as well as the best baseline, not better.", "bad", is_lost=True),
    Standing.BEHIND: Form(
        "No: {found} does not beat the best baseline; it is behind, but not significantly.", "bad", True, True
    ),
    Standing.WORSE: Form("No: {found} does not beat the best baseline; it is significantly worse.", "bad", True),
    Standing.ONE_SEED: Form(
        "Not known yet: {found} and the baselines were trained on one seed only.", "open", needs_seeds=True
    ),
    Standing.NO_SCORE: Form("No: {found} has no score on some training seeds of the comparison.", "bad", True),
    Standing.NO_BASELINE: Form("Not known: the task has no baseline to compare {found} with.", "open"),
    Standing.NOT_COMPARED: Form("Not known yet: no loss has been compared with the baselines.", "open"),
}
REPEATED = Form("No: {found} has the gradient of the best baseline, up to a factor.", "bad", is_lost=True)
"""Form for a loss with the gradient of the best baseline, where their difference is not significant."""


@dataclass(frozen=True, slots=True)
class Step:
    """A recommended next step."""

    text: str
    command: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.command}" if self.command else f"{self.text}."


@dataclass(frozen=True, slots=True)
class Verdict:
    """Answer to the question whether a search found a better loss than the baselines.

    Args:
        headline: The answer in a sentence.
        sentences: The evidence.
        steps: Recommended next steps.
    """

    headline: str
    tone: Tone
    sentences: Sequence[str] = ()
    steps: Sequence[Step] = ()

    @property
    def text(self) -> Sequence[str]:
        """The answer and its evidence."""
        return [self.headline, *self.sentences]


def reach_verdict(search: Search, state: State) -> Verdict:
    """Put the judgement of a run into words."""
    resume = [Step("Resume it", state.command)] if state.command else []
    progress = [f"{state.progress} {state.unit} are done."] if state.going else []
    if not search.top(1):
        ended = [] if state.going or state.command else ["The run ended without a score."]
        steps = [] if state.going else [*resume, _advise("See why", search, "failures")]
        return Verdict("Nothing yet: no loss has a score.", "open", [*progress, *ended], steps)
    best, judgement = search.best, search.judgement
    readable = simplify_formulas(search, [best.formula])[best.formula]
    repeats = _repeats_baseline(judgement, readable)
    form = REPEATED if repeats else FORMS[judgement.standing]
    sentences = evidence(judgement, repeats=repeats)
    if judgement.standing is Standing.NOT_COMPARED:
        sentences = [*_describe_best(search, best), *progress]
    # A known loss has its name in its label already.
    identity = "" if search.enter(best.id, best.formula).known else readable.identity
    if identity:
        sentences.append(
            f"On this task, #{best.id} has the gradient of {identity}. "
            "A factor on a loss acts like a factor on the learning rate."
        )
    sentences += [*search.settings.comparison.notes, *search.settings.changes]
    is_open = state.going or (bool(resume) and judgement.standing is Standing.NOT_COMPARED)
    steps = [*resume, *([] if is_open else _next_steps(search, best, form))]
    return Verdict(headline(judgement, identity, form), form.tone, sentences, steps)


def headline(judgement: Judgement, identity: str = "", form: Form | None = None) -> str:
    """Write the answer in a sentence.

    Args:
        identity: The loss of the zoo that equals the found loss on the task, such as `cross entropy × 2`.
        form: By default, that of the standing.
    """
    label = judgement.found and judgement.found.entrant.label
    found = f"{label} ({identity})" if identity else label
    return (form or FORMS[judgement.standing]).headline.format(found=found)


def _repeats_baseline(judgement: Judgement, readable: Readable) -> bool:
    """Return True if the loss found has the gradient of the best baseline, and neither is significantly better."""
    found, rival = judgement.found, judgement.rival
    if not found or not rival or judgement.standing not in (Standing.AHEAD, Standing.EQUAL, Standing.BEHIND):
        return False
    # Losses of several branches also differ in the factors of these.
    is_named = found.entrant.loss_name == rival.entrant.loss_name and len(split_branches(rival.entrant.loss)) == 1
    return is_named or [one.name for one in (readable.identities or {}).values()] == [rival.entrant.loss]


def evidence(judgement: Judgement, repeats: bool = False) -> list[str]:
    """Return the evidence for the answer, in sentences.

    Args:
        repeats: The loss found has the gradient of the best baseline, which no test data tell apart from it.
    """
    found, rival, paired = judgement.found, judgement.rival, judgement.paired
    if found is None:
        return []
    seeds = f"{len(found.scores)} training seed" + "s" * (len(found.scores) != 1)
    if found.mean is None:
        reasons = "; ".join(reason.splitlines()[0] for reason in found.reasons)
        return [f"{found.failed} of its trainings on {seeds} have no score: {reasons}."]
    means = [f"{row.entrant.label} {write_mean(row.score)}" for row in (found, rival) if row is not None]
    interval = "" if found.interval is None else ", ± 95 % confidence interval"
    sentences = [f"Mean over {seeds} of the {TEST} split{interval}: {', '.join(means)}."]
    if rival is None or paired is None:
        return sentences
    sentences.append(f"Difference {_describe_difference(judgement)}.")
    if paired.half_width is not None:
        sentences.append(_describe_resolution(paired))
        sentences += _describe_hypotheses(judgement.baselines, len(found.scores))
    elif paired.examples_error == 0 and not repeats:
        sentences.append(
            f"The scores are equal on all resamples of these {paired.examples:,} examples: the {TEST} split cannot tell the losses "
            "apart. Give more test data."
        )
    if judgement.baselines > 1:
        sentences.append(f"{rival.entrant.name} is the best of {judgement.baselines} baselines on the {TEST} split.")
    return sentences


def _describe_difference(judgement: Judgement) -> str:
    assert judgement.paired is not None
    gain = difference(judgement.paired.value, judgement.paired.half_width)
    if judgement.paired.half_width is None or judgement.p_value is None:
        why = "one seed has no spread" if judgement.standing is Standing.ONE_SEED else "the same on every seed"
        return f"{gain}; no p-value: {why}"
    return (
        f"{gain}, p = {judgement.p_value:.2g} "
        f"(paired over {describe_noise(judgement.paired)}, two-sided{describe_correction(judgement)})"
    )


def _describe_hypotheses(baselines: int, seeds: int) -> list[str]:
    """Warn if there are too few seeds for a significant lead over this many baselines."""
    errors = find_quantile(1 - SIGNIFICANT / (2 * baselines), seeds - 1)
    if errors < MANY_ERRORS:
        return []
    beside = "one baseline" if baselines == 1 else f"the best of {baselines} baselines"
    return [
        f"With {seeds} training seeds a lead over {beside} is significant only above {errors:.0f} standard errors: too few seeds "
        "to tell smaller ones."
    ]


def _describe_resolution(paired: Estimate) -> str:
    """Describe the smallest difference that the split can show."""
    if paired.resolution is None:
        return f"The intervals ignore the sampling error of the {TEST} split: the metric was not measured on resamples of it."
    few = " Without a few of them, such as those of a rare class, the metric is undefined: give more of these."
    return (
        f"Differences below {figure(paired.resolution)} cannot be detected on these {paired.examples:,} examples, however many "
        f"training seeds there are.{few * paired.hangs_on_few}"
    )


def describe_correction(judgement: Judgement) -> str:
    """Describe the correction of p-values; empty if there is only one baseline."""
    return f", Holm-corrected for {judgement.baselines} baselines" if judgement.baselines > 1 else ""


def write_mean(measured: Measurements) -> str:
    """Write a mean with its confidence interval."""
    return figure(measured.mean) + plus_minus(measured.interval)


def _describe_best(search: Search, best: FoundLoss) -> list[str]:
    share = ""
    if trains_short(search):
        rest = "" if best.fidelity == 1 else " of the schedule; none is trained whole yet"
        share = f", trained {at_share(best.fidelity)}{rest}"
    confirmed = ""
    if best.confirmed is not None:
        confirmed = f" Its mean over {best.fresh_seeds} new training seeds is {figure(best.confirmed)}."
    return [
        f"The best so far is #{best.id} with {figure(best.score)} on the valid split{share}.{confirmed}",
        "The maximum of many noisy scores is optimistic: only new training seeds and held-out data give a fair estimate.",
    ]


def _is_recommended(search: Search, entrant: Entrant) -> bool:
    """Return True if nothing else is recommended; the best loss on the test split alone may be best by chance."""
    advice = search.recommendation
    mine = entrant.loss, entrant.learning_rate, entrant.step_rule, entrant.tuned_threshold
    recipe = {"step_rule": "recipe", "tuned_threshold": False} | (dict(advice.recipe) if advice else {})
    return not advice or mine == (advice.loss, advice.learning_rate, recipe["step_rule"], recipe["tuned_threshold"])


def _knows_better(search: Search, rival: Row | None) -> bool:
    """Return True if a known loss or another recipe is better than the standard loss as given: then that is the next step."""
    advice, ladder = search.recommendation, search.ladder
    tuned = ladder is not None and ladder.best is not ladder.given
    is_other = rival is not None and any(rival.entrant.list_changes())
    return tuned or is_other or (advice is not None and advice.origin != "standard")


def _next_steps(search: Search, best: FoundLoss, form: Form) -> list[Step]:
    """Return the recommended loss and the commands that continue the work."""
    judgement = search.judgement
    found, rival = judgement.found, judgement.rival
    export = ("export", str(best.id), "--out", "my_loss.py")
    if judgement.is_win and found is not None:
        why = [] if search.explanation else [_advise("See why it is ahead", search, "explain")]
        return [Step(f"Train with {found.entrant.label}"), _advise("Export it", search, *export), *why]
    steps = []
    if form.is_lost and rival is not None and _is_recommended(search, rival.entrant):
        steps.append(Step(f"Use {rival.entrant.label}: on the {TEST} split it has {write_mean(rival.score)}"))
    if judgement.standing is Standing.NOT_COMPARED:
        steps.append(_advise("Compare it with the baselines", search, "compare"))
    if form.needs_seeds and not judgement.can_seeds_tell:
        steps.append(Step(f"Only a larger {TEST} split can settle it; more training seeds cannot"))
    elif form.needs_seeds:
        count = max(MORE_SEEDS, 2 * len(found.scores) if found else 0)
        steps.append(_advise("More training seeds may settle it", search, "compare", "--seeds", str(count)))
    if form.is_lost:
        longer = search.ladder and search.ladder.longer
        if longer:
            steps.append(Step(f"Train longer: {longer.entrant.label} has {longer.write_score()} on the valid split"))
        elif judgement.can_seeds_tell and not _knows_better(search, rival):
            more = ("--evaluations", f"+{search.configuration.evaluations}")
            steps.append(_advise("A longer search may find a better loss", search, "resume", *more))
    entrant = search.enter(best.id, best.formula)
    what = f"the known loss {entrant.name}" if entrant.known else f"the best loss found, {entrant.name}"
    return [*steps, _advise(f"Export {what}", search, *export)]


def _advise(text: str, search: Search, command: str, *arguments: str) -> Step:
    return Step(text, shlex.join(["autoloss", command, str(search.directory), *arguments]))


def describe_p_values(rows: Sequence[Row], judgement: Judgement | None) -> list[str]:
    """Describe the p-values of a comparison; empty if it has none."""
    test = "two-sided, paired over the same training seeds and, where resampled, examples"
    if judgement is None:
        reference = next((row.entrant.label for row in rows if row.entrant.baseline and row.reference is None), None)
        tested = any(row.p_value is not None for row in rows)
        return [f"p: against {reference}, {test}, not corrected"] if reference and tested else []
    if judgement.found is None or not judgement.p_values:
        return []
    return [f"p: {judgement.found.entrant.name} against this baseline, {test}{describe_correction(judgement)}"]
