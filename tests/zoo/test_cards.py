"""The card of each named loss: one for all, with gradients that are right and figures that are those of the files."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest
import torch

import autoloss
from autoloss import Loss, zoo
from autoloss.report.card import make_card, read_evidence

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", zoo.names())
def test_every_loss_has_a_card_with_its_formula_and_code(name):
    card = make_card(name)
    shown = "\n".join(card.lines())
    assert f'autoloss.zoo.get("{name}")' in shown or f'autoloss.zoo.resolve("{name}", task.branches)' in shown
    assert bool(card.terms) == bool(zoo.get_entry(name).formulas)
    assert all(weight >= 0 for weight in card.weights.values())


def test_no_two_losses_have_the_same_title_and_each_of_the_shelf_and_the_baselines_has_one():
    titles = [zoo.get_entry(name).title for name in zoo.names() if name.startswith(("shelf/", "baseline/"))]
    assert all(titles)
    assert len(set(titles)) == len(titles)
    # They stand in lists with commas, and before the way of training in parentheses.
    assert not any(mark in title for title in titles for mark in ",(;:")


@pytest.mark.parametrize(
    ("name", "state", "weight"),
    [
        # 6 % of the 24 × 24 pixels are of the rare class: 36 of 576, so that its weight is 540 / 36.
        ("shelf/balanced_ce", "of a rare class (6 %), unsure", 15.0),
        # The gradient of (1 − p)²·log(p) beside that of log(p) at p = 0.95, over the same at 0.5.
        ("baseline/focal", "right (0.95)", 0.01235),
        # 2e / (1 + e²) beside 2e.
        ("shelf/cauchy", "error 3", 0.2),
        ("shelf/absolute_error", "error 0.1", 10.0),
        ("baseline/ce", "wrong (0.05)", 1.0),
    ],
)
def test_the_weight_of_a_state_is_the_gradient_beside_the_standard_losss(name, state, weight):
    assert make_card(name).weights[state] == pytest.approx(weight, rel=0.02)


def test_what_a_loss_does_is_said_in_words():
    assert make_card("shelf/cauchy").words == [
        "It gives more weight to small errors than squared error does.",
        "It gives less weight to outliers than squared error does.",
    ]


@pytest.fixture(scope="module")
def figures():
    pytest.importorskip("matplotlib")
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_figures_of_the_cards_are_those_of_the_files(figures):
    assert figures.collect_evidence() == read_evidence(), "run: python docs/figures.py"


def test_a_loss_that_was_found_is_that_of_its_run_up_to_a_factor(figures):
    formulas = figures.find_formulas()
    assert set(formulas) == {name for name in zoo.names() if name.startswith("found/")} <= set(read_evidence())
    p = torch.rand(4, 3, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).clamp(0.02, 0.98)
    y = torch.zeros_like(p).index_fill_(1, torch.tensor([1]), 1.0)
    y[0] = y[0].roll(1, 0)
    for name, formula in formulas.items():
        slopes = []
        for text in (formula, zoo.get_entry(name).formula):
            at = p.clone().requires_grad_()
            tree = Loss.parse(text)["main"]
            slopes.append(torch.autograd.grad(tree.evaluate({"p": at, "y": y}).sum(), at)[0].flatten())
        assert torch.cosine_similarity(*slopes, dim=0) > 1 - 1e-5, name


@pytest.mark.parametrize("name", ["baseline/cox", "baseline/auc_hinge", "shelf/pair_sigmoid"])
def test_the_code_of_a_loss_over_pairs_runs(name: str, tmp_path: Path):
    (tmp_path / "code.py").write_text(make_card(name).code)
    given = {
        "autoloss": autoloss,
        "task": autoloss.tasks.get("survival"),
        "scores": torch.tensor([[0.0], [0.5], [1.0]]),
        "targets": torch.tensor([[5.0, 1.0], [3.0, 0.0], [2.0, 1.0]]),
    }
    found = runpy.run_path(str(tmp_path / "code.py"), given)["loss"]
    # As a search trains it.
    branches = given["task"].branches
    trained = autoloss.bind(zoo.resolve(name, branches)[1], branches)["main"]
    assert found == trained(given["scores"], branches["main"].make_context(given["scores"], given["targets"]))
