"""Notes about a run for its user: a small budget, failing trainings, no progress, a changed task."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoloss.comparison.entrant import TEST
from autoloss.errors import FAILURES, RequestError, keep_text
from autoloss.evaluation.evaluator import Evaluator, draw_samples
from autoloss.numbers import figure
from autoloss.proposing.history import History
from autoloss.proposing.records import Outcome, State
from autoloss.settings import Configuration
from autoloss.space.branch import Sample
from autoloss.store.run_settings import Comparison, RunSettings, StartVerdict
from autoloss.store.store import Store
from autoloss.tasks.task import NETWORK, Task
from autoloss.training.recipe import NOT_COMPARED
from autoloss.workers.leases import build
from autoloss.zoo.entries import say_loss

MANY_FAILED, FAILED_SHARE = 5, 0.2
"""A search says that trainings fail when at least this number and this share of all did."""
RELATIVE, ABSOLUTE = 1e-2, 1e-3
"""Differences up to these come from another processor or GPU, which rounds in another way."""
ROUNDING = 1e-5
"""Likewise of what fingerprints data."""


def describe_starts(starts: Sequence[StartVerdict]) -> list[str]:
    """Describe the losses that a search starts from, and for each of the others the reason why not."""
    found, passed = [], list[str]()
    for start in starts:
        known = {name: g for name, g in start.g.items() if g is not None}
        scores = ", ".join(f"{name} g {g:.3f}".removeprefix("main ") for name, g in known.items())
        if start.reason is None:
            passed.append(say_loss(start.label))
        else:
            why = f"{start.reason} ({scores})" if scores else start.reason
            compared = " A comparison has it among the baselines." if start.is_compared else ""
            found.append(f"A random tree replaces {say_loss(start.label)}: {why}.{compared}")
    if len(starts) > 1 and not passed:
        # One sentence for all: each of them would say the same.
        reasons = "; ".join(f"{start.label}: {start.reason}" for start in starts)
        return [f"No known loss passes the rejection protocol ({reasons}). The search starts from random trees only."]
    if not passed:
        return found
    return [f"Starts from {len(passed)} known loss{'es' * (len(passed) > 1)}: {', '.join(passed)}.", *found]


def describe_budget(configuration: Configuration) -> list[str]:
    """Say whether the budget ends before the first candidate with a parent.

    >>> describe_budget(Configuration(evaluations=10))
    ['The budget covers 10 candidates, and the first 20 are random trees (evolution.initial), from which nothing is evolved. ...']
    """
    candidates = int(configuration.evaluations / configuration.search.rungs[0])
    if candidates > configuration.evolution.initial:
        return []
    first = "known losses and random trees" if configuration.evolution.start else "random trees"
    return [
        f"The budget covers {candidates} candidates, and the first {configuration.evolution.initial} are {first} "
        "(evolution.initial), from which nothing is evolved. Raise --evaluations, also later with `autoloss resume`."
    ]


def describe_plan(configuration: Configuration, final: float) -> str:
    """Say how many whole trainings take as long as a run; many of its trainings are shorter.

    >>> describe_plan(Configuration(evaluations=60).changed({"ladder.share": 0.2}), 118)
    'The run takes as long as about 190 whole trainings: 12 with the standard loss, 60 to search, 118 to confirm and compare.'
    """
    ladder = round(configuration.ladder_trainings)
    parts = {"with the standard loss": ladder, "to search": configuration.evaluations}
    parts |= {"to confirm and compare": round(final)}
    listed = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    return f"The run takes as long as about {sum(parts.values())} whole trainings: {listed}."


def describe_idle_workers(workers: int, configuration: Configuration) -> list[str]:
    """Say whether some workers will often have nothing to train; docs/measurements.md shows what a lag costs.

    >>> describe_idle_workers(2, Configuration().changed({"evolution.lag": 4}))
    []
    """
    lag = configuration.evolution.lag
    settings, wanted = {"evolution.lag": lag}, {"evolution.lag": max(lag, 2 * workers)}
    waits = lag < workers
    if len(configuration.search.rungs) > 1 and workers > 1:
        # While one candidate is trained whole, those up to this lag after it are trained shortly. Three quarters of what all
        # workers train in that time are enough.
        settings["search.promoted_lag"] = max(lag, configuration.search.promoted_lag)
        wanted["search.promoted_lag"] = math.ceil(workers / configuration.search.rungs[0])
        waits = waits or settings["search.promoted_lag"] < 0.75 * workers / configuration.search.rungs[0]
    if not waits:
        return []
    now, better = (" and ".join(f"{name}={value}" for name, value in each.items()) for each in (settings, wanted))
    return [
        f"With {now}, some of the {workers} workers will often wait. Set {better} to keep nearly all busy; candidates are then "
        "proposed from fewer of the latest scores."
    ]


def describe_failures(outcomes: Sequence[Outcome], directory: object) -> list[str]:
    """Say that many trainings fail, and why the last one did; nothing where few do.

    >>> describe_failures([Outcome(state=State.SCORED, score=1.0)] * 20, "runs/x")
    []
    """
    failed = [outcome for outcome in outcomes if outcome.state is State.FAILED]
    if len(failed) < MANY_FAILED or len(failed) < FAILED_SHARE * len(outcomes):
        return []
    reason = keep_text(next(iter(failed[-1].reason.splitlines()), "no reason was given"), 300)
    return [
        f"{len(failed)} of {len(outcomes)} trainings failed so far, and have no score. The last one: {reason}. "
        f"`autoloss failures {directory}` lists them. Ctrl-C ends the search; its results are saved."
    ]


class Concerns:
    """Notices that many trainings fail."""

    def __init__(self, history: History, directory: object) -> None:
        self._history, self._directory, self._due = history, directory, 0

    def describe(self) -> list[str]:
        """Say what is new since the last call."""
        outcomes = self._history.outcomes
        if len(outcomes) <= self._due:
            return []
        found = describe_failures(list(outcomes.values()), self._directory)
        # Said again when as many more have ended.
        self._due = len(outcomes) * (2 if found else 1)
        return found


def describe_changes(evaluator: Evaluator, settings: RunSettings, *, untrained: bool = True) -> str:
    """Say in a sentence how the task differs from the beginning of the run; an empty text where it does not.

    Samples, the metric on them, the untrained network's score, the standard loss and the recipe are compared. Another number
    of outputs is refused.

    Args:
        evaluator: With the samples that the run keeps.
        untrained: Whether networks are evaluated on whole splits, which takes longer than all else.
    """
    task, configuration = evaluator.task, settings.configuration
    found: list[str] = []
    drawn: Mapping[str, Sequence[Sample]] = {}
    # What fails here fails in tests and trainings as well, and is told there.
    with suppress(*FAILURES):
        drawn = draw_samples(task, configuration.rejection.samples, configuration.seed)
    for name, now in drawn.items():
        if (had := evaluator.samples[name][0].prediction.shape[1]) != (has := now[0].prediction.shape[1]):
            raise RequestError(_advise_changed([f"the branch {name} has {has} outputs instead of {had}"]))
        same = _are_same(evaluator.samples[name], now)
        found += [] if same else [f"the samples of the branch {name} differ: its data or network changed"]
    found += [
        f"the metric of the branch {name} differs on the samples of the run"
        for name, now in evaluator.measure_half_right().items()
        if (before := settings.half_right.get(name)) and not np.allclose(now, before, RELATIVE, ABSOLUTE)
    ]
    prints = task.fingerprints()
    found += [
        "the network differs" if name == NETWORK else f"the {name} data differ"
        for name, before in settings.fingerprints.items()
        if before and (now := [*map(float, prints.get(name, ()))]) and not _have_one_print(before, now)
    ]
    found += _compare_untrained(evaluator, settings) if untrained else []
    if settings.standard_loss and dict(settings.standard_loss) != dict(task.standard):
        now, before = ("; ".join(losses.values()) for losses in (task.standard, settings.standard_loss))
        found.append(f"its standard loss is {now or 'none'} instead of {before}")
    recipe = read_recipe(task)
    found += [
        f"its recipe has {name} {recipe[name]} instead of {settings.recipe[name]}"
        for name in sorted(settings.recipe.keys() & recipe.keys())
        # As text, a NaN is the same NaN.
        if json.dumps(recipe[name], sort_keys=True) != json.dumps(settings.recipe[name], sort_keys=True)
    ]
    return _advise_changed(found) if found else ""


def _compare_untrained(evaluator: Evaluator, settings: RunSettings) -> list[str]:
    found: list[str] = []
    with suppress(*FAILURES):
        for split, before, now in (
            ("valid", settings.untrained, evaluator.measure_untrained()),
            (TEST, settings.untrained_on_test, read_untrained_on_test(evaluator)),
        ):
            if before is None or (now is not None and math.isclose(now, before, rel_tol=RELATIVE, abs_tol=ABSOLUTE)):
                continue
            score = "has no score" if now is None else f"scores {figure(now)}"
            changed = f"the metric, the network or the {split} split changed"
            found.append(f"the untrained network {score} instead of {figure(before)} on the {split} split: {changed}")
    return found


def _advise_changed(found: Sequence[str]) -> str:
    return (
        f"The task has changed since the run began: {'; '.join(found)}. Earlier and later scores are not comparable: what "
        "was trained after the search on another task does not count now. "
        "Restore the task, or start a new run with another --out; if the data are split at random, fix the seed of the split."
    )


def _describe_upgrade(before: Sequence[str]) -> list[str]:
    pairs = [(old, new) for old, new in zip(before, build(), strict=False) if old != new]
    if not pairs:
        return []
    old, new = (", ".join(one) for one in zip(*pairs, strict=True))
    return [
        f"The run began with {old} and continues with {new}: results may differ in the last digits, and with them the history of "
        "an uninterrupted search and of `autoloss replay --full`."
    ]


def note_changes(
    evaluator: Evaluator, settings: RunSettings, store: Store, candidates: int, say: Callable[[str], None]
) -> None:
    """Say how the task differs from the beginning of the run, and keep it for every later reader.

    What was trained beside the search with another task than now stays in the store, but takes part in no verdict.

    Args:
        candidates: Number of candidates that were proposed before.
    """
    changed, kept = describe_changes(evaluator, settings), list(settings.changes)
    for text in filter(None, [*_describe_upgrade(settings.build), changed]):
        say(text)
        if not any(one.endswith(text) for one in kept):
            kept.append(f"After candidate #{candidates - 1}: {text}")
    if settings.task_version and not changed:
        kept.append(f"After candidate #{candidates - 1}: the task is again as the run began.")
    version = 1 + next(at for at, one in enumerate(kept) if one.endswith(changed)) if changed else 0
    if kept != list(settings.changes):
        store.change_setting("changes", kept)
    if version != settings.task_version:
        for name, value in (("task_version", version), ("comparison", Comparison()), ("explanation", None)):
            store.change_setting(name, value)


def read_untrained_on_test(evaluator: Evaluator) -> float | None:
    """Return the score of the untrained network on the test split; None where that is not known."""
    with suppress(*FAILURES):
        return evaluator.measure_untrained(split=TEST) if TEST in evaluator.task.splits else None
    return None


def read_recipe(task: Task) -> dict[str, Any]:
    """Return the recipe of a task's proxy trainings, without `NOT_COMPARED`; nothing where JSON cannot hold it."""
    with suppress(*FAILURES):
        return _clean(json.loads(json.dumps(dict(task.recipe("proxy")))))
    return {}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return NOT_COMPARED.sub("", value) if isinstance(value, str) else value


def _are_same(stored: Sequence[Sample], drawn: Sequence[Sample]) -> bool:
    return len(stored) == len(drawn) and all(
        before.context.keys() == now.context.keys()
        and all(_are_close(one, now.context[name]) for name, one in before.context.items())
        and _are_close(before.prediction, now.prediction)
        for before, now in zip(stored, drawn, strict=True)
    )


def _have_one_print(before: Sequence[float], now: Sequence[float]) -> bool:
    return len(before) == len(now) and np.allclose(before, now, ROUNDING, ROUNDING, equal_nan=True)


def _are_close(before: Tensor, now: Tensor) -> bool:
    one, other = before.double(), now.detach().cpu().double()
    return one.shape == other.shape and torch.allclose(one, other, RELATIVE, ABSOLUTE, equal_nan=True)
