"""Runs as a search leaves them, written through the store, without a search; and pages as a reader sees them."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from autoloss import __version__
from autoloss.comparison.entrant import COMPARISON, CONFIRMATION, Entrant, training_seeds
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.settings import Configuration
from autoloss.space.form import BranchForm
from autoloss.store.run_settings import Comparison, RunSettings, TaskReference
from autoloss.store.store import Store
from autoloss.training.training import Training

CE, ROOT, POOLED = "neg(mul(y, log(p)))", "sqrt(neg(mul(p, y)))", "max_pool(add(neg(mul(y, log(p))), mean_c(p)))"
SCALED = f"0.371 * {CE}"
KEY = Training(seed=0)
COUNTS = {"sampled": 90, "simulated": 8, "passed": 1, "reused": 3, "STRUCTURE": 80, "LOW_GAIN": 6, "NOT_FINITE": 3}


def begin(
    directory: Path,
    *,
    title: str = "digits-seg",
    task: TaskReference = TaskReference("digits-seg", {"metric": "miou"}),  # noqa: B008 - frozen
    branches: Mapping[str, BranchForm] | None = None,
    **settings: Any,
) -> Path:
    """Write the settings of a run."""
    directory.mkdir(parents=True, exist_ok=True)
    forms = branches or {"main": BranchForm()}
    configuration = Configuration().changed({"evaluations": 6, **settings})
    with Store(directory, write=True) as store:
        store.write_settings(
            RunSettings(configuration=configuration, task=task, title=title, branches=forms, release=__version__)
        )
    return directory


def candidate(
    number: int, loss: str = CE, *, parent: int | None = None, source: int | None = None, **changes: Any
) -> Candidate:
    values: dict[str, Any] = {
        "id": number,
        "parent": parent,
        "kinds": {"main": "fresh" if parent is None else "mutated"},
        "attempts": {"main": 3},
        "loss": loss,
        "origin": Origin.TRAINED if source is None else Origin.TWIN,
        "source": source,
        "signature": {"main": ("1.0e+00",)},
        "scores": {"main": (0.9, 0.8, 1.0)},
        "counts": COUNTS,
    }
    return Candidate(**{**values, **changes})


def scored(score: float, curve: Sequence[tuple[int, float]] = ((1, 2.0), (50, 0.5), (100, 0.25))) -> Outcome:
    return Outcome(state=State.SCORED, score=score, also={"gacc": score / 2}, curve=tuple(curve), seconds=1.0)


def add(directory: Path, *rows: tuple[Candidate, Outcome | None]) -> None:
    with Store(directory, write=True) as store:
        for one, outcome in rows:
            store.add_candidate(one, {("main", 7): ("add(1, 1)", "STRUCTURE")})
            if outcome is not None:
                store.add_training(one.loss, replace(KEY, fidelity=one.fidelity), outcome, one.id)


def searched(directory: Path, **settings: Any) -> Path:
    """Write a search under way: six losses, one a twin, one diverged, and one in training."""
    begin(directory, **settings)
    diverged = Outcome(state=State.DIVERGED, step=3, reason="the loss is not finite\nand more", seconds=0.1)
    add(
        directory,
        (candidate(0, ROOT), scored(0.3)),
        (candidate(1, POOLED, parent=0), scored(0.9)),
        (candidate(2, CE, parent=0), scored(0.6)),
        (candidate(3, ROOT, parent=2, source=0), None),
        (candidate(4, "exp(mul(inv(p), sqrt(y)))"), diverged),
        (candidate(5, "mul(y, inv(p))", parent=1), None),
    )
    return directory


def promoted(directory: Path, **settings: Any) -> Path:
    """Write a search whose candidates are trained at an eighth first: three losses, one diverged, and the best of them promoted."""
    begin(directory, **{"search.rungs": (0.125, 1.0), **settings})
    diverged = Outcome(state=State.DIVERGED, step=3, reason="the loss is not finite", seconds=0.1)
    add(
        directory,
        (candidate(0, ROOT, fidelity=0.125), scored(0.1)),
        (candidate(1, SCALED, fidelity=0.125), scored(0.2)),
        (candidate(2, POOLED, fidelity=0.125), diverged),
        (candidate(3, SCALED, parent=1, kinds={"main": "promoted"}, scores={}, fidelity=1.0), scored(0.8)),
    )
    return directory


def compared(directory: Path, *, found: Sequence[float], standard: Sequence[float]) -> Path:
    """Write what follows a search whose winner is loss 1: new training seeds, and the comparison on the test split."""
    entrants = [Entrant("#1", POOLED), Entrant("baseline/ce", "baseline/ce", baseline=True)]
    with Store(directory, write=True) as store:
        for seed in training_seeds(0, CONFIRMATION, 5):
            for loss, score in ((POOLED, 0.8), (CE, 0.5), (ROOT, 0.2)):
                _train(store, Entrant("", loss), seed, "valid", score)
        _train(store, entrants[1], 1, "valid", 0.55)
        listed = [{"label": entrant.label, "loss": entrant.loss, "baseline": entrant.baseline} for entrant in entrants]
        store.change_setting("comparison", Comparison(len(found), listed))
        for at, seed in enumerate(training_seeds(0, COMPARISON, len(found))):
            _train(store, entrants[0], seed, "test", found[at])
            if standard:
                _train(store, entrants[1], seed, "test", standard[at])
    return directory


def _train(store: Store, entrant: Entrant, seed: int, split: str, score: float) -> None:
    job = entrant.job(seed, split)
    store.add_training(job.loss, job.training, scored(score))


def words(page: str) -> str:
    """Return the text of a page."""
    return " ".join(html.unescape(re.sub(r"<(style|script)>.*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)).split())


def tags(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return the start tags of a page, each with its attributes, as a browser reads them."""
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, dict(attributes)))  # type: ignore[method-assign]
    parser.feed(page)
    return found
