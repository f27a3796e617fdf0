"""A criterion under torch.compile: one graph, and the value and gradient that it has without."""

from __future__ import annotations

import dataclasses
import shutil

import pytest
import torch

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.loss import Loss

OPTIONS = {
    "seg/miou": {},
    "seg/gacc": {"ignore_index": 255},
    "seg/macc": {"ignore_index": 255, "divisor": "valid"},
    "seg/biou": {"target": "band", "tolerance": 2},
    "seg/bf1": {"target": "edge", "ignore_index": 255},
    "baseline/ce": {"activation": "sigmoid"},
    "baseline/bce": {"activation": "sigmoid", "ignore_index": 255},
    "pose/oks": {"ignore_index": 255},
}


def measured(criterion, prediction, target):
    prediction = prediction.clone().requires_grad_()
    value = criterion(prediction, target)
    value.backward()
    return value.detach(), prediction.grad


def shortened(criterion):
    """Have class indices evaluated in the shorter way in small batches too."""
    criterion._loss = dataclasses.replace(criterion._loss, least=0)
    return criterion


def batch(ignore_index=None):
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(3, (2, 9, 8), generator=generator)
    if ignore_index is not None:
        target[:, :2] = ignore_index
    return torch.randn(2, 3, 9, 8, generator=generator), target


@pytest.mark.parametrize("name", OPTIONS)
def test_every_kind_of_criterion_is_one_graph(name):
    """fullgraph=True raises where a graph would break."""
    options = OPTIONS[name]
    criterion = shortened(zoo.get(name).criterion(**options))
    compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
    prediction, target = batch(options.get("ignore_index"))
    for found, wanted in zip(
        measured(compiled, prediction, target), measured(criterion, prediction, target), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    torch.compiler.reset()


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler on a CPU, and there is no g++")
@pytest.mark.parametrize("formula", ["-y * log(p)", "exp((y - sqrt(p))**2)"])
def test_compiled_code_computes_the_same(formula, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    criterion = shortened(Loss(formula).criterion(ignore_index=255))
    prediction, target = batch(255)
    # Unasked, more is compiled to learn which instructions there are, and by processes that have to start.
    with torch._inductor.config.patch({"cpp.vec_isa_ok": True, "compile_threads": 1}):
        found = measured(torch.compile(criterion, fullgraph=True), prediction, target)
    for one, wanted in zip(found, measured(criterion, prediction, target), strict=True):
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)
    torch.compiler.reset()


def test_in_eager_mode_an_unknown_class_is_an_error_still():
    with pytest.raises(RequestError, match="class indices from 0 to 3"):
        Loss("-y * log(p)").criterion()(torch.zeros(1, 3, 2, 2), torch.tensor([[[0, 1], [2, 3]]]))
