"""The report: its first screen answers, every text is escaped, nothing comes from elsewhere, and damage is a sentence."""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import sqlite3
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from random import Random

import pytest
import torch

import autoloss
from autoloss.comparison.entrant import COMPARISON, Entrant, training_seeds
from autoloss.comparison.judgement import Recommendation
from autoloss.comparison.ladder import Ladder, Rung
from autoloss.errors import RequestError
from autoloss.formulas.simplify import simplify
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.records import Outcome, State
from autoloss.report.page.charts import SIZE, axis, dots, line, steps, thin_points
from autoloss.report.page.contents import gather_contents
from autoloss.report.page.figures import baseline_on_valid
from autoloss.report.page.rendering import page, policy
from autoloss.report.page.shapes import draw_kind
from autoloss.report.page.writing import write_report
from autoloss.report.summary import summarize
from autoloss.run.results import Search, open_run
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet
from autoloss.space.form import BranchForm
from autoloss.space.parsing import parse
from autoloss.store.read import Reader
from autoloss.store.run_settings import Comparison, TaskReference
from autoloss.store.store import FILE, Store
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.training import Training
from tests.report.written import CE, KEY, POOLED, add, begin, candidate, compared, scored, searched, tags, words
from tests.screens import exit_code as run


def text_of(directory) -> str:
    return page(gather_contents(Reader(directory)))


@pytest.mark.parametrize(
    ("found", "standard", "answer"),
    [
        ((0.9, 0.91, 0.92), (0.7, 0.72, 0.71), "Yes: #1 beats the best baseline."),
        ((0.9, 0.7, 0.8), (0.7, 0.72, 0.71), "Perhaps: #1 is ahead of the best baseline"),
        ((0.7, 0.7, 0.7), (0.7, 0.7, 0.7), "No: #1 does as well as the best baseline, not better."),
        ((0.6, 0.61, 0.62), (0.7, 0.72, 0.71), "No: #1 does not beat the best baseline; it is significantly worse."),
        ((0.6, 0.8, 0.6), (0.7, 0.72, 0.71), "it is behind, but not significantly"),
    ],
)
def test_the_first_screen_answers_and_says_how_sure_that_is(found, standard, answer, tmp_path):
    directory = compared(searched(tmp_path / "run"), found=found, standard=standard)
    text = words(text_of(directory))
    head = text[: text.index("What the loss does")]
    assert answer in head
    assert f"{sum(found) / 3:.4f}" in head
    assert f"{sum(standard) / 3:.4f}" in head
    assert "baseline/ce" in head
    assert POOLED in head
    if len({round(one - other, 9) for one, other in zip(found, standard, strict=True)}) > 1:
        assert "95 % confidence interval" in head
        assert "(paired over 3 training seeds only, two-sided)" in head


def test_a_page_has_every_part(tmp_path):
    directory = compared(searched(tmp_path / "run"), found=(0.9, 0.8), standard=(0.7, 0.75))
    text = text_of(directory)
    sections = ["answer", "running", "shapes", "over-time", "hall", "best", "funnel", "operators", "family", "curves"]
    assert re.findall(r'<section id="([\w-]+)"', text) == sections
    plain = words(text)
    assert "standard loss, recipe as given (0.5500)" in plain
    assert "operators that combine positions or channels: max_pool, mean_c." in plain
    assert "no prediction or no target 480" in plain
    assert "#5" in plain[plain.index("Not finished") : plain.index("What the loss does")]


def test_the_ladder_and_the_recommendation_stand_beside_the_verdict(tmp_path):
    directory = compared(searched(tmp_path / "run"), found=(0.7, 0.7, 0.7), standard=(0.7, 0.72, 0.71))
    given, best = (
        Entrant(f"<i>{rule}", "baseline/ce", step_rule=rule, baseline=True) for rule in ("recipe", "one_norm")
    )
    ladder = Ladder((Rung(best, 1.0, (0.8, 0.9)), Rung(given, 0.125, (0.7,))), 3.0, "baseline/ce")
    with Store(directory, write=True) as store:
        store.change_setting("ladder", ladder.to_dict())
    text = words(text_of(directory))
    assert "Recommended: cross entropy, steps of one norm (the standard loss)" in text
    assert "Use it: autoloss zoo show baseline/ce" in text
    part = text[text.index("What an expert would try first") : text.index("What the loss does")]
    assert "one_norm: 0.8500" in part
    assert part.index("one_norm") < part.index("recipe 0.7000 at 1/8")
    assert "<i>" not in text_of(directory)


def test_a_recommended_loss_that_no_command_writes_has_a_page(tmp_path, monkeypatch):
    """The standard losses of several branches, which are neither in the zoo nor numbered, once ended the page with an error."""
    directory = compared(searched(tmp_path / "run"), found=(0.7, 0.7, 0.7), standard=(0.7, 0.72, 0.71))
    monkeypatch.setattr(
        Search, "recommendation", Recommendation("abs(add(p, neg(y)))", 1.0, "standard", "No other is ahead.")
    )
    text = words(text_of(directory))
    assert "Recommended: abs(add(p, neg(y)))" in text
    assert "Use it" not in text


def test_a_run_without_any_loss_or_score_has_a_page(tmp_path):
    directory = begin(tmp_path / "run")
    assert "Nothing yet: no loss has a score." in words(text_of(directory))
    add(directory, (candidate(0), None), (candidate(1), Outcome(state=State.FAILED, reason="")))
    text = words(text_of(directory))
    assert "Nothing yet: no loss has a score." in text
    assert "no reason was given" in text


def test_a_search_that_goes_on_says_how_far_it_is(tmp_path):
    text = words(text_of(searched(tmp_path / "run")))
    assert "Not known yet" in text
    assert "best so far is #1 with 0.9000" in text
    assert "Resume it : autoloss resume" in text.replace("it:", "it :")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"


def test_every_text_of_a_run_is_escaped(tmp_path):
    directory = searched(tmp_path / "<b>run", title=HOSTILE, task=TaskReference(None, {HOSTILE: HOSTILE}))
    with Store(directory, write=True) as store:
        store.add_training(HOSTILE, KEY, Outcome(state=State.FAILED, reason=HOSTILE), 5)
        store.add_candidate(candidate(6, HOSTILE), {("main", 0): (HOSTILE, "NO_GRADIENT")})
        store.add_training(HOSTILE, KEY, scored(0.99), 6)
    text = text_of(directory)
    assert "alert(1)" in text
    assert "<img src=x" not in text
    assert "<b>" not in text
    assert text.count("<script") == 1
    attributes = {name for _, found in tags(text) for name in found}
    assert not {name for name in attributes if name.startswith("on")}
    assert not {name for name, _ in tags(text)} & {"b", "iframe", "object"}


def test_nothing_is_loaded_from_elsewhere_and_a_policy_forbids_it(tmp_path):
    text = text_of(searched(tmp_path / "run"))
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert "http" not in text.replace("http-equiv", "")
    found = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)[1])
    assert found == policy(live=False)
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in found
    assert not re.search(r"\sstyle=", text)


def test_a_damaged_row_is_named_and_the_rest_is_shown(tmp_path, capsys):
    directory = searched(tmp_path / "run")
    with sqlite3.connect(directory / FILE) as connection:
        connection.execute("UPDATE training SET score = 0.99 WHERE candidate = 1")
    connection.close()
    assert run("report", directory) == 0
    assert "Left out: " in (printed := capsys.readouterr().err)
    assert "row 2 of training is damaged" in " ".join(printed.split())
    text = words((directory / "report.html").read_text())
    assert "Part of this run cannot be read" in text
    assert "best so far is #2 with 0.6000" in text


@pytest.mark.parametrize("spoil", ["none", "empty", "settings", "no database"])
def test_an_unreadable_run_is_a_sentence(spoil, tmp_path, capsys):
    directory = tmp_path / "run"
    if spoil != "none":
        searched(directory)
    if spoil == "empty":
        with sqlite3.connect(directory / FILE) as connection:
            connection.execute("DELETE FROM setting")
        connection.close()
    if spoil == "settings":
        with sqlite3.connect(directory / FILE) as connection:
            connection.execute("UPDATE setting SET value = '7'")
        connection.close()
    if spoil == "no database":
        (directory / FILE).write_bytes(b"text" * 1000)
    for name in ("report", "top", "failures", "watch"):
        assert run(name, directory) in (1, 2)
        error = capsys.readouterr().err
        assert error.startswith("autoloss: ")
        assert error.count("\n") == 1
        assert "Traceback" not in error


def test_only_a_report_is_replaced(tmp_path, capsys):
    directory, out = searched(tmp_path / "run"), tmp_path / "out.html"
    assert run("report", directory, "--out", out) == 0
    assert run("report", directory, "--out", out) == 0
    out.write_text("mine")
    capsys.readouterr()
    assert run("report", directory, "--out", out) == 2
    assert "so it is not replaced" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert run("report", directory, "--out", tmp_path) == 2
    assert run("report", directory, "--out", directory / FILE / "x") == 2


def test_the_page_of_several_branches_draws_each(tmp_path):
    forms = {"cls": BranchForm(), "reg": BranchForm(leaves=("i", "u", "e"), from_prediction=False)}
    directory = begin(tmp_path / "run", branches=forms)
    kinds = {"kinds": {"cls": "fresh", "reg": "fresh"}, "attempts": {"cls": 0, "reg": 1}, "scores": {}}
    add(directory, (candidate(0, f"cls: {CE}; reg: neg(log(mul(i, inv(u))))", **kinds), scored(0.5)))
    text = words(text_of(directory))
    assert "Curves are cut off at the frame. At y = 0 both losses and their gradients are 0" in text
    assert "two squares" in text
    assert text.count("One position, two classes.") == text.count("Two squares of one size") == 1


def test_a_loss_with_an_operator_of_somebodys_own_is_shown_as_text(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, (candidate(0, "wobble(mul(y, p))"), scored(0.5)))
    text = text_of(directory)
    assert "wobble(mul(y, p))" in words(text)
    assert '<section id="shapes"' not in text


SMALL = {"metric": "miou", "size": 16, "train": 16, "valid": 4, "test": 3, "epochs": 1, "batch_size": 8}


def test_scenes_are_drawn_once_and_kept_beside_the_run(tmp_path):
    directory = searched(tmp_path / "run", task=TaskReference("digits-seg", SMALL))
    said: list[str] = []
    path, damaged = write_report(directory, scenes=True, say=said.append)
    text = path.read_text()
    assert damaged == []
    assert len(said) == 2
    assert text.count("data:image/png;base64,") == 4 * 3
    first = base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])
    assert first.startswith(b"\x89PNG")
    write_report(directory, scenes=True, say=said.append)
    assert len(said) == 2
    add(directory, (candidate(6, CE), scored(0.95)))
    assert "data:image/png" not in text_of(directory)


def test_scenes_are_shown_where_they_cannot_be_stored(tmp_path):
    directory = searched(tmp_path / "run", task=TaskReference("digits-seg", SMALL))
    (directory / "scenes.json").mkdir()
    path, _ = write_report(directory, scenes=True)
    assert path.read_text().count("data:image/png;base64,") == 4 * 3


def test_scenes_are_those_of_the_learning_rates_that_the_losses_were_compared_at(tmp_path, monkeypatch):
    directory = searched(tmp_path / "run", task=TaskReference("digits-seg", SMALL))
    best = open_run(directory).best
    entrants = [
        Entrant(f"#{best.id} (lr × 0.3)", best.formula, learning_rate=0.3),
        Entrant("baseline/ce", "baseline/ce", baseline=True),
        Entrant("baseline/ce (lr × 3)", "baseline/ce", learning_rate=3.0, baseline=True),
    ]
    with Store(directory, write=True) as store:
        store.change_setting("comparison", Comparison(0, [asdict(entrant) for entrant in entrants]))
    seen: list[Training] = []
    draw = SupervisedTask.pictures

    def pictures(self, criterion, training, count):
        seen.append(training)
        return draw(self, criterion, training, count)

    monkeypatch.setattr(SupervisedTask, "pictures", pictures)
    write_report(directory, scenes=True)
    assert [(training.learning_rate, training.split) for training in seen] == [(0.3, "test"), (3.0, "test")]
    write_report(directory, scenes=True)
    assert len(seen) == 2
    with Store(directory, write=True) as store:
        store.change_setting("comparison", Comparison(0, [asdict(entrant) for entrant in entrants[:2]]))
    write_report(directory, scenes=True)
    assert [training.learning_rate for training in seen[2:]] == [0.3, 1.0]


def test_scenes_show_what_a_training_predicts():
    task = autoloss.tasks.get("digits-seg", **SMALL)
    criterion = autoloss.bind(autoloss.Loss(CE), task.branches)
    pictures = task.pictures(criterion, Training(seed=3), 2)
    assert [picture.prediction.shape for picture in pictures] == [(16, 16)] * 2
    again = task.pictures(criterion, Training(seed=3), 2)
    assert all(torch.equal(one.prediction, other.prediction) for one, other in zip(pictures, again, strict=True))
    assert int(pictures[0].target.max()) < 11
    with pytest.raises(RequestError, match="split"):
        task.pictures(criterion, Training(seed=3, split="train"), 2)


def test_scenes_of_a_task_that_is_not_at_hand_or_draws_none_are_a_sentence(tmp_path):
    directory = searched(tmp_path / "run", task=TaskReference(None))
    with pytest.raises(RequestError, match="given as an object"):
        write_report(directory, scenes=True)
    directory = searched(tmp_path / "table", task=TaskReference("tabular", {"data": "iris", "steps": "2"}))
    with pytest.raises(RequestError, match="has no pictures"):
        write_report(directory, scenes=True)
    with pytest.raises(RequestError, match="autoloss failures"):
        write_report(begin(tmp_path / "empty"), scenes=True)


def test_cross_entropy_beside_itself_is_one_curve_with_known_values():
    shape = draw_kind(parse(CE), BranchForm().kind, "", "#1")
    value, gradient = shape.charts
    theirs, ours = value.layers
    assert theirs.path == ours.path
    assert "goes from 5.3 over 0.693 in the middle to 0.00501" in value.description
    assert "goes from -200 over -2 in the middle to -1.01" in gradient.description
    assert shape.notes == ("At y = 0 both losses and their gradients are 0 everywhere.",)


@pytest.mark.parametrize(
    ("standard", "form", "name"),
    [
        ("", BranchForm(), "cross entropy"),
        ("", BranchForm(activation="sigmoid"), "binary cross entropy"),
        ("", BranchForm(activation="none"), "squared error"),
        ("baseline/bce", BranchForm(activation="sigmoid"), "binary cross entropy"),
        ("baseline/focal", BranchForm(), "focal loss"),
        ("seg/gacc", BranchForm(), "seg/gacc"),
        ("-y * sqrt(p)", BranchForm(), "standard loss"),
        # Branches that make p and y of more than prediction and target.
        ("", BranchForm(from_prediction=False, activation="none"), "squared error"),
        ("baseline/mse", BranchForm(from_prediction=False, activation="none"), "squared error"),
        ("", BranchForm(from_prediction=False, activation="sigmoid"), "binary cross entropy"),
        # Written by hand, and with an operator of one's own.
        ("baseline/dice", BranchForm(), "cross entropy"),
        ("sine(p) * y", BranchForm(), "cross entropy"),
        ("baseline/l1", BranchForm(leaves=("i", "u", "e"), from_prediction=False), "IoU loss"),
        ("baseline/giou", BranchForm(leaves=("i", "u", "e"), from_prediction=False), "GIoU loss"),
    ],
)
def test_a_loss_is_drawn_beside_the_standard_loss_of_the_task(standard, form, name):
    shape = draw_kind(parse("p * y" if "p" in form.leaves else "1 - i / e"), form.kind, "", "#1", standard)
    assert {chart.layers[0].name for chart in shape.charts} == {name}


def test_binary_cross_entropy_falls_on_both_sides():
    shape = draw_kind(parse("-y * log(p)"), BranchForm(activation="sigmoid").kind, "", "#1", "baseline/bce")
    assert [chart.title for chart in shape.charts] == [
        "Value, y = 1",
        "Gradient, y = 1",
        "Value, y = 0",
        "Gradient, y = 0",
    ]
    assert "binary cross entropy from 0.00501 over 0.693 to 5.3" in shape.charts[2].description


def test_the_line_of_the_standard_loss_is_its_own_whichever_baseline_is_best(tmp_path):
    directory = searched(tmp_path / "run")
    listed = [
        {"label": "#1", "loss": POOLED},
        {"label": "baseline/ce", "loss": "baseline/ce", "baseline": True},
        {"label": "baseline/dice", "loss": "baseline/dice", "baseline": True},
    ]
    with Store(directory, write=True) as store:
        store.change_setting("comparison", Comparison(2, listed))
        for loss, valid, test in (("baseline/ce", 0.5, 0.4), ("baseline/dice", 0.7, 0.6), (POOLED, 0.2, 0.1)):
            store.add_training(loss, Training(seed=1), scored(valid))
            for seed in training_seeds(0, COMPARISON, 2):
                store.add_training(loss, Training(seed=seed, split="test"), scored(test))
    search = open_run(directory)
    assert search.comparison[0].entrant.label == "baseline/dice"
    assert baseline_on_valid(search, search.reader.trainings) == 0.5


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("(p - y)**2", BranchForm(activation="none")),
        ("inv(p)", BranchForm()),
        ("1 - i / e", BranchForm(leaves=("i", "u", "e"), from_prediction=False)),
        ("y", BranchForm()),
        ("log(neg(exp(exp(exp(exp(p))))))", BranchForm(activation="none")),
    ],
)
def test_every_kind_of_branch_is_drawn(text, form):
    shape = draw_kind(parse(text), form.kind, "main", "#1")
    for chart in shape.charts:
        assert chart.y.low < chart.y.high
        assert "nan" not in "".join(layer.path for layer in chart.layers)
    assert draw_kind(parse("y"), BranchForm(leaves=("y", "q"), from_prediction=False).kind, "", "") is None


def test_a_thinned_series_keeps_its_extremes():
    rng = Random(0)
    points = [(float(at), rng.random()) for at in range(100_000)]
    kept = thin_points(points)
    assert len(kept) <= 600
    assert max(kept, key=lambda point: point[1]) == max(points, key=lambda point: point[1])
    assert kept == sorted(kept)
    x, y = axis(0, 100_000, "x", widen=False), axis(0, 1, "y")
    path = dots(points, x, y)
    best = max(points, key=lambda point: point[1])
    assert f"M{x.place(best[0])} {SIZE - y.place(best[1])}h0" in path
    assert len(path) < 600_000


def test_lines_break_where_nothing_is_finite_and_steps_keep_every_change():
    x, y = axis(0, 4, "x", widen=False), axis(0, 1, "y")
    assert line([(0, 0.0), (1, math.nan), (2, 1.0), (4, 0.5)], x, y) == "M0 1000M500 0L1000 500"
    assert steps([(0, 0.0), (1, 0.0), (2, 1.0), (4, 1.0)], x, y) == "M0 1000H500V0H1000"
    assert steps([], x, y) == ""


@pytest.mark.parametrize("ends", [(0, 1), (0.83, 0.84), (-3e5, 2e6), (5, 5), (0, 0), (1e-9, 3e-9)])
def test_an_axis_has_some_round_numbers_that_are_all_different(ends):
    found = axis(*ends, "x")
    labels = [label for _, label in found.ticks]
    assert 2 <= len(labels) <= 9
    assert len(set(labels)) == len(labels)
    assert all(0 <= place <= SIZE for place, _ in found.ticks)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-y * log(p)", "−y·log(p)"),
        ("(1 + p) / (y + p)", "1+pp+y"),
        ("(p - y)**2", "(p−y)2"),
        ("log(p)**2", "(log(p))2"),
        ("1/2 * sqrt(abs(p))", None),
        ("-(p + y)", None),
    ],
)
def test_mathematics_is_well_formed_and_says_the_same(text, expected):
    found = ElementTree.fromstring(str(simplify(text).mathml))
    assert found.tag == "math"
    if expected is not None:
        plain = "".join(found.itertext())
        assert sorted(plain) == sorted(expected)


def test_the_mathematics_of_any_tree_is_well_formed():
    alphabet = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
    for seed in range(60):
        tree = initial_expression(alphabet, 3, Random(seed))
        found = ElementTree.fromstring(str(simplify(tree).mathml))
        assert len(found.get("alttext", "")) > 0
        for fraction in found.iter("mfrac"):
            assert len(fraction) == 2
        for power in found.iter("msup"):
            assert len(power) == 2


def test_the_winner_and_the_best_baseline_are_on_the_axis_however_far_apart(tmp_path):
    directory = compared(searched(tmp_path / "run"), found=(0.9, 0.91, 0.92), standard=(0.1, 0.12, 0.11))
    found = gather_contents(Reader(directory))
    ends = [
        found.axis.place(row.mean + sign * row.interval) for row in found.summary.search.comparison for sign in (-1, 1)
    ]
    assert all(0 < place < SIZE for place in ends)


def test_one_noisy_score_makes_no_winner(tmp_path):
    directory = searched(tmp_path / "run")
    text = words(text_of(directory))
    assert "#1 best so far" in text
    assert "winner" not in text
    ahead = words(text_of(compared(directory, found=(0.9, 0.8), standard=(0.7, 0.75))))
    assert "winner" not in ahead
    lost = words(text_of(compared(searched(tmp_path / "lost"), found=(0.6, 0.61, 0.62), standard=(0.7, 0.72, 0.71))))
    assert "winner" not in lost
    assert "#1 best found" in lost
    assert "Use baseline/ce: on the test split it has" in lost
    assert "Export it" not in lost


def test_a_loss_that_beats_the_best_baseline_is_the_winner(tmp_path):
    directory = searched(tmp_path / "run")
    text = words(text_of(compared(directory, found=(0.9, 0.91, 0.92), standard=(0.7, 0.72, 0.71))))
    assert "#1 winner" in text
    assert "Export it : autoloss export" in text.replace("it:", "it :")


def test_a_mean_of_the_best_five_needs_five(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, *((candidate(number), scored(score)) for number, score in enumerate((0.9, 0.1, 0.1, 0.1))))
    assert "mean of the best 5" not in text_of(directory)
    add(directory, *((candidate(number), scored(0.2 * number / 10)) for number in range(4, 9)))
    (chart,) = gather_contents(Reader(directory)).over_time
    (mean_line,) = (layer for layer in chart.layers if layer.name.startswith("mean of the best 5"))
    heights = [int(height) for height in re.findall(r"V(\d+)", mean_line.path)]
    # It begins at the fifth training, and never falls.
    assert mean_line.path.startswith(f"M{chart.x.place(5)} ")
    assert heights == sorted(heights, reverse=True)


def test_a_recommendation_of_several_known_losses_says_where_each_is_found(tmp_path, monkeypatch):
    loss = "low: baseline/quantile_5; high: baseline/quantile_95"
    monkeypatch.setattr(Search, "recommendation", Recommendation(loss, 1.0, "standard", "It is ahead."))
    search = open_run(compared(searched(tmp_path / "run"), found=(0.7, 0.7, 0.7), standard=(0.7, 0.72, 0.71)))
    commands = summarize(search).commands
    assert commands["use"] == "autoloss zoo show baseline/quantile_5 && autoloss zoo show baseline/quantile_95"
