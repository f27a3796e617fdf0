"""All settings of a run in one value, grouped by the paper's headings; each has a name, `group.name`, by which it is changed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from autoloss.conversion import convert, parse_json
from autoloss.errors import RequestError, quote, unknown

Threshold = Literal["relative", "absolute"]
THRESHOLDS = ("relative", "absolute")
EngineName = Literal["fast", "reference"]
ENGINES = ("fast", "reference")
MOST_SAMPLES, MOST_STEPS = 1_000, 1_000_000
"""Larger values, such as a typing error, would fill the memory or test the first loss for days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolSettings:
    """The rejection protocol; the defaults are those of Appendix A.

    Raises:
        RequestError: A value is outside its range.
    """

    samples: int = 5
    """B, the number of samples per branch."""
    threshold: float = 0.6
    """η, the smallest correlation score g that passes."""
    unit: Threshold = "relative"
    """`absolute`: g in the metric's unit, the paper's; `relative`: as a share of what the samples can gain."""
    admit_standard: bool = False
    """Where the standard loss of a softmax or sigmoid has a g below η and at least half of it, lower η before the search to 0.9 of
    that g: losses like it then pass."""
    steps: int = 500
    learning_rate: float = 0.001
    """Step of SGD on the *sum* over all elements; Appendix A normalises nothing here."""
    momentum: float = 0.9
    engine: EngineName = "fast"
    """`fast` is the compiled engine, `reference` plain autograd; both decide alike."""

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise unknown("engine", str(self.engine), ENGINES)
        if self.unit not in THRESHOLDS:
            raise unknown("unit of the threshold", str(self.unit), THRESHOLDS)
        for name, value, most in (("samples", self.samples, MOST_SAMPLES), ("steps", self.steps, MOST_STEPS)):
            if not 1 <= value <= most:
                raise RequestError(f"rejection.{name} is {value}; it needs to be at least 1 and at most {most}.")
        if not self.learning_rate > 0:
            raise RequestError(f"rejection.learning_rate is {self.learning_rate}; it needs to be above 0.")
        if not 0 <= self.momentum < 1:
            raise RequestError(f"rejection.momentum is {self.momentum}; it needs to be in [0, 1).")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How candidates are proposed and trained; the defaults are the paper's, every candidate trained whole at its own scale.

    Raises:
        RequestError: A value is outside its range.
    """

    proposer: str = "evolution"
    """`evolution` is the paper's; `guided` is the same, but trains the most promising of several mutations, by a model of the
    scores; `random` draws every candidate from nothing, as a control. All draw under the same protocol."""
    pool: int = 4
    """Number of passing mutations of which `guided` trains one."""
    guided_share: float = 1.0
    """Share of the candidates whose mutations `guided` chooses by its model; it trains those of the others as they are drawn."""
    rungs: tuple[float, ...] = (1.0,)
    """Shares of the proxy's schedule, rising to 1: candidates are trained at the first, and the best of each at the next. Parents
    are found by the score at the first, winners by that at the last."""
    promote: float = 0.05
    """Share of the candidates with a score at one rung that are trained at the next."""
    promoted_lag: int = 0
    """What a promoted candidate came to is known to candidates so many places later, and at least `evolution.lag`. It trains longer
    than others, which are not to wait for it."""
    niche: float = 0.0
    """Losses whose gradients on the samples differ by less than this, about a share of the norm, are one niche: it takes part in a
    tournament for parents with one of its best, so that the variants of one loss count once. At 0 each counts for itself."""
    scale: bool = False
    """Multiply each tree by the factor at which its gradient on the samples has the norm of the standard loss's. The factor is
    part of the loss that is found, and losses that are equal up to a factor are trained once."""
    learning_rate: float = 1.0
    """Factor on the learning rate of the task's proxy, for all candidates."""

    def __post_init__(self) -> None:
        if not 1 <= self.pool <= 100:
            raise RequestError(f"search.pool is {self.pool}; it needs to be from 1 to 100.")
        if not 0 <= self.guided_share <= 1:
            raise RequestError(f"search.guided_share is {self.guided_share}; a share is in [0, 1].")
        rungs = self.rungs
        if not rungs or rungs[-1] != 1 or not rungs[0] > 0 or any(a >= b for a, b in itertools.pairwise(rungs)):
            raise RequestError(
                f"search.rungs is {','.join(f'{rung:g}' for rung in rungs)}; expected rising shares of the schedule above 0, "
                "with 1 as the last, such as 0.125,1."
            )
        if not 0 < self.promote <= 1:
            raise RequestError(f"search.promote is {self.promote}; a share is in (0, 1].")
        if self.promoted_lag < 0:
            raise RequestError(f"search.promoted_lag is {self.promoted_lag}; it cannot be negative.")
        if not 0 <= self.niche < math.inf:
            raise RequestError(f"search.niche is {self.niche}; it needs to be at least 0.")
        if not 0 < self.learning_rate < math.inf:
            raise RequestError(f"search.learning_rate is {self.learning_rate}; it needs to be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionSettings:
    """The evolution; the defaults are those of Appendix A where it has them.

    Raises:
        RequestError: A value is outside its range.
    """

    initial: int = 20
    """K, the number of candidates drawn from nothing at the beginning."""
    start: tuple[str, ...] = ()
    """Losses to start from instead of the first of the K draws. In place of one that is rejected, a loss is drawn."""
    depth: int = 3
    """D, operators on every path of a tree drawn from nothing."""
    tournament: float = 0.05
    """T, the share of the population that takes part in a tournament. With K = 20 that is one contestant."""
    population: int = 2500
    """P, the most recent scored losses among which parents are found."""
    lag: int = 4
    """Candidate k depends on the outcomes up to candidate k − lag; at most this many trainings run at a time, besides those of
    promoted candidates (`search.promoted_lag`)."""
    one_branch: bool = False
    """Change only one random branch of a candidate, instead of drawing for each branch."""
    maximum_operators: int = 64
    """Larger trees are rejected. The paper states no limit; this one bounds the memory."""
    mutation_attempts: int = 10_000
    """Rejected attempts after which a mutation is replaced by a fresh tree."""
    attempts: int = 1_000_000
    """Rejected attempts at one branch after which the run ends."""
    idle_children: int = 1_000
    """Successive candidates without a training of their own after which the run ends."""

    def __post_init__(self) -> None:
        for name in ("initial", "population", "lag", "mutation_attempts", "attempts", "idle_children"):
            if getattr(self, name) < 1:
                raise RequestError(f"evolution.{name} is {getattr(self, name)}; it needs to be at least 1.")
        if len(self.start) > self.initial:
            raise RequestError(
                f"The search starts from {len(self.start)} losses, but evolution.initial is {self.initial}: they take the place "
                "of the first of those. Raise evolution.initial, or give fewer."
            )
        if not 1 <= self.maximum_operators <= 64:
            raise RequestError(
                f"evolution.maximum_operators is {self.maximum_operators}; it needs to be from 1 to 64: texts of deeper "
                "trees are not read, and memory grows with the tree."
            )
        if self.depth < 1 or self.depth > 6:
            raise RequestError(f"evolution.depth is {self.depth}; it needs to be from 1 to 6.")
        if self.maximum_operators < self.depth:
            raise RequestError(
                f"evolution.maximum_operators is {self.maximum_operators}, and a tree drawn from nothing has at least "
                f"evolution.depth = {self.depth}. Raise the one, or lower the other."
            )
        if not 0 < self.tournament <= 1:
            raise RequestError(f"evolution.tournament is {self.tournament}; a share is in (0, 1].")


@dataclass(frozen=True, slots=True, kw_only=True)
class OffspringSettings:
    """How a candidate is made from its parent; the probabilities are those of Section 3.2.

    Raises:
        RequestError: A probability is outside [0, 1].
    """

    copy: float = 0.1
    """Probability that a candidate is a copy of its parent."""
    fresh: float = 0.5
    """Probability that a candidate that is no copy is a random tree instead of a mutation."""

    def __post_init__(self) -> None:
        for name, value in (("copy", self.copy), ("fresh", self.fresh)):
            if not 0 <= value <= 1:
                raise RequestError(f"offspring.{name} is {value}; a probability is in [0, 1].")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """Limits of time and memory.

    Raises:
        RequestError: A limit is not above 0.
    """

    wall_clock_seconds: float | None = None
    """Seconds after which the search ends, at its first unfinished candidate."""
    explored: int | None = None
    """Number of drawn losses after which the search ends."""
    training_seconds: float = 3600.0
    """Deadline of one proxy training; a training that exceeds it is killed and counts as failed."""
    testing_seconds: float = 900.0
    """Deadline of one batch of rejection tests."""
    memory_gigabytes: float | None = None
    """Resident memory of one worker with all its processes, in 2**30 bytes. A worker that exceeds it is killed, and its job is
    tried again. None: no limit but the machine's."""
    charge_diverged: bool = False
    """Whether diverged trainings count towards the budget."""

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_gigabytes is None else round(self.memory_gigabytes * 2**30)

    def __post_init__(self) -> None:
        for name in ("wall_clock_seconds", "explored", "training_seconds", "testing_seconds", "memory_gigabytes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise RequestError(f"limits.{name} is {value}; it needs to be above 0.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSettings:
    """The search space besides the leaves of the branches (Section 3.1)."""

    without: tuple[str, ...] = ()
    """Operators that are switched off."""
    operators: tuple[str, ...] = ()
    """The user's own: `file.py:name`, or the name of one that was given as an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalSettings:
    """The trainings that follow a search: the best losses on new seeds, then compared with baselines.

    Raises:
        RequestError: A count is negative.
    """

    confirm: int = 10
    """Number of best candidates that are trained on new training seeds, on the valid split."""
    confirm_seeds: int = 2
    finalists: int = 4
    """Number of the best on those seeds that race on further ones: a loss that fails one training in five shows it."""
    finalist_seeds: int = 3
    """Further seeds per finalist, at most and on average: those clearly behind get fewer, close ones up to twice as many."""
    compare: int = 1
    """Number of these that are compared with the baselines on the test split. The judgement is about the first of them alone."""
    compare_seeds: int = 8
    """Seeds of that comparison; docs/results.md shows how often so many see a difference."""

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            if getattr(self, setting.name) < 0:
                raise RequestError(f"final.{setting.name} is {getattr(self, setting.name)}; it cannot be negative.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that decides the history of a run, and its limits.

    Raises:
        RequestError: `evaluations` is below 1, or the seed negative.
    """

    evaluations: int = 500
    """N, the budget, in whole proxy trainings; one at a share of the schedule is charged with that share."""
    seed: int = 0
    """Seed of everything that is drawn."""
    space: SpaceSettings = field(default_factory=SpaceSettings)
    search: SearchSettings = field(default_factory=SearchSettings)
    evolution: EvolutionSettings = field(default_factory=EvolutionSettings)
    offspring: OffspringSettings = field(default_factory=OffspringSettings)
    rejection: ProtocolSettings = field(default_factory=ProtocolSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    final: FinalSettings = field(default_factory=FinalSettings)

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise RequestError(f"evaluations is {self.evaluations}; a search needs at least 1.")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed is {self.seed}; it needs to be from 0 to 2**63 - 1.")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Configuration:
        """Read what `to_json` wrote; an unknown setting is an error.

        Raises:
            RequestError: It is no configuration, or has an unknown group or setting.
        """
        try:
            values = parse_json(text)
        except ValueError as error:
            raise RequestError(f"This is no configuration of a run: {error}; found {quote(text)}.") from None
        groups = _groups()
        for part in (values, *(values.get(name, {}) for name in groups)) if isinstance(values, dict) else (values,):
            if not isinstance(part, dict):
                raise RequestError(
                    f"This is no configuration of a run: expected groups of settings, found {quote(part)}."
                )
        changes = {name: values.pop(name) for name in list(values) if name not in groups}
        for group, settings in values.items():
            changes.update({f"{group}.{name}": value for name, value in settings.items()})
        return cls().changed(changes)

    def changed(self, settings: Mapping[str, Any]) -> Configuration:
        """Return a configuration with some settings changed; texts are read as the setting's type.

        Args:
            settings: `evolution.lag` and the like → value or its text.

        Raises:
            RequestError: An unknown setting, or a value that does not fit.
        """
        top: dict[str, Any] = {}
        groups: dict[str, dict[str, Any]] = {}
        for key, value in settings.items():
            if key not in _types():
                raise unknown("setting", key, _types())
            group, dot, name = key.rpartition(".")
            (groups.setdefault(group, {}) if dot else top)[name] = convert(key, value, _types()[key])
        for group, values in groups.items():
            top[group] = dataclasses.replace(getattr(self, group), **values)
        return dataclasses.replace(self, **top)


def setting_names() -> list[str]:
    """Return the names of all settings.

    >>> setting_names()[:3]
    ['evaluations', 'seed', 'space.without']
    """
    return list(_types())


def _groups() -> dict[str, type]:
    hints = typing.get_type_hints(Configuration)
    return {name: kind for name, kind in hints.items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)}


@functools.cache
def _types() -> Mapping[str, Any]:
    """Return the type of each setting by its name."""
    groups = _groups()
    found = {name: kind for name, kind in typing.get_type_hints(Configuration).items() if name not in groups}
    for group, settings in groups.items():
        found |= {f"{group}.{name}": kind for name, kind in typing.get_type_hints(settings).items()}
    return found
