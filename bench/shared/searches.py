"""Parts of the scripts that search: arguments, the arms that are compared, and searches that can be resumed."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autoloss
from autoloss import recipes
from autoloss.errors import RequestError
from autoloss.run.results import Search
from autoloss.store import store
from output import make_parser

EVOLUTION, AS_PRINTED, RANDOM = "evolution", "evolution as printed", "random search"
ARMS: Mapping[str, Mapping[str, Any]] = {
    AS_PRINTED: {},
    RANDOM: {"offspring.copy": 0.0, "offspring.fresh": 1.0},
}
"""Changes of each arm to the paper's settings; evolution uses those of `recipes.get_search_settings`. Random search draws every
candidate without a parent. All arms share the rejection protocol and the budget of trainings."""


def make_search_parser(doc: str, *, evaluations: int, seeds: int) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every script that searches."""
    found = make_parser(doc)
    found.add_argument("--evaluations", type=int, default=evaluations, help="trainings of each search")
    found.add_argument("--seeds", type=int, default=seeds, help="searches of each arm")
    found.add_argument("--workers", type=int, default=2, help="worker processes; 0 works in this process")
    return found


def search_or_resume(
    task: autoloss.Task,
    settings: Mapping[str, Any],
    seed: int,
    directory: Path,
    arguments: argparse.Namespace,
    *,
    final: bool = True,
) -> Search:
    """Start a search in a folder, or resume the one that it holds, whatever its settings."""
    given: dict[str, Any] = {"evaluations": arguments.evaluations, "workers": arguments.workers, "final": final}
    if store.exists(directory):
        return autoloss.resume(directory, task, **given)
    return autoloss.search(task, seed=seed, directory=directory, settings=settings, **given)


def searched(
    task: autoloss.Task,
    arm: str,
    seed: int,
    directory: Path,
    arguments: argparse.Namespace,
    *,
    settings: Mapping[str, Any] | None = None,
    final: bool = True,
) -> Search:
    """Start a search in a folder, or resume the one that it holds.

    Raises:
        RequestError: The folder holds a search with other settings, or one with more trainings.
    """
    chosen = {**(recipes.get_search_settings(task.name) if arm == EVOLUTION else ARMS[arm]), **(settings or {})}
    # Kept beside the run, whose own settings say what the search made of them.
    asked, text = directory.with_name(f"{directory.name}.json"), json.dumps({**chosen, "seed": seed}, default=str)
    if store.exists(directory) and asked.exists() and asked.read_text(encoding="utf-8") != text:
        raise RequestError(f"{directory} holds a search with other settings; remove it, or name another folder.")
    directory.parent.mkdir(parents=True, exist_ok=True)
    asked.write_text(text, encoding="utf-8")
    found = search_or_resume(task, chosen, seed, directory, arguments, final=final)
    best = found.top(1)
    tell(
        f"{task.name}, {arm}, seed {seed}: " + (f"best on valid {best[0].score:.4f}" if best else "no loss has a score")
    )
    return found


def tell(text: str) -> None:
    """Print progress to standard error, so that it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)
