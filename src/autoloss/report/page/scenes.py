"""Test images with their targets and the predictions of networks trained with the found loss and with the standard loss.

They need two trainings, so they are made on request only and stored beside the run. They are the first images of the test split,
not selected.
"""

from __future__ import annotations

import base64
import colorsys
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from autoloss.comparison.entrant import COMPARISON, TEST, Entrant, training_seeds
from autoloss.errors import RequestError
from autoloss.files import write_text
from autoloss.run.results import Search, find_learning_rate
from autoloss.run.user_files import check_trust, importable_files

FILE = "scenes.json"
COUNT = 6
LARGEST = 256
"""Largest side of an image in pixels; larger images are shrunk."""
IGNORED = 255
_PALETTE = "101418 4e9ff0 f28e2b e15759 3fc1a5 f1ce3a b07aa1 ff9da7 b88a5e a8d154 d0d4da"
"""Colours of the first classes."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One image, each picture as a PNG in Base64.

    Args:
        found: Prediction of the network trained with the found loss.
        standard: Prediction of the network trained with the standard loss.
        hits: Shares of pixels that these two predict correctly.
    """

    image: str
    target: str
    found: str
    standard: str
    hits: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Scenes:
    """Scenes of one found loss and the standard loss.

    Args:
        formula: The found loss.
        baseline: Name of the standard loss.
        entrants: Both losses as they were trained.
    """

    formula: str
    baseline: str
    seed: int
    scenes: tuple[Scene, ...]
    entrants: tuple[Entrant, ...]


def read_scenes(search: Search, formula: str) -> Scenes | None:
    """Return the stored scenes of a loss; None if there are none, or if a loss has since been compared at another factor."""
    try:
        found = TypeAdapter(Scenes).validate_json((search.directory / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    pairs = ((one, find_learning_rate(search, one)) for one in found.entrants)
    same = all((one.learning_rate, one.scale) == (now.learning_rate, now.scale) for one, now in pairs)
    return found if found.formula == formula and same else None


@importable_files()
def make_scenes(search: Search, say: Callable[[str], None] = lambda text: None) -> Scenes:
    """Train with the best loss and with the standard loss, and store the scenes beside the run.

    Each loss is trained at the learning rate at which it was compared.
    """
    from autoloss.comparison.baselines import baselines
    from autoloss.run.request import Request, prepare
    from autoloss.run.resolving import load_task, operator_table
    from autoloss.training.training import Diverged

    best = search.choose(None)
    check_trust(search.settings, search.directory, search.trust)
    reference, operators = search.settings.task, operator_table(search.operators)
    task = load_task(reference)
    if set(task.standard) != set(task.branches):
        raise RequestError(f"The task {task.name} has no standard loss, so there is nothing to compare scenes with.")
    standard = "; ".join(task.standard.values())
    seed = training_seeds(search.configuration.seed, COMPARISON, 1)[0]
    entrants = {"the found loss": Entrant(f"#{best.id}", best.formula), standard: baselines(task)[0]}
    losses = {name: find_learning_rate(search, entrant) for name, entrant in entrants.items()}
    request = Request(task=task, reference=reference, configuration=search.configuration, operators=operators)
    evaluator, drawn = prepare(request, samples=False), []
    for name, entrant in losses.items():
        say(f"Training once with {name}, for the pictures of the report.")
        pictures = evaluator.draw_pictures(entrant.loss, entrant.job(seed, TEST).training, COUNT)
        if not isinstance(pictures, Sequence):
            ended = "diverged" if isinstance(pictures, Diverged) else "was stopped"
            raise RequestError(f"The training with {name} {ended}: {pictures.reason}. Leave out --scenes.")
        drawn.append(pictures)
    scenes = tuple(_draw_scene(ours, theirs) for ours, theirs in zip(*drawn, strict=True))
    found = Scenes(best.formula, standard, seed, scenes, tuple(losses.values()))
    # The scenes are not stored if the folder cannot be written.
    with suppress(RequestError):
        write_text(search.directory / FILE, json.dumps(asdict(found)))
    return found


def _draw_scene(ours: Any, theirs: Any) -> Scene:
    import torch
    from PIL import Image

    counted = ours.target != IGNORED
    hits = [float((one.prediction == one.target)[counted].double().mean()) for one in (ours, theirs)]
    classes = [_draw_classes(map_) for map_ in (ours.target, ours.prediction, theirs.prediction)]
    low, high = float(ours.image.min()), float(ours.image.max())
    scaled = ((ours.image - low) / ((high - low) or 1.0) * 255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    picture = Image.fromarray(scaled[..., :3] if scaled.shape[-1] >= 3 else scaled[..., 0])
    return Scene(_encode(picture, Image.Resampling.BILINEAR), *classes, hits=(hits[0], hits[1]))


def _draw_classes(classes: Any) -> str:
    from PIL import Image

    height, width = classes.shape
    picture = Image.frombytes("P", (width, height), bytes(classes.flatten().tolist()))
    colours = list(bytes.fromhex(_PALETTE))
    for number in range(len(colours) // 3, IGNORED):
        colours += (round(255 * part) for part in colorsys.hls_to_rgb(number * 0.618 % 1, 0.55, 0.6))
    picture.putpalette([*colours, 255, 255, 255])
    return _encode(picture, Image.Resampling.NEAREST)


def _encode(picture: Any, resampling: Any) -> str:
    picture.thumbnail((LARGEST, LARGEST), resampling)
    text = io.BytesIO()
    picture.save(text, format="PNG", optimize=True)
    return base64.b64encode(text.getvalue()).decode()
