"""Checkpoints: a killed training goes on to the same bits, damage is found, and nothing is mixed up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from autoloss.errors import RequestError, RunError
from autoloss.tasks.data import Data
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.checkpoints import (
    KEPT,
    NETWORK,
    Checkpoints,
    TrainingState,
    delete_checkpoints,
    list_checkpoints,
    save_network,
)
from autoloss.training.loop import Execution, fit
from autoloss.training.recipe import Recipe
from autoloss.training.training import Diverged, Scored, Training
from tests.tasks.test_supervised import rows
from tests.training.drawing import STEPS, cross_entropy, drawing_task, kept_in

TRAINING = Training(seed=3)


class Killed(Exception):
    """Stands in for a kill between two steps."""


def train(
    execution: Execution | None = None,
    kill_at: int = 0,
    training: Training = TRAINING,
    task: SupervisedTask | None = None,
) -> Scored:
    task = task or drawing_task()

    def observe(step: int, loss: float) -> None:
        if step == kill_at:
            raise Killed

    outcome = task.train(cross_entropy(task), training, execution, observe)
    assert isinstance(outcome, Scored)
    return outcome


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[Scored, Path]:
    """Train without interruption, and keep the network."""
    directory = tmp_path_factory.mktemp("whole")
    return train(kept_in(directory)), directory


def killed(directory: Path, at: int = 13) -> list[Path]:
    with pytest.raises(Killed):
        train(kept_in(directory), kill_at=at)
    return list_checkpoints(directory)


def test_keeping_changes_nothing(whole):
    assert train() == whole[0]
    assert len(whole[0].curve) == STEPS


@pytest.mark.parametrize("step", [1, 4, 5, 6, 11, 20, 23, STEPS])
def test_a_training_killed_at_any_step_goes_on_to_the_same_bits(step, whole, tmp_path):
    killed(tmp_path, step)
    assert train(kept_in(tmp_path)) == whole[0]
    assert (tmp_path / NETWORK).read_bytes() == (whole[1] / NETWORK).read_bytes()


def test_a_training_killed_again_and_again_goes_on_to_the_same_bits(whole, tmp_path):
    for step in (7, 8, 16, 22):
        killed(tmp_path, step)
    assert train(kept_in(tmp_path)) == whole[0]


def test_a_process_killed_by_the_system_goes_on_to_the_same_bits(whole, tmp_path):
    program = (
        "import pathlib, sys, time\n"
        "from autoloss import Training\n"
        "from tests.training.drawing import cross_entropy, drawing_task, kept_in\n"
        "task, execution = drawing_task(), kept_in(pathlib.Path(sys.argv[1]), lambda step: True)\n"
        "task.train(cross_entropy(task), Training(seed=3), execution, lambda step, loss: time.sleep(0.05))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=Path(__file__).parents[2])
    while len(list_checkpoints(tmp_path)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / NETWORK).exists()
    assert train(kept_in(tmp_path)) == whole[0]


def test_a_finished_training_is_measured_again_without_a_step(whole, tmp_path):
    seen: list[int] = []
    train(kept_in(tmp_path))
    task = drawing_task()
    outcome = task.train(cross_entropy(task), TRAINING, kept_in(tmp_path), lambda step, loss: seen.append(step))
    assert (outcome, seen) == (whole[0], [])


def test_the_last_two_are_kept_and_a_finished_training_may_forget_them(tmp_path):
    assert [path.name[:20] for path in killed(tmp_path, 16)] == ["checkpoint-000000015", "checkpoint-000000010"]
    assert KEPT == 2
    (tmp_path / "checkpoint.partial").write_bytes(b"half")
    train(kept_in(tmp_path))
    delete_checkpoints(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [NETWORK]


def test_a_checkpoint_holds_tensors_numbers_and_text(tmp_path):
    state = torch.load(killed(tmp_path)[0], weights_only=True)
    assert state["step"] == 10
    assert state["belongs"]["recipe.learning_rate"] == 0.02
    assert state["belongs"]["seed"] == 3


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    # One bit of one weight: torch reads such a file without a word.
    content, weight = path.read_bytes(), torch.load(path, weights_only=True)["network"]["0.weight"].numpy().tobytes()
    assert content.count(weight) == 1
    place = content.index(weight) + 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(damage, whole, tmp_path):
    damage(killed(tmp_path)[0])
    assert train(kept_in(tmp_path)) == whole[0]


def test_checkpoints_that_are_all_damaged_are_named(tmp_path):
    paths = killed(tmp_path)
    for path in paths:
        cut(path)
    with pytest.raises(RequestError, match=r"All checkpoints .* are damaged") as raised:
        train(kept_in(tmp_path))
    assert all(path.name in str(raised.value) for path in paths)


def test_a_checkpoint_of_another_training_is_refused_by_what_differs(tmp_path):
    killed(tmp_path)
    with pytest.raises(RequestError, match="seed is 3 there and 4 here"):
        train(kept_in(tmp_path), training=Training(seed=4))
    with pytest.raises(RequestError, match="loss is None there and 'y - p' here"):
        train(kept_in(tmp_path, loss="y - p"))
    with pytest.raises(RequestError, match=r"recipe\.learning_rate is 0\.02 there and 0\.04 here"):
        train(kept_in(tmp_path), training=Training(seed=3, learning_rate=2.0))
    wider = Execution(precision="bfloat16", checkpoints=Checkpoints(directory=tmp_path, is_due=lambda step: False))
    with pytest.raises(RequestError, match="precision is 'float32' there and 'bfloat16' here"):
        train(wider)


def test_a_checkpoint_of_another_network_is_refused(tmp_path):
    killed(tmp_path)
    other = drawing_task()
    other._networks["proxy"] = lambda: nn.Linear(4, 2)
    with pytest.raises(RequestError, match="does not fit this network"):
        train(kept_in(tmp_path), task=other)


def test_a_diverged_training_diverges_again_at_the_same_step(tmp_path):
    def attempt() -> object:
        task = drawing_task()
        sound, calls = cross_entropy(task)["main"], iter(range(1, 100))

        def spoilt(prediction, context):
            value = sound(prediction, context)
            return value / 0 if 10 - done == next(calls) else value

        return task.train({"main": spoilt}, TRAINING, kept_in(tmp_path, lambda step: True))

    done = 0
    assert attempt() == Diverged(10, "the loss is not finite")
    assert list_checkpoints(tmp_path)[0].name.startswith("checkpoint-000000009")
    assert not (tmp_path / NETWORK).exists()
    done = 9
    assert attempt() == Diverged(10, "the loss is not finite")


def test_batches_that_cannot_be_taken_up_midway_are_read_again(tmp_path):
    """A loop with batches of its own needs no function for them: those of finished steps are drawn and passed over."""
    recipe = Recipe(schedule="constant", learning_rate=0.1)

    def attempt(keep: bool, kill_at: int = 0) -> list[float]:
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        batches = (torch.rand(2, 3) for _ in range(8))

        def observe(step: int, loss: float) -> None:
            if step == kill_at:
                raise Killed

        kept = Checkpoints(directory=tmp_path, is_due=lambda step: step == 3) if keep else None
        execution = Execution(checkpoints=kept)
        fit(model, batches, lambda batch: model(batch).square().mean(), recipe, 8, observe=observe, execution=execution)
        return model.weight.tolist()

    expected = attempt(keep=False)
    with pytest.raises(Killed):
        attempt(keep=True, kill_at=5)
    assert attempt(keep=True) == expected


def test_the_kept_network_loads_into_a_fresh_one_and_names_its_training(tmp_path):
    from safetensors import safe_open

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    save_network(
        model, Checkpoints(directory=tmp_path, is_due=lambda step: False, metadata={"loss": "-y * log(p)", "seed": 7})
    )
    other = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    other.load_state_dict(load_file(tmp_path / NETWORK))
    assert torch.equal(other[0].weight, model[0].weight)
    with safe_open(tmp_path / NETWORK, framework="pt") as file:
        assert json.loads(file.metadata()["training"]) == {"loss": "-y * log(p)", "seed": 7}


def test_what_cannot_be_written_ends_the_training_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunError, match="cannot be written"):
        train(kept_in(tmp_path / "file" / "folder"))


def test_float16_keeps_its_scale(tmp_path):
    def state(scaler: torch.amp.GradScaler) -> TrainingState:
        model = nn.Linear(1, 1)
        return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1), scaler)

    keep = Checkpoints(directory=tmp_path, is_due=lambda step: False)
    first = state(torch.amp.GradScaler("cpu", init_scale=128.0))
    first.save(keep)
    second = state(torch.amp.GradScaler("cpu"))
    second.restore(keep)
    assert second.scaler.get_scale() == 128.0


def test_tasks_from_tensors_are_kept_too(tmp_path):
    recipe = Recipe(epochs=3, batch_size=16, learning_rate=0.1)
    task = SupervisedTask(
        lambda: nn.Linear(4, 2),
        rows(0),
        rows(1),
        "softmax",
        lambda p, y: p[:, 1].mean(),
        recipe=recipe,
        data=Data(rows_per_sample=8),
    )
    kept = kept_in(tmp_path, lambda step: True)
    with pytest.raises(Killed):
        train(kept, kill_at=9, task=task)
    assert train(kept, task=task) == train(task=task)
