"""Every recipe of docs/plugging-in.md runs, with a loss that was exported for it."""

from __future__ import annotations

import importlib.util
import math
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import autoloss
from autoloss import zoo
from autoloss.formulas.python_file import to_python
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss

PAGE = (Path(__file__).parent.parent / "docs" / "plugging-in.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"<!-- example: (\w+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))
NEEDED = {"smp": "segmentation_models_pytorch", "torchvision": "torchvision", "lightning": "lightning"}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where the exported losses lie, which can be imported from there."""
    loss = zoo.get("seg/miou")
    text = to_python(loss, {"main": BranchForm(ignore_index=255)}, title="Found loss", facts={})
    (tmp_path / "found_loss.py").write_text(text, encoding="utf-8")
    boxes = Loss({"rcnn_cls": "-y * log(p)", "rcnn_reg": "e / (i + u)"})
    autoloss.export(boxes, tmp_path / "found_boxes.py", branches=autoloss.tasks.get("digits-det", train=16).branches)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("found_loss", "found_boxes"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def written(folder: Path, name: str) -> Path:
    if name in NEEDED and importlib.util.find_spec(NEEDED[name]) is None:
        pytest.skip(f"{NEEDED[name]} is not installed")
    path = folder / f"example_{name}.py"
    path.write_text(EXAMPLES[name], encoding="utf-8")
    return path


def test_every_block_of_the_page_is_an_example_that_is_run():
    assert len(EXAMPLES) == PAGE.count("```python")
    assert set(EXAMPLES) == {"plain", "smp", "lightning", "torchvision", "mmsegmentation", "mmdetection"}


def test_plain(folder):
    names = runpy.run_path(str(written(folder, "plain")))
    slope = names["logits"].grad
    assert slope[:, :, 4:].any()
    assert not slope[:, :, :4].any()


def test_smp(folder):
    names = runpy.run_path(str(written(folder, "smp")))
    assert math.isfinite(names["loss"].item())
    assert all(bool(torch.isfinite(weight).all()) for weight in names["model"].parameters())


def test_lightning(folder):
    # In a process of its own: it brings loggers, warnings and signal handlers along.
    script = f"{EXAMPLES['lightning']}\nassert trainer.global_step == 2, trainer.global_step\n"
    path = written(folder, "lightning")
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, str(path)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torchvision(folder, monkeypatch):
    path = written(folder, "torchvision")
    from torchvision.models.detection import roi_heads

    # Put back after the example has put its own in.
    monkeypatch.setattr(roi_heads, "fastrcnn_loss", roi_heads.fastrcnn_loss)
    names = runpy.run_path(str(path))
    assert set(names["losses"]) == {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 2, 0])
    targets = torch.tensor([[1.0, -2.0, 3.0, 0.5]]).repeat(4, 1)
    found, boxes = names["fastrcnn_loss"](logits, targets.repeat(1, 3), [labels], [targets])
    torch.testing.assert_close(found, F.cross_entropy(logits, labels))
    # Boxes that fit have i = u = e, so e / (i + u) is a half: two of them among four sampled ones, with weight 10.
    assert boxes.item() == pytest.approx(10 * 2 * 0.5 / 4)
    # Two unit boxes side by side: i = 0, u = e = 2, so the loss is 1.
    aside = names["areas"](torch.tensor([[10.0, 0, 0, 0]]), torch.zeros(1, 4))
    assert [area.item() for area in aside.values()] == [0, 2, 2]


class StandIn(types.ModuleType):
    """A registry with the one decorator that the examples use."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.found: dict[str, Any] = {}
        self.MODELS = types.SimpleNamespace(register_module=lambda: self._register)

    def _register(self, kind: type) -> type:
        self.found[kind.__name__] = kind
        return kind


def registered(folder, monkeypatch, package: str, name: str) -> dict[str, Any]:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed; the stand-in would hide it")
    registry = StandIn(f"{package}.registry")
    monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    monkeypatch.setitem(sys.modules, f"{package}.registry", registry)
    runpy.run_path(str(written(folder, name)))
    return registry.found


def test_mmsegmentation_calls_it_as_a_decode_head_does(folder, monkeypatch):
    kind = registered(folder, monkeypatch, "mmseg", "mmsegmentation")["FoundSegmentationLoss"]
    loss = kind(loss_weight=0.4)
    logits, labels = torch.randn(2, 5, 8, 8), torch.randint(5, (2, 8, 8))
    found = {loss.loss_name: loss(logits, labels, weight=None, ignore_index=255)}
    assert found["loss_found"].item() == pytest.approx(
        0.4 * zoo.get("seg/miou").criterion(ignore_index=255)(logits, labels).item()
    )
    with pytest.raises(ValueError, match="no pixel sampler"):
        loss(logits, labels, weight=torch.ones(2, 8, 8), ignore_index=255)


def test_mmdetection_calls_it_as_a_box_head_does(folder, monkeypatch):
    kind = registered(folder, monkeypatch, "mmdet", "mmdetection")["FoundClassificationLoss"]
    logits, labels, weight = torch.randn(6, 4), torch.tensor([0, 3, 1, 3, 2, 0]), torch.tensor([1.0, 1, 0, 1, 1, 0])
    found = kind()(logits, labels, weight, avg_factor=4.0, reduction_override=None)
    torch.testing.assert_close(found, F.cross_entropy(logits[weight > 0], labels[weight > 0]))
    assert kind()(logits[:0], labels[:0]).item() == 0
