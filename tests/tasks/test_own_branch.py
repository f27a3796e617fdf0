"""A branch of one's own in a SupervisedTask: one rate per row, with leaves, metric and ideal prediction in this file alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import autoloss
from autoloss import Branch, Data, Recipe, RequestError, Role, Scored, SupervisedTask, Training
from autoloss.space.ranges import UNIT, Range
from tests.tasks import conformance
from tests.tasks.toy import accuracy

SETTINGS = {
    "evolution.initial": 2,
    "rejection.samples": 2,
    "rejection.steps": 20,
    "rejection.learning_rate": 0.05,
    "rejection.threshold": 0.0,
}
"""Few attempts: this branch has no compiled form, so that the reference tests them."""


@dataclass(frozen=True, slots=True)
class RateBranch(Branch):
    """The rate `r` = exp(prediction) of each row against the count `t`."""

    activation: str = "none"
    weight: float = 1.0
    leaves_and_roles: Mapping[str, Role] = field(
        default_factory=lambda: {"r": Role.PREDICTION, "t": Role.TARGET}, init=False
    )

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        rows = prediction.reshape(-1, 1, 1, 1)
        return {"r": rows.clamp(max=10).exp(), "t": context["target"].reshape(rows.shape).float()}

    def mask(self, context: Mapping[str, Tensor]) -> None:
        return None

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        return float(len(context["target"]))

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        """Return 1 where all rates are the counts, and less the further they are from them."""
        leaves = self.leaves(prediction, context)
        return math.exp(-(leaves["r"] - leaves["t"]).abs().mean().item())

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["target"].reshape(-1, 1, 1, 1).float().clamp(min=1e-6).log()


def counts(seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.rand(96, 3, generator=torch.Generator().manual_seed(seed))
    return inputs, (4 * inputs[:, 0]).round().long()


def task(**others: Any) -> SupervisedTask:
    given = {
        "branch": RateBranch(),
        "recipe": Recipe(epochs=4, batch_size=16, learning_rate=0.05),
        "data": Data(rows_per_sample=16),
        "standard": "(r - t) ** 2",
        **others,
    }
    return SupervisedTask(lambda: nn.Linear(3, 1), counts(0), counts(1), test=counts(2), **given)


CLAIMS = [claim for claim in conformance.CLAIMS if "hand_written" not in claim.__name__]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim, monkeypatch):
    monkeypatch.setattr(
        conformance, "_tree", lambda branch: autoloss.parse("(r - t) ** 2", leaves=list(branch.leaves_and_roles))
    )
    claim(task())


def test_losses_of_its_leaves_are_searched(tmp_path):
    made = task()
    found = autoloss.search(
        made, evaluations=3, seed=0, workers=0, directory=tmp_path / "run", settings=SETTINGS, final=False
    )
    assert {"r", "t"} >= {leaf for leaf in ("p", "y", "r", "t") if leaf in found.best.formula}
    outcome = made.train(autoloss.bind(found.best.loss, made.branches), Training(seed=0, split="test"))
    assert isinstance(outcome, Scored)


SLIPS: Mapping[str, tuple[str, Any]] = {
    r"The mask of branch main has the shape \(16,\); expected one that is broadcast to its leaves, \(16, 1, 1, 1\)": (
        "mask",
        lambda branch, context: context["target"] > 0,
    ),
    "The divisor of branch main is nan on a sample; expected a positive number": ("divisor", lambda *_: math.nan),
    "The divisor of branch main is -16 on a sample": ("divisor", lambda branch, context: -len(context["target"])),
    "The leaf t of branch main is torch.int64; expected floating-point numbers": (
        "leaves",
        lambda branch, prediction, context: {
            **RateBranch().leaves(prediction, context),
            "t": context["target"].reshape(-1, 1, 1, 1),
        },
    ),
}


@pytest.mark.parametrize("said", SLIPS)
def test_a_branch_that_reads_its_samples_wrongly_is_refused(said):
    name, method = SLIPS[said]
    made = type("Wrong", (RateBranch,), {name: method})()
    with pytest.raises(RequestError, match=said):
        autoloss.check(task(branch=made))


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        ({"r": Role.PREDICTION, "t": Role.PREDICTION}, "have the roles Role.PREDICTION, Role.PREDICTION; expected"),
        ({"r": "prediction", "t": "target"}, "have the roles prediction, target; expected Role.PREDICTION for one"),
        ({"r": Role.PREDICTION, "y": Role.TARGET}, "sample of branch main are r, t; expected those of its roles, r, y"),
    ],
)
def test_a_branch_whose_roles_make_no_loss_is_refused(roles: Mapping[str, Any], said: str):
    made = RateBranch()
    object.__setattr__(made, "leaves_and_roles", roles)
    with pytest.raises(RequestError, match=said):
        autoloss.check(task(branch=made))


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"t": (0, 1)}, r"The range of the leaf t of branch main is \(0, 1\).*expected a Range that holds all"),
        ({"t": UNIT}, r"leaf t of branch main is Range\(low=0, high=1.*the sample has values from 0 to 4"),
        ({"r": Range(5, 0)}, r"leaf r of branch main is Range\(low=5, high=0"),
    ],
)
def test_a_range_that_the_samples_contradict_is_refused(ranges: Mapping[str, Any], said: str):
    made = type("Ranged", (RateBranch,), {"ranges": ranges})()
    with pytest.raises(RequestError, match=said):
        autoloss.check(task(branch=made))


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        (
            "make_context",
            lambda *_: None,
            "make_context of the branch Wrong fails.*a dictionary of tensors with the target",
        ),
        ("make_context", lambda *_: 1 / 0, "make_context of the branch Wrong fails: ZeroDivisionError"),
        ("make_context", lambda *_: {}, "leaves of the branch Wrong cannot be read: KeyError: 'target'"),
        ("metric", lambda *_: None, "The metric returned None; expected one number"),
    ],
)
def test_what_a_method_of_a_branch_lacks_is_named(name: str, method: Any, said: str):
    with pytest.raises(RequestError, match=said):
        autoloss.check(task(branch=type("Wrong", (RateBranch,), {name: method})()))


def test_a_branch_without_a_positive_weight_is_refused():
    with pytest.raises(RequestError, match=r"The weight of branch main is -1.0; expected a number, at least 0"):
        autoloss.check(task(branch=RateBranch(weight=-1.0)))


def test_a_metric_that_is_a_tensor_of_one_number_is_read(tmp_path):
    def measure(branch: RateBranch, prediction: Tensor, context: Mapping[str, Tensor]) -> Tensor:
        return torch.tensor(RateBranch.metric(branch, prediction, context))

    made = task(branch=type("Measured", (RateBranch,), {"metric": measure})())
    found = autoloss.search(
        made, evaluations=2, seed=0, workers=0, directory=tmp_path / "run", settings=SETTINGS, final=False
    )
    assert found.best.score is not None


def test_the_score_is_the_branchs_metric_or_another_one_of_raw_predictions():
    seen: list[Tensor] = []

    def closeness(prediction: Tensor, target: Tensor) -> float:
        seen.append(prediction)
        return RateBranch().metric(prediction, {"target": target})

    criterion = conformance.bind({"main": autoloss.parse("(r - t) ** 2", leaves=["r", "t"])}, task().branches)
    own, given = (made.train(criterion, Training(seed=0)) for made in (task(), task(metric=closeness)))
    assert isinstance(own, Scored)
    assert own == given
    assert seen[-1].shape == (96, 1)


def test_a_branch_with_an_encoding_takes_the_place_of_the_activation():
    images = torch.randn(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    pair = images, (images[:, 0] > 0).long()
    branch = autoloss.ActivatedBranch(encoding="edge", ignore_index=7)
    made = SupervisedTask(lambda: nn.Conv2d(1, 2, 1), pair, pair, metric=accuracy, branch=branch)
    found = made.branches["main"]
    assert isinstance(found, autoloss.ActivatedBranch)
    assert (found.encoding, found.ignore_index, found.channels) == ("edge", 7, 2)
    with pytest.raises(RequestError, match="leave both out"):
        SupervisedTask(lambda: nn.Conv2d(1, 2, 1), pair, pair, "softmax", accuracy, branch=branch)
    with pytest.raises(RequestError, match="metric"):
        SupervisedTask(lambda: nn.Conv2d(1, 2, 1), pair, pair, branch=branch)
