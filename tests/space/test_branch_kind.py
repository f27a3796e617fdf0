"""A new kind of branch is one class: rejection, training, the zoo, simplification and export take it as it is.

The kind: one event rate per row, softplus of the raw prediction, against a count.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from autoloss.errors import RequestError
from autoloss.formulas.python_file import to_python
from autoloss.formulas.simplify import simplify_loss
from autoloss.proposing.initialization import initial_expression
from autoloss.rejection.engines import ENGINES, correlation_score
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.scale import move_half_to_ideal
from autoloss.rejection.screen import screen_losses
from autoloss.settings import ProtocolSettings
from autoloss.space.branch import Branch, Role, Sample
from autoloss.space.expression import Alphabet
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss, bind
from autoloss.space.parsing import parse
from autoloss.space.ranges import POSITIVE
from autoloss.zoo import resolve

FORMULA = "square(rate - count)"


class RateBranch(Branch):
    """One rate for each row: raw predictions (N, 1)."""

    leaves_and_roles = {"rate": Role.PREDICTION, "count": Role.TARGET}
    ranges = {"rate": POSITIVE, "count": POSITIVE}
    is_single = True
    step_to_ideal = 0.25
    weight = 2.0

    def leaves(self, prediction: Tensor, context: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        rate = F.softplus(prediction).reshape(-1, 1, 1, 1)
        return {"rate": rate, "count": context["counts"].to(rate).reshape(-1, 1, 1, 1)}

    def mask(self, context: Mapping[str, Tensor]) -> None:
        return None

    def divisor(self, context: Mapping[str, Tensor]) -> float:
        return float(len(context["counts"]))

    def metric(self, prediction: Tensor, context: Mapping[str, Tensor]) -> float:
        return -float((F.softplus(prediction).flatten() - context["counts"]).abs().mean())

    def ideal(self, context: Mapping[str, Tensor]) -> Tensor:
        return context["counts"].clamp(min=1e-3).expm1().log().unsqueeze(1)


def draw_samples(count: int = 2) -> tuple[Sample, ...]:
    generator = torch.Generator().manual_seed(0)
    counts = [torch.randint(4, (12,), generator=generator).float() for _ in range(count)]
    return tuple(Sample(torch.randn(12, 1, generator=generator), {"counts": each}) for each in counts)


BRANCH, SAMPLES = RateBranch(), draw_samples()


@pytest.mark.parametrize("name", ENGINES)
def test_each_engine_rejects_and_accepts_its_losses(name: str):
    settings = ProtocolSettings(samples=2, engine=name, learning_rate=0.01)
    engine = ENGINES[settings.engine](BRANCH, measure_reference(BRANCH, SAMPLES), settings)
    good, bad = parse(FORMULA, BRANCH.leaves_and_roles), parse(f"-{FORMULA}", BRANCH.leaves_and_roles)
    assert [verdict.passed for verdict in engine.verdicts([good, bad])] == [True, False]
    assert [verdict.passed for verdict in screen_losses(engine, [good, bad])] == [True, False]
    assert engine.gradients([good])[0].finite


def test_trees_are_drawn_from_its_leaves_and_scored():
    from random import Random

    tree = initial_expression(Alphabet(BRANCH.leaves_and_roles), 2, Random(0))
    assert tree.leaves <= {"rate", "count", "1"}
    assert correlation_score(parse(FORMULA, BRANCH.leaves_and_roles), BRANCH, SAMPLES) is not None


def test_partly_right_predictions_go_its_own_step_to_either_side():
    moved = move_half_to_ideal(BRANCH, SAMPLES[0], torch.Generator().manual_seed(0)).prediction
    share = (moved - SAMPLES[0].prediction) / (BRANCH.ideal(SAMPLES[0].context) - SAMPLES[0].prediction)
    assert {round(value, 3) for value in share.flatten().tolist()} == {0.0, 0.25, 1.75}


def test_a_criterion_trains_it():
    prediction, context = torch.zeros(12, 1, requires_grad=True), SAMPLES[0].context
    loss = bind(Loss.parse(FORMULA, {"main": BRANCH.leaves_and_roles}), {"main": BRANCH})["main"](prediction, context)
    loss.backward()
    rate = F.softplus(torch.zeros(1))
    torch.testing.assert_close(loss.detach(), 2 * (rate - context["counts"]).square().mean())
    assert prediction.grad is not None


def test_the_zoo_takes_its_formulas_and_no_others():
    tree = parse(FORMULA, BRANCH.leaves_and_roles)
    assert resolve(FORMULA, {"main": BRANCH}) == (FORMULA, {"main": tree})
    with pytest.raises(RequestError, match="has rate, count"):
        resolve("baseline/ce", {"main": BRANCH})


def test_formulas_are_simplified_by_its_ranges_and_its_shape():
    form = BRANCH.form(SAMPLES)
    assert BranchForm(**form.to_dict()) == form
    assert form.target_kind == "values"
    loss = Loss.parse("abs(rate) * mean_c(max_pool(count))", {"main": form.leaves})
    assert str(simplify_loss(loss, {"main": form})["main"]) == "count * rate"


def test_its_losses_are_exported(tmp_path: Path):
    loss = Loss.parse(FORMULA, {"main": BRANCH.leaves_and_roles})
    path = tmp_path / "rates.py"
    path.write_text(to_python(loss, {"main": BRANCH.form()}, title="Rates", facts={}), encoding="utf-8")
    found = runpy.run_path(str(path))
    leaves = BRANCH.leaves(SAMPLES[0].prediction, SAMPLES[0].context)
    assert torch.equal(found["RatesLoss"]()(**leaves), loss["main"].evaluate(leaves))
