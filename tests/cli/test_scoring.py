"""What `score` says of the losses that it trains."""

from __future__ import annotations

import json

from tests import screens

WORDS = ["score", "tabular", "--data", "iris", "--set", "steps=20", "--workers", "0"]


def test_a_formula_that_is_a_known_loss_is_named():
    code, _, said = screens.run(*WORDS, "--loss", "-(y + y) * log(p)", "--loss", "y * p * p", "--loss", "baseline/ce")
    assert code == 0
    assert "On this task, -(y + y) * log(p) has the gradient of cross entropy × 2." in said.replace("\n", " ")
    assert "y * p * p has" not in said


def test_a_loss_of_probabilities_on_values_is_named_and_the_other_way_round():
    values = ["--data", "diabetes", "--metric", "r2"]
    said = screens.run(*WORDS, *values, "--loss", "baseline/ce", "--loss", "baseline/huber")[2]
    assert "baseline/ce is a loss of probabilities, but the task predicts values." in said
    assert "baseline/huber" not in said
    said = screens.run(*WORDS, "--loss", "main: baseline/mse", "--loss", "baseline/bce")[2]
    assert "baseline/mse is a loss of values, but the task predicts probabilities." in said
    assert "baseline/bce" not in said


def test_trainings_without_a_score_end_with_exit_code_1():
    words = [*WORDS, "--loss", "exp(exp(exp(exp(y + p))))"]
    code, out, said = screens.run(*words)
    assert code == 1
    assert "loss" in out
    assert said.splitlines()[-1].startswith("autoloss: No training has a score. The first one: ")
    code, out, _ = screens.run(*words, "--json")
    assert code == 1
    assert json.loads(out)[0]["mean"] is None
    assert screens.run(*words, "--loss", "baseline/ce")[0] == 0
