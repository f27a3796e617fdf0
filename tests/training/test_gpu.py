"""What a GPU must do as a processor does: values and gradients of losses, trainings, searches, and faults of its own.

Skipped where there is none.
"""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from typing import Any

import cloudpickle
import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.activated import ActivatedBranch
from autoloss.space.branch import Branch
from autoloss.space.loss import Loss, bind
from autoloss.space.pairs import PairBranch
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.checkpoints import Checkpoints
from autoloss.training.loop import Execution
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training
from autoloss.workers.messages import Finished, Lost
from autoloss.workers.pool import ProcessWorkers

cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STANDARD = Loss("-y * log(p)")


def draw(activation: str) -> tuple[Branch, Tensor, Tensor]:
    """Return a branch, raw predictions and targets."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(16, 1, generator=generator)
    logits = torch.randn(2, 4, 24, 24, generator=generator)
    if activation == "pairs":
        return PairBranch(limit=10_000), scores, torch.rand(16, generator=generator)
    if activation == "softmax":
        target = torch.randint(4, (2, 24, 24), generator=generator)
        target[0, :3] = 255
        return ActivatedBranch(ignore_index=255), logits, target
    if activation == "sigmoid":
        return ActivatedBranch(activation="sigmoid"), logits, (logits + 1 > 0).float()
    return ActivatedBranch(activation="none"), scores, torch.rand(16, 1, generator=generator)


def compute(name: str, branch: Branch, prediction: Tensor, target: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Return value and gradient of a known loss on a device."""
    prediction = prediction.to(device).detach().requires_grad_()
    criterion = bind(zoo.resolve(name, {"main": branch})[1], {"main": branch})["main"]
    value = criterion(prediction, branch.make_context(prediction, target.to(device)))
    value.backward()
    assert value.device.type == device
    assert prediction.grad is not None
    return value.detach().cpu(), prediction.grad.cpu()


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none", "pairs"])
def test_known_losses_have_a_processors_values_and_gradients(activation):
    branch, prediction, target = draw(activation)
    compared = 0
    for name in zoo.names():
        with suppress(RequestError):
            expected = compute(name, branch, prediction, target, "cpu")
            for one, other in zip(compute(name, branch, prediction, target, "cuda"), expected, strict=True):
                # A loss of probabilities is no number where predictions are not in (0, 1).
                torch.testing.assert_close(
                    one, other, rtol=1e-3, atol=1e-6, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
                )
            compared += 1
    assert compared >= 4


# Inductor warns on some releases of its own use of deprecated functions, and of kernels that it could make faster.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["baseline/ce", "seg/miou", "seg/bf1"])
def test_a_compiled_loss_is_the_same(name):
    branch, prediction, target = draw("softmax")
    prediction, target = prediction.cuda(), target.cuda()
    criterion = bind(zoo.resolve(name, {"main": branch})[1], {"main": branch})["main"]
    context = branch.make_context(prediction, target)
    compiled = torch.compile(criterion, fullgraph=True)(prediction, context)
    torch.testing.assert_close(compiled, criterion(prediction, context), rtol=1e-4, atol=1e-6)


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 6, generator=generator)
    return inputs, (inputs[:, 0] + inputs[:, 1] ** 2 > 1).long()


def accuracy(prediction: Tensor, target: Tensor) -> float:
    return float((prediction.argmax(1) == target).float().mean())


def make_task(device: str = "cuda", **others: Any) -> SupervisedTask:
    return SupervisedTask(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 2)),
        rows(256, 0),
        rows(128, 1),
        "softmax",
        accuracy,
        device=device,
        recipe=Recipe(epochs=8, batch_size=16, learning_rate=0.1),
        data=Data(rows_per_sample=16),
        **others,
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("channels_last", [False, True])
def test_it_learns_what_a_processor_learns(precision, channels_last):
    expected = make_task("cpu").train(bind(STANDARD, make_task().branches), Training(seed=0))
    execution = Execution(device="cuda", precision=precision, channels_last=channels_last)
    found = make_task().train(bind(STANDARD, make_task().branches), Training(seed=0), execution)
    assert isinstance(expected, Scored)
    assert isinstance(found, Scored)
    assert found.score == pytest.approx(expected.score, abs=0.08)
    assert found.score > 0.75


def test_a_training_is_the_same_each_time_and_leaves_the_generators_of_its_caller():
    task, state = make_task(), torch.cuda.get_rng_state()
    first, second = (task.train(bind(STANDARD, task.branches), Training(seed=3)) for _ in range(2))
    assert first == second
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_an_interrupted_training_with_dropout_goes_on_to_the_same_curve(tmp_path):
    task, at = make_task(), 40

    def interrupt(step: int, loss: float) -> None:
        if step == at:
            raise InterruptedError

    checkpointed = Execution(
        device="cuda", checkpoints=Checkpoints(directory=tmp_path, is_due=lambda step: step % 16 == 0)
    )
    criterion = bind(STANDARD, task.branches)
    expected = task.train(criterion, Training(seed=1))
    with pytest.raises(InterruptedError):
        task.train(criterion, Training(seed=1), checkpointed, interrupt)
    resumed = task.train(criterion, Training(seed=1), checkpointed)
    assert isinstance(expected, Scored)
    assert isinstance(resumed, Scored)
    assert [loss for _, loss in resumed.curve] == pytest.approx([loss for _, loss in expected.curve], rel=1e-4)


def test_a_search_of_two_workers_shares_it_and_repeats_its_history(tmp_path):
    settings = {"final.confirm": 0, "final.compare": 0}
    histories = [
        [(one.formula, one.score) for one in search.history]
        for search in (
            autoloss.search(make_task(), evaluations=6, workers=2, directory=tmp_path / str(number), settings=settings)
            for number in range(2)
        )
    ]
    assert histories[0] == histories[1]
    assert any(math.isfinite(score) for _, score in histories[0])


def compute_on_it(payload: str) -> float:
    if payload == "misuse":
        torch.zeros(4, device="cuda")[torch.tensor([9], device="cuda")].sum().item()
    return torch.ones(3, device="cuda").sum().item()


def test_an_error_of_the_gpu_ends_its_process_and_the_next_one_works():
    with ProcessWorkers(compute_on_it, 1) as workers:
        outcomes = []
        for job, payload in enumerate(["misuse", "work"]):
            workers.submit(job, payload, deadline_seconds=120)
            while len(outcomes) <= job:
                outcomes += workers.wait()
    lost, finished = outcomes
    assert isinstance(lost, Lost), lost
    assert lost.cause == "device"
    assert isinstance(finished, Finished), finished
    assert finished.value == 3.0
