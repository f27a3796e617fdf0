"""Precision and memory format reach the network and never the loss; float16's skipped steps are no divergence."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from autoloss.errors import RequestError
from autoloss.space.loss import Loss, bind
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.loop import Execution, fit
from autoloss.training.recipe import Recipe
from autoloss.training.training import Diverged, Scored, Training
from tests.tasks.test_supervised import task

PLAIN = Recipe(schedule="constant", momentum=0.0, weight_decay=0.0, learning_rate=0.5)
FLOAT16 = Execution(precision="float16")


class Watched(nn.Module):
    """Remembers in which precision and layout it computes."""

    seen: set[object] = set()

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        prediction = self.convolution(images)
        if self.training:
            Watched.seen |= {prediction.dtype, images.is_contiguous(memory_format=torch.channels_last)}
        return prediction


def images_task() -> SupervisedTask:
    images = torch.randn(16, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    pair = (images, (images[:, 0] > 0).long())
    Watched.seen = set()
    return SupervisedTask(Watched, pair, pair, "softmax", lambda p, y: p.mean(), recipe=Recipe(epochs=2, batch_size=8))


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_the_network_computes_in_16_bits_and_a_hand_written_loss_does_not(precision):
    made, seen = images_task(), set()

    def loss(prediction: Tensor, context: dict[str, Tensor]) -> Tensor:
        product = prediction.flatten(1) @ prediction.flatten(1).T
        seen.add((prediction.dtype, product.dtype, torch.is_autocast_enabled("cpu")))
        return product.mean()

    assert isinstance(made.train({"main": loss}, Training(seed=0), Execution(precision=precision)), Scored)
    assert getattr(torch, precision) in Watched.seen
    assert seen == {(torch.float32, torch.float32, False)}


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_tree_computes_in_float32_inside_autocast(precision):
    """A network may call its criterion while it computes, as detectors do."""
    branch = task().branches["main"]
    criterion = bind(Loss("-y * log(p)"), {"main": branch})["main"]
    prediction = torch.tensor([[30.0, 0.0], [0.0, 30.0]], requires_grad=True)
    target = {"target": torch.tensor([1, 0])}
    with Execution(precision=precision).autocast():
        value = criterion(prediction.to(getattr(torch, precision)), target)
    # −log(e⁻³⁰ + 1e-12); in 16 bits both terms are 0 or coarse.
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(-math.log(math.exp(-30.0) + 1e-12), rel=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_16_bits_learn_what_float32_learns(precision):
    made = task()
    criterion = bind(Loss("-y * log(p)"), made.branches)
    full = made.train(criterion, Training(seed=0))
    half = made.train(criterion, Training(seed=0), Execution(precision=precision))
    assert isinstance(full, Scored)
    assert isinstance(half, Scored)
    assert half.score == pytest.approx(full.score, abs=0.05)
    assert half.curve != full.curve


def test_channels_last_reaches_the_network_and_changes_nothing_else():
    criterion = bind(Loss("-y * log(p)"), images_task().branches)
    plain = images_task().train(criterion, Training(seed=0))
    assert False in Watched.seen
    outcome = images_task().train(criterion, Training(seed=0), Execution(channels_last=True))
    assert isinstance(plain, Scored)
    assert isinstance(outcome, Scored)
    assert Watched.seen == {torch.float32, True}
    assert outcome.score == pytest.approx(plain.score, abs=1e-5)


def weight_of_one() -> nn.Linear:
    network = nn.Linear(1, 1, bias=False)
    nn.init.ones_(network.weight)
    return network


def test_a_step_that_float16_skips_is_no_divergence():
    """The gradient 3e34 is finite; times the first scale of 65536 it is not, and is scaled down until it is."""
    network = weight_of_one()
    recipe = Recipe(schedule="constant", momentum=0.0, weight_decay=0.0, learning_rate=1e-35)
    outcome = fit(network, range(5), lambda batch: network.weight.sum() * 3e34, recipe, 5, execution=FLOAT16)
    assert not isinstance(outcome, Diverged)
    # At the scales 2^16, 2^15 and 2^14 it exceeds float32's 3.4e38: three steps are left out, two are taken.
    assert 1.0 - network.weight.item() == pytest.approx(2 * 0.3, rel=1e-4)


def test_a_gradient_that_no_scale_makes_finite_is_a_divergence():
    network = weight_of_one()
    outcome = fit(
        network, range(40), lambda batch: (network.weight - 1).abs().sqrt().sum(), PLAIN, 40, execution=FLOAT16
    )
    assert outcome == Diverged(17, "the gradient is not finite")
    assert network.weight.item() == 1.0


def test_a_loss_that_is_no_number_is_a_divergence_in_float16_too():
    network = weight_of_one()
    outcome = fit(network, range(3), lambda batch: network.weight.sum() * math.nan, PLAIN, 3, execution=FLOAT16)
    assert outcome == Diverged(1, "the loss is not finite")


def test_a_task_says_how_it_runs_and_trains_so_unless_it_is_told_otherwise():
    made = images_task()
    assert made.execution == Execution()
    criterion = bind(Loss("-y * log(p)"), made.branches)
    assert made.train(criterion, Training(seed=0)) == made.train(criterion, Training(seed=0), made.execution)
    assert Watched.seen == {torch.float32, False}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"precision": "bf16"}, "Did you mean 'bfloat16'"),
        ({"device": "gpu"}, "There is no device 'gpu'"),
        ({"device": "mps"}, "torch finds no such GPU"),
        ({"device": None}, "device is None; expected text"),
        ({"channels_last": "no"}, "channels_last is 'no'; expected true or false"),
    ],
)
def test_a_machine_that_is_not_there_is_refused(wrong, message):
    with pytest.raises(RequestError, match=message):
        Execution(**wrong)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(RequestError, match="torch finds no such GPU"):
        task(device="cuda")
