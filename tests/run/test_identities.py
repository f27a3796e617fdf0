"""A loss is what its gradient on the branch says: cross entropy is recognised however it is written, and only where it is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import autoloss
from autoloss import parse
from autoloss.report.page.contents import gather_contents
from autoloss.report.page.rendering import page
from autoloss.report.readable import simplify_formulas
from autoloss.report.summary import list_top, summarize
from autoloss.run.identities import Identifier, Identity
from autoloss.run.results import open_run
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import PLAIN, BoxRegression
from autoloss.space.branch import Branch, Sample
from autoloss.store import samples as sample_files
from autoloss.store.read import read_once
from autoloss.store.store import Store
from tests.report.written import CE, add, begin, candidate, scored
from tests.screens import exit_code as run
from tests.tasks.toy import HeatmapBranch

CHANNELS = 4
BALANCED_BCE = "-(y * log(p) / mean_nhw(y) + (1 - y) * log(1 - p) / mean_nhw(1 - y))"
DOUBLED = "neg(log(mul(square(p), tanh(tanh(y)))))"


def draw_samples(kind: str, channels: int = CHANNELS, count: int = 3) -> tuple[Sample, ...]:
    """Draw predictions of an untrained network, with targets of a kind."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(count):
        prediction = 0.3 * torch.randn(8, channels, 1, 1, generator=generator)
        values = torch.rand(8, channels, 1, 1, generator=generator)
        target = {
            "indices": torch.randint(max(channels, 2), (8, 1, 1), generator=generator),
            "labels": values.round(),
            "soft": values,
            "counts": (values > 0.8).float(),
        }[kind]
        found.append(Sample(prediction, {"target": target}))
    return tuple(found)


def draw_boxes(count: int = 3) -> tuple[Sample, ...]:
    generator = torch.Generator().manual_seed(2)
    found = []
    for _ in range(count):
        corner = 40 * torch.rand(9, 2, generator=generator)
        reference = torch.cat([corner, corner + 8 + 8 * torch.rand(9, 2, generator=generator)], dim=1)
        box = reference + torch.randn(9, 4, generator=generator)
        context = {
            "target": torch.tensor([1, 0, 2] * 3),
            "box": box,
            "reference": reference,
            "deviations": torch.tensor([PLAIN]),
        }
        found.append(Sample(0.1 * torch.randn(9, 4, 1, 1, generator=generator), context))
    return tuple(found)


SOFTMAX = ActivatedBranch(channels=CHANNELS)
SIGMOID = ActivatedBranch(activation="sigmoid", channels=CHANNELS)
ONE_LOGIT = ActivatedBranch(activation="sigmoid", channels=1)
VALUES = ActivatedBranch(activation="none", channels=CHANNELS)
BOXES = BoxRegression()


@pytest.mark.parametrize(
    ("branch", "samples", "standard", "formula", "expected"),
    [
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "-y * log(p)", "cross entropy"),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "-(y + y) * log(p)", "cross entropy × 2"),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", DOUBLED, "cross entropy × 2"),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "-log(y * p)", "cross entropy"),
        # The probabilities of a position add up to 1.
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "p - y * log(p)", "cross entropy"),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "0.250 * neg(mul(y, log(p)))", "cross entropy × 0.25"),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "y * log(p)", None),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "-y * sqrt(sqrt(p))", None),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "1 + 1", None),
        (SOFTMAX, draw_samples("indices"), "sqrt(y - p)", "2 * sqrt(y - p)", "the standard loss × 2"),
        # Soft labels: its gradient no longer knows y.
        (SOFTMAX, draw_samples("soft"), "baseline/ce", "-(y + y) * log(p)", "cross entropy × 2"),
        (SOFTMAX, draw_samples("soft"), "baseline/ce", DOUBLED, "ins/mask × 2"),
        (SIGMOID, draw_samples("labels"), "baseline/bce", "-log(abs(p + y - 1))", "binary cross entropy"),
        (SIGMOID, draw_samples("soft"), "baseline/bce", "-log(abs(p + y - 1))", None),
        # The half of it, for a softmax in the zoo.
        (SIGMOID, draw_samples("labels"), "baseline/bce", "-y * log(p)", "baseline/ce"),
        (ONE_LOGIT, draw_samples("labels", 1), "baseline/bce", "-y * log(p)", "binary cross entropy × 0.5"),
        # The names of its activation go first, as a search starts from these.
        (ONE_LOGIT, draw_samples("labels", 1), None, "-y * log(p)", "binary cross entropy × 0.5"),
        (ONE_LOGIT, draw_samples("labels", 1), "baseline/bce", BALANCED_BCE, "balanced binary cross entropy"),
        (SIGMOID, draw_samples("labels"), "baseline/bce", "3 * (p - y)**2", "binary Brier score × 3"),
        (SOFTMAX, draw_samples("indices"), "baseline/ce", "3 * (p - y)**2", "Brier score × 3"),
        (VALUES, draw_samples("soft"), "baseline/mse", "p * p - (p + p) * y", "squared error"),
        (VALUES, draw_samples("soft"), "baseline/mse", "exp(p - y)", None),
        (BOXES, draw_boxes(), "baseline/l1", "log(u / i)", "IoU loss"),
        (BOXES, draw_boxes(), "baseline/l1", "-i / u - u / e", "GIoU loss"),
        (BOXES, draw_boxes(), None, "e / (i + u) + e / (i + u)", "det/rpn_reg × 2"),
        (BOXES, draw_boxes(), None, "e / i", None),
    ],
)
def test_a_loss_is_recognised_by_its_gradient_on_the_branch(branch, samples, standard, formula, expected):
    found = Identifier(branch, samples, standard).identify(parse(formula, branch.leaves_and_roles))
    assert (None if found is None else str(found)) == expected


@pytest.mark.parametrize(
    ("branch", "samples", "expected"),
    [
        (SOFTMAX, draw_samples("indices"), "one_hot"),
        (SIGMOID, draw_samples("labels"), "binary"),
        (SIGMOID, draw_samples("soft"), "values"),
        (ONE_LOGIT, draw_samples("labels", 1), "one_hot"),
        # Few events count 0 or 1 by chance, and an index is one-hot by construction.
        (VALUES, draw_samples("counts"), "values"),
        (VALUES, draw_samples("indices"), "one_hot"),
        (BOXES, draw_boxes(), None),
    ],
)
def test_the_kind_of_target_is_read_from_the_samples(branch, samples, expected):
    assert branch.find_target_kind(samples) == expected


def test_ignored_positions_do_not_count():
    branch = ActivatedBranch(channels=CHANNELS, ignore_index=255)
    (sample,) = draw_samples("indices", count=1)
    sample.context["target"][:3] = 255
    assert branch.find_target_kind([sample]) == "one_hot"
    assert str(Identifier(branch, [sample]).identify(parse(DOUBLED))) == "cross entropy × 2"


def write_run(directory, branch: Branch, samples, *losses: str):
    """Write a run with its samples, as a search leaves it."""
    form = branch.form()
    begin(directory, branches={"main": form})
    sample_files.save(directory, {"main": samples})
    with Store(directory, write=True) as store:
        store.change_setting("samples_digest", sample_files.file_digest(directory / sample_files.FILE))
        store.change_setting("standard_loss", {"main": "baseline/ce"})
        store.change_setting("branches", {"main": branch.form(samples)})
    add(directory, *((candidate(at, loss), scored(0.9 - 0.1 * at)) for at, loss in enumerate(losses)))
    return directory


def test_every_table_says_what_a_loss_is(tmp_path, capsys):
    directory = write_run(tmp_path / "run", SOFTMAX, draw_samples("indices"), "sqrt(sqrt(neg(mul(p, y))))", DOUBLED)
    rows = list_top(open_run(directory), 2)
    assert [row.formula.identity for row in rows] == ["", "cross entropy × 2"]
    run("top", directory)
    assert "= cross entropy × 2" in capsys.readouterr().out
    run("show", directory, "1")
    assert "cross entropy × 2" in capsys.readouterr().out
    run("export", directory, "1")
    assert "cross entropy × 2" in capsys.readouterr().out
    assert "cross entropy × 2</span>" in page(gather_contents(read_once(directory)))


def test_the_verdict_says_what_the_best_loss_is(tmp_path):
    directory = write_run(tmp_path / "run", SOFTMAX, draw_samples("indices"), DOUBLED, CE)
    text = " ".join(summarize(open_run(directory)).verdict.text)
    assert "#0 has the gradient of cross entropy × 2" in text
    other = write_run(tmp_path / "other", SOFTMAX, draw_samples("indices"), "sqrt(sqrt(neg(mul(p, y))))")
    assert "gradient" not in " ".join(summarize(open_run(other)).verdict.text)


def test_reading_the_names_again_imports_no_torch(tmp_path):
    directory = write_run(tmp_path / "run", SOFTMAX, draw_samples("indices"), DOUBLED)
    first = [row.to_dict() for row in list_top(open_run(directory), 1)]
    script = (
        "import sys; from autoloss.cli import main\ntry: main(sys.argv[1:])\nfinally: assert 'torch' not in sys.modules"
    )
    again = subprocess.run(
        [sys.executable, "-c", script, "top", str(directory), "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(again.stdout) == first


def test_binary_targets_make_formulas_shorter(tmp_path):
    loss = "neg(mul(square(y), log(p)))"
    binary = write_run(tmp_path / "binary", SOFTMAX, draw_samples("indices"), loss)
    soft = write_run(tmp_path / "soft", SOFTMAX, draw_samples("soft"), loss)
    assert simplify_formulas(open_run(binary), [loss])[loss].line == "−y·log(p)"
    assert simplify_formulas(open_run(soft), [loss])[loss].line == "−y²·log(p)"


def test_who_drove_a_run_names_losses_on_branches_that_its_settings_do_not_describe(tmp_path):
    generator = torch.Generator().manual_seed(0)
    context = {"target": torch.rand(6, 1, 4, 4, generator=generator), "visible": torch.ones(6, dtype=torch.bool)}
    samples = (Sample(torch.randn(6, 1, 4, 4, generator=generator), context),)
    loss = "square(add(y, neg(p)))"
    directory = write_run(tmp_path / "run", SOFTMAX, samples, loss)
    with Store(directory, write=True) as store:
        store.change_setting("branches", {"main": HeatmapBranch().form()})
    found = open_run(directory)
    assert simplify_formulas(found, [loss])[loss].identities is None
    driver = type(found)(found.reader, branches={"main": HeatmapBranch()})
    assert simplify_formulas(driver, [loss])[loss].identity == "squared error"
    assert simplify_formulas(open_run(directory), [loss])[loss].identities == {
        "main": Identity("baseline/mse", "squared error", 1.0)
    }


def test_a_search_stores_what_its_branches_are(tmp_path):
    inputs = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    data = inputs, (inputs[:, :3] > 0).float()
    task = autoloss.SupervisedTask(
        lambda: nn.Linear(4, 3),
        data,
        data,
        "sigmoid",
        lambda prediction, target: ((prediction > 0.5) == (target > 0.5)).float().mean().item(),
    )
    quick = {"rejection.engine": "reference", "rejection.steps": 30, "rejection.threshold": 0.01}
    found = autoloss.search(
        task,
        evaluations=1,
        workers=0,
        final=False,
        directory=tmp_path / "run",
        recipe="paper",
        settings=quick,
        start="-log(abs(p + y - 1)) - log(abs(p + y - 1))",
    )
    assert found.settings.standard_loss == {"main": "baseline/bce"}
    assert found.settings.branches["main"].target_kind == "binary"
    assert list_top(open_run(tmp_path / "run"), 1)[0].formula.identity == "binary cross entropy × 2"


@pytest.mark.parametrize("unit", ["pixels", "target"])
def test_boxes_of_a_run_are_recognised_without_their_task(unit, tmp_path):
    branch, loss = BoxRegression(unit=unit), "neg(log(mul(i, inv(u))))"
    directory = write_run(tmp_path / "run", branch, draw_boxes(), loss)
    assert simplify_formulas(open_run(directory), [loss])[loss].identity == "IoU loss"
    form = open_run(directory).settings.branches["main"]
    assert form.unit == unit
    assert form == branch.form()
