"""The task figures-pose: drawn figures with COCO's 17 joints over photographs, which one core trains in seconds (Section 4.4).

Backgrounds, clothes and clutter are cut from scikit-learn's two photographs, each split from a part of its own. Figures differ in
size, posture and clothes, face the viewer or turn their back, and hide each other; pieces of clutter lie behind and before them. As
in COCO, area and box are those of what is visible of a figure. The joints of a face that looks away are not labelled, nor those
outside the image.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from pydantic import Field

from autoloss.options import Count, declare
from autoloss.tasks.factory import TaskFactory
from autoloss.tasks.pose.data.crops import Augmentation, CropSettings
from autoloss.tasks.pose.heatmaps import small_baseline
from autoloss.tasks.pose.people import JOINTS, People, PeopleImages
from autoloss.tasks.pose.task import PROXY, PoseTask
from autoloss.tasks.scenes import SceneOptions, find_share, make_scene_rng
from autoloss.training.recipe import Recipe

Array = NDArray[Any]

LEAST_PIXELS = 40
"""Visible pixels of an annotated figure, at least."""
UNSEEN, HIDDEN, VISIBLE = 0, 1, 2
"""COCO's values of visibility."""
LIMBS = (((11, 13), 0.085, "legs"), ((12, 14), 0.085, "legs"), ((13, 15), 0.065, "legs"), ((14, 16), 0.065, "legs"))
ARMS = (((5, 7), 0.06, "shirt"), ((6, 8), 0.06, "shirt"), ((7, 9), 0.05, "skin"), ((8, 10), 0.05, "skin"))
"""Bones that are drawn: joints, width as a share of the figure's height, and part whose colour they have."""
FACE = slice(0, 3)
"""Joints that are visible from the front only: nose and eyes."""

FIGURES = (1, 2)
"""Smallest and largest number of figures in a scene."""
BEHIND, BEFORE = 3, 1
"""Largest number of pieces of clutter behind the figures, and in front of them."""
NOISE = 0.03
"""Standard deviation of the noise, where white is 1."""
HEIGHTS = (48, 112)
"""Smallest and largest height of an upright figure in pixels."""


def compose_figures(
    split: str, count: int, seed: int, size: int = 128, heights: tuple[int, int] = HEIGHTS
) -> PeopleImages:
    """Compose square scenes of some pixels with at least one figure each, upright ones of a smallest to a largest height.

    Each split, train, valid or test, is cut from other parts of the photographs.
    """
    photographs = load_photographs(split)
    rng = make_scene_rng(split, seed, size)
    scenes: list[Array] = []
    people: list[People] = []
    while len(scenes) < count:
        pixels, those = _compose_scene(photographs, size, heights, rng)
        if len(those.trainable):
            scenes.append(pixels)
            people.append(those)
    in_memory = torch.from_numpy(np.stack(scenes))
    return PeopleImages(f"figures {split}", lambda index: in_memory[index].float() / 255, tuple(people))


@functools.cache
def load_photographs(split: str) -> tuple[Image.Image, ...]:
    """Return the part of each photograph that belongs to a split, and its mirror image."""
    from sklearn.datasets import load_sample_images

    parts = [image[:, find_share(split, image.shape[1])] for image in load_sample_images().images]
    return tuple(Image.fromarray(np.ascontiguousarray(image[:, ::way])) for image in parts for way in (1, -1))


class _Scene:
    """A scene while it is drawn: its pixels, and which figure owns each of them."""

    def __init__(self, photographs: Sequence[Image.Image], size: int, rng: np.random.Generator) -> None:
        self.size = size
        self.photographs = photographs
        self.rng = rng
        self.pixels = self.cut()
        self.owner = np.zeros((self.size, self.size), np.uint8)

    def cut(self) -> Image.Image:
        """Return a random piece of a photograph in the size of the scene."""
        photograph = self.photographs[int(self.rng.integers(len(self.photographs)))]
        side = self.rng.uniform(0.3, 1.0) * min(photograph.size)
        left, top = (self.rng.uniform(0, length - side) for length in photograph.size)
        window = (left, top, left + side, top + side)
        return photograph.resize((self.size, self.size), Image.Resampling.BILINEAR, box=window, reducing_gap=1.0)

    def paint(self, layer: Image.Image, mask: Image.Image, number: int) -> None:
        """Paste a layer into the scene through a mask; the pixels belong to figure `number`, 0 for none."""
        self.pixels.paste(layer, mask=mask)
        self.owner[np.asarray(mask) > 0] = number

    def paint_clutter(self) -> None:
        """Paste a piece of a photograph into the scene, as a box, an ellipse, or a bar that looks like a limb."""
        mask = Image.new("L", (self.size, self.size))
        draw, rng = ImageDraw.Draw(mask), self.rng
        place, extent = rng.uniform(0, self.size, 2), rng.uniform(0.06, 0.28, 2) * self.size
        corners = [*(place - extent / 2), *(place + extent / 2)]
        match int(rng.integers(3)):
            case 0:
                draw.rectangle(corners, fill=255)
            case 1:
                draw.ellipse(corners, fill=255)
            case _:
                ends = [*place, *(place + rng.normal(0, 0.25, 2) * self.size)]
                draw.line(ends, fill=255, width=int(rng.integers(3, 10)))
        self.paint(self.cut(), mask, 0)


def _compose_scene(
    photographs: Sequence[Image.Image], size: int, heights: tuple[int, int], rng: np.random.Generator
) -> tuple[Array, People]:
    scene = _Scene(photographs, size, rng)
    for _ in range(rng.integers(BEHIND + 1)):
        scene.paint_clutter()
    figures = [_draw_posture(size, heights, rng) for _ in range(rng.integers(FIGURES[0], FIGURES[1] + 1))]
    # The larger ones are nearer.
    figures.sort(key=lambda figure: figure[2])
    for number, (joints, from_front, height) in enumerate(figures, start=1):
        _paint_figure(scene, number, joints, from_front, height)
    for _ in range(rng.integers(BEFORE + 1)):
        scene.paint_clutter()
    noisy = np.asarray(scene.pixels) + rng.normal(0, 255 * NOISE, (size, size, 3))
    return noisy.clip(0, 255).astype(np.uint8).transpose(2, 0, 1), _annotate(figures, scene.owner)


def _draw_posture(size: int, heights: tuple[int, int], rng: np.random.Generator) -> tuple[Array, bool, float]:
    """Draw the joints (17, 2) of a figure, whether it faces the viewer, and its height in pixels."""
    lean = rng.normal(0, 0.15)
    from_front = bool(rng.random() < 0.85)
    # Seen from the front, the left of a figure is on the right of the image.
    side, turn = (1 if from_front else -1), rng.uniform(0.5, 1.0)
    joints = np.zeros((len(JOINTS), 2))
    neck = np.array([0.0, -0.3])
    head = np.array([rng.normal(0, 0.015), -0.43])
    joints[0] = _move(head, rng.normal(0, 0.01), 0.01)
    for odd, way in ((1, side), (0, -side)):
        eye, ear, shoulder, elbow, wrist, hip, knee, ankle = (joint - odd for joint in range(2, 18, 2))
        joints[eye], joints[ear] = _move(head, way * 0.032, -0.015), _move(head, way * 0.07, 0.0)
        joints[shoulder], joints[hip] = _move(neck, way * 0.115 * turn, 0.0), (way * 0.075 * turn, 0.0)
        raised, spread = rng.uniform(0.1, 1.9), rng.uniform(0.0, 0.5)
        bent, kneeling = raised + rng.uniform(-0.4, 1.2), spread + rng.uniform(-0.5, 0.2)
        joints[elbow] = joints[shoulder] + _reach(raised, way, 0.17, rng)
        joints[wrist] = joints[elbow] + _reach(bent, way, 0.16, rng)
        joints[knee] = joints[hip] + _reach(spread, way, 0.25, rng)
        joints[ankle] = joints[knee] + _reach(kneeling, way, 0.24, rng)
    turned = np.array([[np.cos(lean), -np.sin(lean)], [np.sin(lean), np.cos(lean)]])
    height = float(np.exp(rng.uniform(*np.log(heights))))
    centre = rng.uniform(0.2, 0.8, 2) * size
    return joints @ turned.T * height + centre, from_front, height


def _move(place: Array, across: float, down: float) -> Array:
    return place + np.array([across, down])


def _reach(angle: float, way: int, length: float, rng: np.random.Generator) -> Array:
    """Return the offset from a joint to the next, at an angle outwards from below; limbs towards the viewer look shorter."""
    return rng.uniform(0.75, 1.0) * length * np.array([way * np.sin(angle), np.cos(angle)])


def _paint_figure(scene: _Scene, number: int, joints: Array, from_front: bool, height: float) -> None:
    rng = scene.rng
    parts = {part: tuple(rng.integers(20, 236, 3).tolist()) for part in ("shirt", "legs")}
    tone = rng.uniform(0.4, 1.0)
    parts["skin"] = tuple(int(tone * channel) for channel in (244, 200, 170))
    parts["hair"] = tuple(int(channel) for channel in rng.uniform(0.05, 0.45) * np.array([255, 200, 140]))
    layer = Image.new("RGBA", scene.pixels.size)
    draw = ImageDraw.Draw(layer)
    for shape in _list_shapes(joints, height, from_front, bool(rng.random() < 0.6)):
        shape(draw, parts)
    cloth = Image.blend(layer.convert("RGB"), scene.cut(), rng.uniform(0.15, 0.45))
    scene.paint(cloth, layer.getchannel("A"), number)


def _list_shapes(joints: Array, height: float, from_front: bool, arms_before: bool) -> Iterator[Any]:
    """Yield functions that draw the parts of a figure, the farthest first."""
    arms = [functools.partial(_draw_bone, joints[list(ends)], height * width, part) for ends, width, part in ARMS]
    yield from () if arms_before else arms
    for ends, width, part in LIMBS:
        yield functools.partial(_draw_bone, joints[list(ends)], height * width, part)
    yield functools.partial(_draw_polygon, joints[[5, 6, 12, 11]], height * 0.05, "shirt")
    head = (joints[3] + joints[4]) / 2
    yield functools.partial(_draw_bone, np.stack([joints[[5, 6]].mean(axis=0), head]), height * 0.05, "skin")
    yield functools.partial(_draw_disc, head, height * 0.08, "skin" if from_front else "hair")
    if from_front:
        for joint, radius in ((1, 0.014), (2, 0.014), (0, 0.01)):
            yield functools.partial(_draw_disc, joints[joint], max(0.6, height * radius), "hair")
    yield from arms if arms_before else ()


def _draw_bone(ends: Array, width: float, part: str, draw: Any, colours: Any) -> None:
    draw.line((ends - 0.5).reshape(-1).tolist(), fill=colours[part], width=max(1, round(width)))
    for end in ends:
        _draw_disc(end, width / 2, part, draw, colours)


def _draw_polygon(corners: Array, width: float, part: str, draw: Any, colours: Any) -> None:
    draw.polygon((corners - 0.5).reshape(-1).tolist(), fill=colours[part])
    for corner, other in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        _draw_bone(np.stack([corner, other]), width, part, draw, colours)


def _draw_disc(centre: Array, radius: float, part: str, draw: Any, colours: Any) -> None:
    # Pillow counts pixels by their centres.
    draw.ellipse([*(centre - 0.5 - radius), *(centre - 0.5 + radius)], fill=colours[part])


def _annotate(figures: Sequence[tuple[Array, bool, float]], owner: Array) -> People:
    """Return the annotations that COCO would have of the figures of a scene."""
    rows: list[tuple[list[int], Array, Array, int]] = []
    for number, (joints, from_front, _) in enumerate(figures, start=1):
        seen = owner == number
        if int(seen.sum()) < LEAST_PIXELS:
            continue
        down, across = (np.flatnonzero(seen.any(axis=axis)) for axis in (1, 0))
        cells = np.floor(joints).astype(int)
        inside = ((cells >= 0) & (cells < len(owner))).all(axis=1)
        column, row = cells.clip(0, len(owner) - 1).T
        visibility = np.where(inside, np.where(seen[row, column], VISIBLE, HIDDEN), UNSEEN)
        if not from_front:
            visibility[FACE] = UNSEEN
        box = [across[0], down[0], across[-1] + 1, down[-1] + 1]
        rows.append((box, joints, visibility, int(seen.sum())))
    boxes, joints, visibility, area = zip(*rows, strict=True) if rows else ((), (), (), ())
    labelled = np.array(visibility, np.int8).reshape(-1, len(JOINTS))
    places = np.array(joints).reshape(-1, len(JOINTS), 2)
    return People(
        np.array(boxes, np.float64).reshape(-1, 4),
        # As in COCO, what is not labelled lies at 0.
        np.where(labelled[..., None] > 0, places, 0.5),
        labelled,
        np.array(area, np.float64),
        np.zeros(len(rows), bool),
    )


CROPS = CropSettings(size=(64, 64), stride=4, sigma=1.0, padding=1.15)
"""The sigma of the paper's 64×48 cells, in proportion to 16×16."""
MIRRORED_ONLY = Augmentation(flip=0.5, rotation=0.0, scale=(1.0, 1.0))


@declare()
class FigureOptions(SceneOptions):
    """Options of figures-pose."""

    size: Annotated[int, Field(ge=32, le=4096)] = 128
    train: Count = 640
    """Number of training scenes, with one or two figures each."""
    valid: Count = 128
    test: Count = 256
    # Adam with a cosine schedule, as in Appendix A.
    recipe: Recipe = replace(PROXY.recipe, epochs=8, batch_size=8, learning_rate=3e-3, warmup_steps=20)


def build_task(metric: str, options: FigureOptions) -> PoseTask:
    """Compose the scenes and make the task."""
    return PoseTask(
        small_baseline,
        **options.compose(functools.partial(compose_figures, size=options.size)),
        metric=metric,
        recipe=options.recipe,
        crops=CROPS,
        augmentation=MIRRORED_ONLY,
        # Found losses rank poses well although their heatmaps are low.
        least_value=-math.inf,
        name="figures-pose",
    )


figures_pose = TaskFactory(name="figures-pose", options=FigureOptions, build=build_task)
