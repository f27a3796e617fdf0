"""Whether the task of a resumed run is still the one it began with."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from autoloss.proposing.chance import derive_seed
from autoloss.space.branch import Sample
from autoloss.store import samples as sample_files
from autoloss.store.run_settings import RunSettings
from autoloss.tasks.task import Task
from autoloss.training.threads import one_thread
from autoloss.workers.process_state import restored_state

NOT_COMPARED = re.compile(r" at 0x[0-9A-Fa-f]+|\b(?:\w+\.)+(?=[A-Za-z_<])")
"""Addresses of objects, and modules of functions: the file that was `__main__` may be imported now."""
RELATIVE, ABSOLUTE = 1e-2, 1e-3
"""Differences up to these are left to another processor or GPU, which rounds otherwise."""


def read_recipe(task: Task) -> dict[str, Any]:
    """Return the recipe of a task's proxy trainings, without `NOT_COMPARED`; nothing where it tells none that JSON can hold."""
    with suppress(Exception):
        return _clean(json.loads(json.dumps(dict(task.recipe("proxy")))))
    return {}


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return NOT_COMPARED.sub("", value) if isinstance(value, str) else value


def describe_changes(task: Task, samples: sample_files.Samples, settings: RunSettings) -> list[str]:
    """Say in a sentence what differs from the beginning of the run: samples, the untrained network's score, standard loss, recipe.

    Args:
        samples: Those that the run keeps.
    """
    configuration = settings.configuration
    found: list[str] = []
    # What fails here fails in tests and trainings as well, and is told there.
    with suppress(Exception), restored_state(), one_thread():
        drawn = sample_files.draw_samples(task, configuration.rejection.samples, configuration.seed)
        found += [
            f"the data or the network of the branch {name} give other samples"
            for name in samples
            if not _are_same(samples[name], drawn[name])
        ]
        before, now = settings.untrained, task.untrained(derive_seed(configuration.seed, "training"))
        if before is not None and (now is None or not math.isclose(now, before, rel_tol=RELATIVE, abs_tol=ABSOLUTE)):
            score = "no score" if now is None else f"a score of {now:.4f}"
            found.append(
                f"the untrained network has {score} and had {before:.4f}: the metric, the network or the valid split is another one"
            )
    if settings.standard_loss and dict(settings.standard_loss) != dict(task.standard):
        now, before = ("; ".join(losses.values()) for losses in (task.standard, settings.standard_loss))
        found.append(f"its standard loss is {now or 'none'} and was {before}")
    recipe = read_recipe(task)
    found += [
        f"its recipe has {name} {recipe[name]} and had {settings.recipe[name]}"
        for name in sorted(settings.recipe.keys() & recipe.keys())
        # As text, a NaN is the same NaN.
        if json.dumps(recipe[name], sort_keys=True) != json.dumps(settings.recipe[name], sort_keys=True)
    ]
    if not found:
        return []
    return [
        f"The task is not the one that the run began with: {'; '.join(found)}. Scores from before and after do not compare. "
        "Restore the task, or begin a new run with another --out; if the data are split at random, give the split a seed."
    ]


def _are_same(stored: Sequence[Sample], drawn: Sequence[Sample]) -> bool:
    return len(stored) == len(drawn) and all(
        before.context.keys() == now.context.keys()
        and _are_close(before.prediction, now.prediction)
        and all(_are_close(before.context[name], now.context[name]) for name in before.context)
        for before, now in zip(stored, drawn, strict=True)
    )


def _are_close(before: Tensor, now: Tensor) -> bool:
    if before.shape != now.shape:
        return False
    return torch.allclose(before.double(), now.detach().cpu().double(), RELATIVE, ABSOLUTE, equal_nan=True)
