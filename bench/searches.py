"""What the scripts that search have in common: arguments, the two arms, searches that can be taken up again."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autoloss
from autoloss import recipes
from autoloss.errors import RequestError
from autoloss.run.results import Search, open_run
from autoloss.settings import Configuration
from autoloss.store import store

EVOLUTION, AS_PRINTED, RANDOM = "evolution", "evolution as printed", "random search"
ARMS: Mapping[str, Mapping[str, Any]] = {
    AS_PRINTED: {},
    RANDOM: {"offspring.copy": 0.0, "offspring.fresh": 1.0},
}
"""What an arm changes in the paper's settings; evolution has those of `recipes.search_settings`. Random search makes every child
from nothing. All draw under the same rejection protocol and the same budget of trainings."""


def parser(doc: str, *, evaluations: int, seeds: int, quick: str) -> argparse.ArgumentParser:
    """Return what all of these scripts ask for."""
    found = argparse.ArgumentParser(description=doc.splitlines()[0])
    found.add_argument("--evaluations", type=int, default=evaluations, help="trainings of each search")
    found.add_argument("--seeds", type=int, default=seeds, help="searches of each arm")
    found.add_argument("--workers", type=int, default=2)
    found.add_argument("--quick", action="store_true", help=quick)
    found.add_argument("--json", action="store_true", help="print one JSON document")
    found.add_argument("--out", type=Path, help="a file to write")
    return found


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
    """Search in a folder, or go on with the search that the folder holds.

    Raises:
        RequestError: The folder holds a search with other settings, or one with more trainings.
    """
    chosen = {**(recipes.search_settings(task.name) if arm == EVOLUTION else ARMS[arm]), **(settings or {})}
    if store.exists(directory):
        wanted = Configuration().changed({**chosen, "seed": seed, "evaluations": arguments.evaluations})
        kept = open_run(directory).configuration
        if dataclasses.replace(kept, evaluations=arguments.evaluations) != wanted:
            raise RequestError(f"{directory} holds a search with other settings; remove it, or name another folder.")
        found = autoloss.resume(
            directory, task, evaluations=arguments.evaluations, workers=arguments.workers, final=final
        )
    else:
        found = autoloss.search(
            task,
            evaluations=arguments.evaluations,
            seed=seed,
            workers=arguments.workers,
            directory=directory,
            settings=chosen,
            final=final,
        )
    best = found.top(1)
    tell(
        f"{task.name}, {arm}, seed {seed}: " + (f"best on valid {best[0].score:.4f}" if best else "no loss has a score")
    )
    return found


def tell(text: str) -> None:
    """Say how far it is, where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)
