"""What stands in for what the pages say, so that all of it runs here: small budgets, no GPU, no cluster, no download.

Whatever no table names is run as it is written. Every row must occur in some page; `test_commands.py` sees to it.
"""

from __future__ import annotations

from collections.abc import Mapping

OPTIONS: Mapping[str, str | None] = {
    "--evaluations": "1",
    "--workers": "0",
    "--seeds": "1",
    "compare --seeds": "2",
    "--top": "1",
    "--device": "cpu",
    # In 16 bits a CPU convolves slowly; tests/training/test_execution.py does.
    "--precision": "float32",
    # tests/workers/test_ray.py starts a cluster.
    "--ray": None,
    "--inject": None,
}
"""Option, or command and option → value in its place; None leaves the option away."""

SETTINGS: Mapping[str, str | None] = {
    "weights": "none",
    "train": "32",
    "loaders": None,
    "full_backbone": "resnet18",
    "full_side": "32",
    "full_epochs": "1",
    "side": "32",
    "short_side": "64",
    "long_side": "96",
    "share": "1.0",
    "batch_size": "2",
    "epochs": "1",
    "limits.memory_gigabytes": None,
}
"""Name after `--set` → value in its place; None leaves it away."""

QUICK: Mapping[str, str] = {
    "rejection.threshold": "-9",
    "rejection.steps": "2",
    "rejection.samples": "1",
    "final.confirm": "0",
    "final.compare": "0",
    # tests/comparison/test_ladder.py climbs it.
    "ladder.share": "0",
}
"""What every search gets beside its own settings: whatever is finite passes, and nothing is trained at the end."""

_PICTURES = {"backbone": "resnet18", "side": "32", "epochs": "1", "batch_size": "2"}
_FULL = {f"full_{name}": value for name, value in _PICTURES.items()}
_BOXES = {
    "backbone": "resnet18",
    "channels": "8",
    "head_width": "16",
    "short_side": "64",
    "long_side": "96",
    "batch_size": "2",
    "learning_rate": "1e-4",
    "warmup_steps": "0",
    "share": "1.0",
    "held_out": "2",
}
_POSES = {
    "backbone": "resnet18",
    "height": "32",
    "width": "32",
    "epochs": "1",
    "batch_size": "2",
    "warmup_steps": "0",
}
TASKS: Mapping[str, Mapping[str, str]] = {
    "digits-seg": {"train": "32", "valid": "8", "test": "8", "epochs": "1"},
    "digits-det": {"train": "4", "valid": "2", "test": "2", "epochs": "1", "batch_size": "4", "size": "64"},
    "digits-ins": {"train": "4", "valid": "2", "test": "2", "epochs": "1", "batch_size": "4", "size": "64"},
    "figures-pose": {"train": "6", "valid": "3", "test": "3", "epochs": "1", "batch_size": "4"},
    "coco-pose": _POSES | {"held_out": "2"},
    # A search predicts once with the full network, too.
    "voc-seg": _PICTURES | _FULL | {"held_out": "3"},
    "folder-seg": _PICTURES | _FULL,
    "coco-det": _BOXES,
    "coco-ins": _BOXES,
    "voc-det": _BOXES,
    "tabular": {"steps": "5"},
    "ranking": {"steps": "5", "size_of_sample": "8"},
    "survival": {"steps": "5", "rows_per_sample": "16"},
}
"""Task → options that every command which names it gets beside its own."""

_FULL_BOXES = {f"full_{name}": value for name, value in _BOXES.items() if name not in ("share", "held_out")} | {
    "full_epochs": "1",
    "full_weights": "none",
}
RETRAINED: Mapping[str, Mapping[str, str]] = {
    "voc-seg": _FULL | {"full_weights": "none"},
    "folder-seg": _FULL,
    "coco-det": _FULL_BOXES,
    "coco-ins": _FULL_BOXES,
    "coco-pose": {f"full_{name}": value for name, value in _POSES.items() if name not in ("height", "width")}
    | {"full_weights": "none"},
}
"""Task of the run → options that every retraining gets beside its own."""

WORDS: Mapping[str, str] = {
    "TASK": "tabular",
    "runs/digits-seg-miou-seed0 3": "runs/digits-seg-miou-seed0 0",
    "/shared/runs/mine": "runs/shared",
    # Each is a training; tests/test_recipes.py knows their names.
    "ce,wce,dice,lovasz,dpce,ssim,asl_miou": "asl_miou",
}
"""Words of a command → words in their place."""

PYTHON: Mapping[str, str] = {
    "epochs=10, batch_size=32": "epochs=1, batch_size=32",
    "evaluations=60": "evaluations=1",
    "evaluations=100": "evaluations=1",
    "workers=2": "workers=0, settings=QUICK",
    'data="DATA", backbone="resnet18", side=64': 'data="DATA", backbone="resnet18", side=32, epochs=1, batch_size=2',
    "run = autoloss.search(task, ": "run = autoloss.search(task, workers=0, settings=QUICK, ",
}
"""Text of a block of Python → text in its place."""

ADDED: Mapping[str, Mapping[str, str | None]] = {
    "search": {"--evaluations": "1", "--workers": "0"},
    **{command: {"--workers": "0"} for command in ("resume", "check", "score", "compare", "explain")},
    "tune": {"--workers": "0", "--trainings": "2"},
    "retrain": {"--seeds": "1", "--baselines": "none"},
    "watch": {"--port": "0"},
    # At their own sizes a training of these takes minutes, so that a check tries no other rates.
    **{f"check {task}": {"--no-rates": None} for task in ("voc-seg", "coco-det", "voc-det", "coco-ins", "coco-pose")},
}
"""Command, or command and task → options that it gets where they are not given, None for a flag: all in this process; a port that
is free."""

NEEDED: Mapping[str, Mapping[str, str]] = {
    "docs/operations.md": {"runs/digits-seg-miou-seed0": "digits", "runs/voc": "voc"},
    "docs/verdict.md": {"runs/digits-seg-miou-seed0": "digits"},
}
"""Page → folder that it finds → which of the runs that the tests made before lies there."""
