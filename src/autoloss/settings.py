"""All settings of a run in one value, grouped by the paper's headings; each has a name, `group.name`, by which it is changed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from autoloss.errors import RequestError, quote, unknown
from autoloss.files import parse_json
from autoloss.options import Amount, Count, Natural, Positive, PositiveShare, Share, ShareBelowOne, declare, list_types

Threshold = Literal["relative", "absolute"]
StepRule = Literal["recipe", "clipped", "one_norm", "adamw", "warmup", "cosine"]
"""How a gradient becomes a step: as the recipe says; with the gradient's norm clipped; with every gradient scaled to norm 1; by
AdamW in place of the recipe's optimizer; with a learning rate that first rises; or one that falls as a cosine."""
_WEIGHT = re.compile(r"\w+=(?=.*[1-9])(\d+\.?\d*|\.\d+)")
EngineName = Literal["fast", "reference"]
MOST_SAMPLES, MOST_STEPS = 1_000, 1_000_000
"""Larger values, such as a typing error, would fill the memory or test the first loss for days."""


@declare("rejection.", "setting")
class ProtocolSettings:
    """The rejection protocol; the defaults are those of Appendix A."""

    samples: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 5
    """B, the number of samples per branch."""
    threshold: float = 0.6
    """η, the smallest correlation score g that passes."""
    unit: Threshold = "relative"
    """`absolute`: g in the metric's unit, the paper's; `relative`: as a share of what the samples can gain."""
    admit_standard: bool = False
    """Lower η before the search to 0.9 of the g of the standard loss of a softmax or sigmoid, if that g is below η and at least
    half of it: losses like the standard loss then pass."""
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] = 500
    learning_rate: Positive = 0.001
    """Step of SGD on the *sum* over all elements; Appendix A normalises nothing here."""
    momentum: ShareBelowOne = 0.9
    engine: EngineName = "fast"
    """`fast` is the compiled engine, `reference` plain autograd; both decide alike."""


@declare("search.", "setting")
class SearchSettings:
    """Proposing and training of candidates; the defaults are the paper's, every candidate trained whole at its own scale."""

    proposer: str = "evolution"
    """`evolution` is the paper's; `guided` is the same, but trains the most promising of several mutations, by a model of the
    scores; `random` draws every candidate from nothing, as a control. All draw under the same protocol."""
    pool: Annotated[int, Field(ge=1, le=100)] = 4
    """Number of passing mutations of which `guided` trains one."""
    guided_share: Share = 1.0
    """Share of the candidates whose mutations `guided` chooses by its model; it trains those of the others as they are drawn."""
    rungs: tuple[float, ...] = (1.0,)
    """Shares of the proxy's schedule, rising to 1: candidates are trained at the first, and the best of each at the next. Parents
    are found by the score at the first, winners by that at the last."""
    promote: PositiveShare = 0.05
    """Share of the candidates with a score at one rung that are trained at the next."""
    promote_start: Share = 0.0
    """Share of the training equivalents spent so far that goes into whole trainings of the losses that the search started from, the
    best at the first rung first, until all are trained whole; the first as soon as all have begun. The paper has no such losses."""
    promoted_lag: Natural = 0
    """Lag of the outcomes of promoted candidates, at least `evolution.lag`: they train longer, and others do not wait for them."""
    prior: str = "none"
    """A ranking of losses learned from earlier tasks: `default`, in the package; a file that `autoloss learn` wrote; or `none`. It
    orders the trees among which `guided` chooses."""
    prior_digest: str = ""
    """Digest of the prior of a run; set where the search starts."""
    resolution: Amount = 0.0
    """Scores of single trainings within steps of this size count as equal where parents and promotions are found, and the loss with
    fewer operators is ahead (lexicographic parsimony in buckets; Luke & Panait, 2002). With several rungs, the ladder sets it to
    the standard error that the examples of the valid split leave in a difference."""
    scale: bool = False
    """Multiply each tree by the factor at which its gradient on the samples has the norm of the standard loss's. The factor is
    part of the loss that is found, and losses that are equal up to a factor are trained once."""
    learning_rate: Positive = 1.0
    """Factor on the learning rate of the task's proxy, for all candidates."""
    length: Positive = 1.0
    """Factor on the epochs that a task chose by itself; set where a search starts, so that the standard loss learns."""
    step_rule: StepRule = "recipe"
    """How the gradients of all candidates become steps: `recipe`, as the task's proxy says; `clipped` at norm 0.5; `one_norm`, all
    scaled to norm 1; `adamw` in place of the recipe's SGD; `warmup` over the first tenth of the steps; or `cosine`, a schedule of
    the learning rate."""
    tuned_threshold: bool = False
    """Decide between yes and no at the threshold that is best on the valid split instead of 0.5, for all candidates."""
    weights: tuple[str, ...] = ()
    """Factors on single branches, such as `rpn_cls=3`: with `search.scale`, the trees of that branch are brought to so many times
    the norm of the standard loss's gradient."""
    direction: bool = False
    """Count losses as equal whose gradients on each sample differ by a positive factor alone: for trainings whose steps do not
    grow with the gradient."""

    @property
    def branch_weights(self) -> dict[str, float]:
        """Branch → factor, of `weights`."""
        return {name: float(factor) for name, _, factor in (weight.partition("=") for weight in self.weights)}

    def __post_init__(self) -> None:
        for weight in self.weights:
            if not _WEIGHT.fullmatch(weight):
                raise RequestError(f"search.weights has {quote(weight)}; expected branch=factor, such as rpn_cls=3.")
        rungs = self.rungs
        if not rungs or rungs[-1] != 1 or not rungs[0] > 0 or any(a >= b for a, b in itertools.pairwise(rungs)):
            raise RequestError(
                f"search.rungs is {','.join(f'{rung:g}' for rung in rungs)}; expected rising shares of the schedule above 0, "
                "with 1 as the last, such as 0.125,1."
            )


@declare("evolution.", "setting")
class EvolutionSettings:
    """The evolution; the defaults are those of Appendix A where it has them."""

    initial: Count = 20
    """K, the number of candidates drawn from nothing at the beginning."""
    start: tuple[str, ...] = ()
    """Losses to start from instead of the first of the K draws. In place of one that is rejected, a loss is drawn."""
    valid_draws: bool = False
    """Draw only trees that depend on prediction and target, as likely as the others would be rejected for it, and leave out the
    operators that change nothing on a branch's shape, such as pools of rows. Without it, nine of ten trees are drawn in vain."""
    depth: Annotated[int, Field(ge=1, le=6)] = 3
    """D, operators on every path of a tree drawn from nothing."""
    tournament: PositiveShare = 0.05
    """T, the share of the population that takes part in a tournament. With K = 20 that is one contestant."""
    population: Count = 2500
    """P, the most recent scored losses among which parents are found."""
    lag: Count = 4
    """Candidate k depends on the outcomes up to candidate k − lag; at most this many trainings run at a time, besides those of
    promoted candidates (`search.promoted_lag`)."""
    one_branch: bool = False
    """Change only one random branch of a candidate, instead of drawing for each branch."""
    maximum_operators: Annotated[int, Field(ge=1, le=64)] = 64
    """Maximum number of operators of a tree; larger ones are rejected, and their texts not read. The paper states no limit; this
    one bounds the memory."""
    mutation_attempts: Count = 10_000
    """Rejected attempts after which a mutation is replaced by a fresh tree."""
    fresh_attempts: Count | None = None
    """Attempts at fresh trees after which the parent is mutated instead, or, where there is no parent yet, a loss to start from.
    None, as in the paper: no limit. On some regressions one tree in thousands passes, and is a known loss."""
    attempts: Count = 1_000_000
    """Rejected attempts at one branch after which the run ends."""
    idle_children: Count = 1_000
    """Successive candidates without a training of their own after which the run ends."""

    def __post_init__(self) -> None:
        if len(self.start) > self.initial:
            raise RequestError(
                f"{len(self.start)} losses to start from are more than evolution.initial = {self.initial}, the number of first "
                "candidates. Raise evolution.initial, or give fewer losses."
            )
        if self.maximum_operators < self.depth:
            raise RequestError(
                f"evolution.maximum_operators is {self.maximum_operators}; a random tree has at least evolution.depth = "
                f"{self.depth} operators. Raise evolution.maximum_operators, or lower evolution.depth."
            )


@declare("offspring.", "setting")
class OffspringSettings:
    """The step from a parent to a candidate; the probabilities are those of Section 3.2."""

    copy: Share = 0.1
    """Probability that a candidate is a copy of its parent."""
    fresh: Share = 0.5
    """Probability that a candidate that is no copy is a random tree instead of a mutation."""
    sum: Share = 0.0
    """Share of the mutations in whose place the parent is added to a second parent, with a random weight; the paper has none."""
    refine: Share = 0.0
    """Share of the mutations in whose place one factor or power of the parent is changed; the paper has none."""

    def __post_init__(self) -> None:
        if self.sum + self.refine > 1:
            raise RequestError(f"offspring.sum + offspring.refine is {self.sum + self.refine:g}; expected at most 1.")


@declare("limits.", "setting")
class LimitSettings:
    """Limits of time and memory."""

    wall_clock_seconds: Positive | None = None
    """Seconds after which the search ends, at its first unfinished candidate."""
    explored: Count | None = None
    """Number of drawn losses after which the search ends."""
    training_seconds: Positive = 3600.0
    """Deadline of one proxy training; a training that exceeds it is killed and counts as failed."""
    testing_seconds: Positive = 900.0
    """Deadline of one batch of rejection tests."""
    memory_gigabytes: Positive | None = None
    """Resident memory of one worker with all its processes, in 2**30 bytes. A worker that exceeds it is killed, and its job is
    tried again. None: no limit but the machine's."""
    charge_diverged: bool = False
    """Charge diverged trainings to the budget."""

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit of a worker in bytes; None without a limit."""
        return None if self.memory_gigabytes is None else round(self.memory_gigabytes * 2**30)


@declare("space.", "setting")
class SpaceSettings:
    """The search space besides the leaves of the branches (Section 3.1)."""

    without: tuple[str, ...] = ()
    """Operators that are switched off."""
    operators: tuple[str, ...] = ()
    """Operators of the user: `file.py:name`, or the name of one that was given as an object."""


LEAST_LADDER = 8.0
"""Training equivalents that have room for the rates of all step rules, weights of the classes and a tuned threshold."""


@declare("ladder.", "setting")
class LadderSettings:
    """The expert's ladder before a search: what an expert would try with the standard loss; see `comparison/ladder.py`."""

    share: Amount = 0.0
    """Training equivalents that it may spend, as a share of the budget and beside it, at least 8 where the budget is that; 0, as
    in the paper, leaves it out."""


@declare("final.", "setting")
class FinalSettings:
    """The trainings that follow a search: the best losses on new seeds, then compared with baselines."""

    confirm: Natural = 10
    """Number of best candidates that are trained on new training seeds, on the valid split."""
    confirm_seeds: Natural = 2
    finalists: Natural = 4
    """Number of the best on those seeds that race on further ones: a loss that fails one training in five shows it."""
    finalist_seeds: Natural = 3
    """Further seeds per finalist, at most and on average: those clearly behind get fewer, close ones up to twice as many."""
    compare: Natural = 1
    """Number of finalists that are compared with the baselines on the test split; the judgement concerns the best of them alone."""
    compare_seeds: Natural = 8
    """Seeds of that comparison; docs/measurements.md shows how often so many see a difference."""

    @property
    def confirmations(self) -> int:
        """Trainings on new seeds of each of the best candidates; with none, the highest scores are compared."""
        return self.confirm_seeds if self.confirm else 0

    @property
    def candidates(self) -> int:
        """Number of candidates that something follows for."""
        return self.confirm or self.compare


@declare(kind="setting")
class Configuration:
    """Everything that decides the history of a run, and its limits; the defaults are the paper's.

    Raises:
        RequestError: An unknown setting, or a value that does not fit.

    >>> Configuration(evaluations=60, evolution=EvolutionSettings(lag=8)).changed({"rejection.steps": "2e2"}).rejection.steps
    200
    """

    evaluations: Count = 500
    """N, the budget, in whole proxy trainings; one at a share of the schedule is charged with that share."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of everything that is drawn."""
    space: SpaceSettings = SpaceSettings()
    search: SearchSettings = SearchSettings()
    evolution: EvolutionSettings = EvolutionSettings()
    offspring: OffspringSettings = OffspringSettings()
    rejection: ProtocolSettings = ProtocolSettings()
    limits: LimitSettings = LimitSettings()
    ladder: LadderSettings = LadderSettings()
    final: FinalSettings = FinalSettings()

    @property
    def ladder_trainings(self) -> float:
        """Training equivalents that the ladder may spend: a small budget's share has no room for what an expert tries."""
        spent = self.ladder.share * self.evaluations
        return max(spent, LEAST_LADDER) if self.ladder.share and self.evaluations >= LEAST_LADDER else spent

    def to_json(self) -> str:
        """Return the text that `from_json` reads."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Configuration:
        """Read what `to_json` wrote.

        Raises:
            RequestError: The text is not a configuration, or has an unknown group or setting.
        """
        try:
            values = parse_json(text)
        except ValueError as error:
            raise RequestError(f"This is no configuration of a run: {error}; found {quote(text)}.") from None
        changes: dict[str, Any] = {}
        for group, settings in values.items() if isinstance(values, dict) else [("", values)]:
            if group in _GROUPS and isinstance(settings, dict):
                changes |= {f"{group}.{name}": value for name, value in settings.items()}
            elif group in ("", *_GROUPS):
                raise RequestError(f"A configuration has groups of settings; found {quote(settings)}.")
            else:
                changes[group] = settings
        return cls().changed(changes)

    def changed(self, settings: Mapping[str, Any]) -> Configuration:
        """Return a configuration with some settings changed; texts are read as the setting's type.

        Args:
            settings: Name, such as `evolution.lag` → value or its text.

        Raises:
            RequestError: An unknown setting, or a value that does not fit.
        """
        groups: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            if key not in setting_names():
                raise unknown("setting", key, setting_names())
            group, _, name = key.rpartition(".")
            groups.setdefault(group, {})[name] = value
        top = groups.pop("", {})
        parts = {group: dataclasses.replace(getattr(self, group), **values) for group, values in groups.items()}
        return dataclasses.replace(self, **top, **parts)


def setting_names() -> list[str]:
    """Return the names of all settings.

    >>> setting_names()[:3]
    ['evaluations', 'seed', 'space.without']
    """
    own = [name for name in list_types(Configuration) if name not in _GROUPS]
    return own + [f"{group}.{name}" for group, kind in _GROUPS.items() for name in list_types(kind)]


_GROUPS = {name: kind for name, kind in list_types(Configuration).items() if dataclasses.is_dataclass(kind)}
