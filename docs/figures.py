"""Draw the pictures of the README and of the pages, light and dark, and write what the cards of losses say of measurements.

Everything comes from the files under bench/results/.

python docs/figures.py            (needs matplotlib, which the extra `bench` installs)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.colors import ListedColormap

import autoloss
from autoloss.zoo.entries import ENTRIES

HERE = Path(__file__).parent
RESULTS, IMAGES = HERE.parent / "bench" / "results", HERE / "images"
EVIDENCE = HERE.parent / "src" / "autoloss" / "zoo" / "evidence.json"
THEMES = {"light": ("#ffffff", "#1c2024"), "dark": ("#0d1117", "#d8dee4")}
"""Name → background and foreground."""
CLASSES = ListedColormap(
    [
        "#101418",
        "#4e9ff0",
        "#f28e2b",
        "#e15759",
        "#3fc1a5",
        "#f1ce3a",
        "#b07aa1",
        "#ff9da7",
        "#b88a5e",
        "#a8d154",
        "#d0d4da",
    ]
)
BLUE, ORANGE, GREY = "#4e9ff0", "#f28e2b", "#8b949e"
METRICS = {"miou": "mIoU", "fwiou": "FWIoU", "gacc": "gAcc", "macc": "mAcc", "biou": "BIoU", "bf1": "BF1"}


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    EVIDENCE.write_text(json.dumps(collect_evidence(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    figures: Mapping[str, Callable[[str], Any]] = {
        "scenes": draw_scenes,
        "ladder": draw_ladder,
        "course": draw_course,
        "boosting": draw_boosting,
        "pairs": draw_pairs,
        "gate": draw_gate,
    }
    for theme, (background, foreground) in THEMES.items():
        colours = dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), foreground
        )
        faces = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), background)
        style = {
            **colours,
            **faces,
            "font.size": 11,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "svg.hashsalt": "autoloss",
        }
        for name, draw in figures.items():
            with mpl.rc_context(style):
                draw(foreground)
                plt.savefig(IMAGES / f"{name}-{theme}.png", dpi=130, bbox_inches="tight", metadata={"Software": None})
                plt.close()


def draw_scenes(foreground: str) -> None:
    """Draw test images beside their targets and what networks predict after each loss."""
    result = _read("digits_bf1")
    scenes = result["scenes"][:3]
    names = list(scenes[0]["predictions"])
    scores = {name: _score_of(result["searches"][0], name) for name in names}
    _, axes = plt.subplots(len(scenes), 2 + len(names), figsize=(2.1 * (2 + len(names)), 2.15 * len(scenes)))
    for place, (row, scene) in enumerate(zip(axes, scenes, strict=True)):
        pictures = [np.moveaxis(np.array(scene["image"]), 0, -1), scene["target"], *scene["predictions"].values()]
        titles = ["image", "target", *(f"{name}\n{METRICS[result['metric']]} {scores[name]:.3f}" for name in names)]
        for axis, picture, title in zip(row, pictures, titles, strict=True):
            shown = np.array(picture)
            if shown.ndim == 3:
                axis.imshow(shown if shown.shape[-1] == 3 else shown[..., 0], cmap="gray")
            else:
                axis.imshow(np.where(shown == 255, 0, shown), cmap=CLASSES, vmin=0, vmax=10, interpolation="nearest")
            axis.set_axis_off()
            if place == 0:
                axis.set_title(title, fontsize=15, color=foreground)


def draw_ladder(foreground: str) -> None:
    """Draw what an expert would try with the standard loss, and the loss found, for every metric."""
    files = [name for name in ("digits", "digits_bf1") if "ladder" in _read(name)["searches"][0]]
    _, axes = plt.subplots(1, len(files), figsize=(5.6 * len(files), 3.1), squeeze=False)
    for axis, name in zip(axes[0], files, strict=True):
        result = _read(name)
        rows = sorted(result["searches"][0]["comparison"], key=lambda row: row["mean"] or 0)
        labels = [row["label"].replace("baseline/", "") for row in rows]
        for place, row in enumerate(rows):
            colour = GREY if row["baseline"] else BLUE
            axis.errorbar(row["mean"], place, xerr=row["interval"] or 0, fmt="o", color=colour, capsize=3)
        axis.set_yticks(range(len(rows)), labels)
        axis.margins(y=0.25)
        axis.set_xlabel(f"{METRICS[result['metric']]} on the test split (95 % interval)")


def draw_course(foreground: str) -> None:
    """Draw the best whole training so far of each search over the budget, beside what the ladder reached."""
    result = _read("digits_bf1")
    _, axis = plt.subplots(figsize=(6.4, 3.1))
    for search in result["searches"]:
        spent, scores = zip(*search["course"], strict=True)
        axis.step(spent, np.maximum.accumulate(scores), where="post", color=BLUE, alpha=0.8, label="best loss so far")
        rungs = search["ladder"]["rungs"]
        given = next(
            one for one in rungs if one["fidelity"] == 1 and one["step_rule"] == "recipe" and one["length"] == 1
        )
        best = rungs[0]
        for rung, colour, label in ((given, GREY, "cross entropy as given"), (best, ORANGE, "the expert's best")):
            axis.axhline(np.mean(rung["scores"]), color=colour, linestyle="--", label=label)
    handles = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    axis.legend(handles.values(), handles.keys(), frameon=False, loc="lower right")
    axis.set_xlabel("training equivalents")
    axis.set_ylabel(f"{METRICS[result['metric']]} (valid)")


def draw_boosting(foreground: str) -> None:
    """Draw how far losses of the shelf are ahead of built-in objectives of LightGBM, tuned as long, on each table."""
    rows = _read("boosting_gate")["rows"][::-1]
    figure, axis = plt.subplots(figsize=(5.4, 3.8), layout="constrained")
    for place, row in enumerate(rows):
        half = row["critical"] * abs(row["difference"] / row["t"])
        axis.errorbar(row["difference"], place, xerr=half, fmt="o", color=BLUE, capsize=3)
        best = row["arms"]["hindsight"] - row["arms"]["expert"]
        axis.plot(best, place, marker="o", mfc="none", color=ORANGE, linestyle="none")
    axis.axvline(0, color=foreground, linewidth=0.8)
    axis.set_yticks(range(len(rows)), [row["name"] for row in rows])
    figure.supxlabel(
        "held-out metric: losses − built-in objectives (95 % interval)\norange: the loss that is best in hindsight",
        fontsize="medium",
    )


PAIRWISE = ("baseline/ranknet", "baseline/auc_hinge", "baseline/auc_square", "baseline/auc_exponential")


def draw_pairs(foreground: str) -> None:
    """Draw losses over the difference of two scores, and how far recommendations are from tuned specialists on each table."""
    _, (curves, gains) = plt.subplots(2, 1, figsize=(5.4, 7.6), layout="constrained")
    difference = torch.linspace(-3, 3, 121).view(1, 1, 1, -1)
    for name, colour in zip(PAIRWISE, (BLUE, ORANGE, GREY, "#3fc1a5"), strict=True):
        entry = ENTRIES[name]
        p = difference if entry.activation == "pair_difference" else difference.sigmoid()
        loss = autoloss.parse(entry.formula or "").evaluate({"p": p, "y": torch.ones_like(p)})
        curves.plot(difference.flatten(), loss.flatten(), color=colour, label=name.removeprefix("baseline/"))
    curves.set_ylim(0, 9)
    curves.set_xlabel("score of the item that comes first\nminus score of the other")
    curves.set_ylabel("loss of the pair")
    curves.legend(frameon=False, loc="upper right")
    sets = _read("pairs")["sets"][::-1]
    for shift, key, colour, label in (
        (0.12, "", BLUE, "best specialist, known afterwards"),
        (-0.12, "_over_choice", ORANGE, "specialist that is best on the valid split"),
    ):
        for place, row in enumerate(sets):
            gain = row[f"gain{key}"]
            half = 0 if row[f"high{key}"] is None else row[f"high{key}"] - gain
            gains.errorbar(gain, place + shift, xerr=half, fmt="o", color=colour, capsize=3, label=label)
    handles = dict(zip(*reversed(gains.get_legend_handles_labels()), strict=True))
    gains.legend(handles.values(), handles.keys(), frameon=False, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    gains.axvline(0, color=foreground, linewidth=0.8)
    gains.set_yticks(range(len(sets)), [f"{row['set']}, {row['metric']}" for row in sets])
    gains.set_xlabel("rows held back: recommendation − specialist\n(95 % interval)")


def draw_gate(foreground: str) -> None:
    """Draw for each task what tuning gives over the standard loss as it is, and what the best known loss gives beyond that."""
    rows = sorted(_read("away")["gate"], key=lambda row: row["in_errors"])
    figure, axis = plt.subplots(figsize=(5.4, 1.2 + 0.19 * len(rows)), layout="constrained")
    for place, row in enumerate(rows):
        tuned, best = (row["ladder"] - row["given"]) / row["error"], row["in_errors"]
        axis.plot([0, max(0.0, tuned)], [place, place], color=GREY, linewidth=4, solid_capstyle="butt")
        axis.plot(best + max(0.0, tuned), place, "o", color=BLUE if best > 2 else "none", mec=BLUE)
    axis.axvline(0, color=foreground, linewidth=0.8)
    axis.set_yticks(range(len(rows)), [f"{row['task']} ({row['metric'].replace('minus ', '−')})" for row in rows])
    axis.set_xscale("symlog", linthresh=5)
    ticks = (-5, 0, 5, 20, 100)
    axis.set_xticks(ticks, map(str, ticks))
    axis.minorticks_off()
    figure.supxlabel(
        "gain over the standard loss as it is, in standard errors\n"
        "bar: the standard loss, tuned · dot: the best known loss,\nfilled where it is ahead of that by 2",
        fontsize="medium",
    )


AUDITED = {
    "digits-seg:miou": ("digits-seg", "found/miou", 1, "mIoU"),
    "tabular:f1:data=breast_cancer_hard": ("breast_cancer_hard", "found/f1", 0, "F1"),
}
"""Task of the audit → its name, the loss that a search found there, the seed of that search, and the metric."""
AWAY = {"specks": "found/iou", "digits-worst": "found/worst_recall", "visits": "found/quantile"}
"""Task away from home → the loss that a search found there."""
FIRST = "default, first known run"
"""The searches that found `found/iou`; later ones found others there."""
EXPERT = "the standard loss, tuned"


def collect_evidence() -> dict[str, list[dict[str, Any]]]:
    """Return name of a loss → what was measured with it beside a rival on the same task, from all files."""
    found: dict[str, list[dict[str, Any]]] = {}

    def add(
        loss: str, task: str, metric: str, score: float, interval: float | None, rival: tuple[str, float], file: str
    ) -> None:
        row = {
            "task": task,
            "metric": METRICS.get(metric, metric),
            "score": score,
            "interval": interval,
            "rival": rival[0],
        }
        found.setdefault(loss, []).append({**row, "rival_score": rival[1], "file": f"bench/results/{file}.json"})

    _collect_audit(add)
    for file, task in (("segmentation", "digits-seg"), ("scenes_voc", "drawn scenes")):
        rows = _read(file)["rows"]
        ce = {row["metric"]: row["score"] for row in rows if row["loss"] == "baseline/ce"}
        ce |= next(row.get("also", {}) for row in rows if row["loss"] == "baseline/ce")
        for row in rows:
            if row["loss"] != "baseline/ce":
                add(row["loss"], task, row["metric"], row["score"], None, ("baseline/ce", ce[row["metric"]]), file)
    # Both searches have the same training seeds of the test split.
    before, now = (_read(name)["searches"][0] for name in ("digits_bf1_before", "digits_bf1"))
    compared = [*now["comparison"], *(row for row in before["comparison"] if row["loss"] == before["winner"])]
    means = {row["loss"]: (row["mean"], row["interval"]) for row in compared}
    names = ("baseline/ce", "baseline/dice", "baseline/lovasz")
    for loss, key in (("found/bf1", before["winner"]), *((name, name) for name in names[1:])):
        for rival in names:
            if loss != rival:
                add(loss, "digits-seg", "BF1", *means[key], (rival, means[rival][0]), "digits_bf1")
    away = _read("away")
    for row in away["gate"]:
        loss = row["shelf_loss"].partition(" ")[0]
        add(loss, row["task"], row["metric"], row["shelf"], None, (EXPERT, max(row["standard"], row["ladder"])), "away")
    metrics = {row["task"]: row["metric"] for row in away["gate"]}
    for row in sorted(away["rows"], key=lambda row: row["arm"] != FIRST):
        best = row["arm"].endswith("best found") or row["origin"] == "found"
        if (
            row["task"] in AWAY
            and best
            and not any(one["task"] == row["task"] for one in found.get(AWAY[row["task"]], ()))
        ):
            for rival, score in (
                (EXPERT, max(row["standard"], row["ladder"])),
                ("the best of the shelf", row["shelf"]),
            ):
                add(AWAY[row["task"]], row["task"], metrics[row["task"]], row["audit"], None, (rival, score), "away")
    return dict(sorted(found.items()))


def find_formulas() -> dict[str, str]:
    """Return name of a loss that was found → its formula in the run."""
    found = {"found/bf1": _read("digits_bf1_before")["searches"][0]["winner"]}
    for row in _read("audit_before")["rows"]:
        _, name, seed, _ = AUDITED[row["task"]]
        if (row["method"], row["search_seed"]) == ("evolution", seed):
            found[name] = row["loss"]
    for row in sorted(_read("away")["rows"], key=lambda row: row["arm"] != FIRST):
        if row["task"] in AWAY and (row["arm"].endswith("best found") or row["origin"] == "found"):
            found.setdefault(AWAY[row["task"]], row["loss"])
    return found


def _collect_audit(add: Callable[..., None]) -> None:
    rows = _read("audit_before")["rows"]
    for audited, (task, name, seed, metric) in AUDITED.items():
        own = [row for row in rows if row["task"] == audited]
        plain = {row["loss"]: row for row in own if row["loss"].startswith("baseline/")}
        best = max((row for row in plain.values()), key=lambda row: row["mean"])
        ce = plain.pop("baseline/ce")
        winner = next(row for row in own if (row["method"], row["search_seed"]) == ("evolution", seed))
        for rival in (best, ce):
            add(name, task, metric, winner["mean"], winner["interval"], (rival["loss"], rival["mean"]), "audit_before")
        for loss, row in plain.items():
            add(loss, task, metric, row["mean"], row["interval"], ("baseline/ce", ce["mean"]), "audit_before")


def _score_of(search: Mapping[str, Any], name: str) -> float:
    losses = {"cross entropy": "baseline/ce", "Dice": "baseline/dice", "Lovász": "baseline/lovasz"}
    rows: Sequence[Mapping[str, Any]] = search["comparison"]
    if name in losses:
        return next(row["mean"] for row in rows if row["loss"] == losses[name])
    return next(row["mean"] for row in rows if row["label"].startswith(f"#{search['winner_id']}"))


def _read(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
