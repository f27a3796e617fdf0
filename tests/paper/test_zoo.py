"""Appendix B: the 16 published losses and the baselines, at points computed by hand, and by name."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.rejection.engine import compute_gradient, draw_directions
from autoloss.rejection.protocol import measure_reference
from autoloss.rejection.reasons import Reason
from autoloss.rejection.reference import simulate
from autoloss.settings import ProtocolSettings
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.branch import Role
from autoloss.space.expression import Expression, build
from autoloss.space.loss import Loss, bind
from autoloss.space.pairs import PairBranch
from autoloss.space.parsing import FormulaError, parse
from autoloss.tasks.segmentation.metrics import SegmentationMetric
from tests.paper.test_search_space import AreaBranch
from tests.rejection.scenes import BRANCH, CLASSES, samples

LN4 = math.log(4)
ONE, ZERO = {"y": 1.0, "p": 0.25}, {"y": 0.0, "p": 0.25}
BOXES = {"i": 20.0, "u": 60.0, "e": 80.0}

# Name, leaves of one position, the value by hand.
BY_HAND = [
    ("seg/miou", ONE, -0.5 * math.log(math.tanh(1 / 2 * 0.5) * (0.0625 + 1))),
    ("seg/miou", ZERO, 0.0),
    ("seg/fwiou", ONE, math.log(math.log(1 + 1.25 / 0.25))),
    ("seg/fwiou", ZERO, 0.0),
    ("seg/gacc", ONE, math.exp(0.5**2)),
    ("seg/gacc", ZERO, math.exp(0.5**2)),
    ("seg/macc", ONE, math.tanh(math.sqrt(LN4 * math.sqrt(math.sqrt(2))))),
    ("seg/macc", ZERO, 0.0),
    # p³·1·√p·exp((p·eᵖ)²) is 4^-3.5 times that exponential.
    ("seg/biou", ONE, 3.5 * LN4 - (0.25 * math.exp(0.25)) ** 2),
    ("seg/biou", ZERO, 0.0),
    ("seg/bf1", ONE, math.exp(LN4 + math.tanh(1.5))),
    ("seg/bf1", ZERO, math.exp(math.tanh(1.5))),
    ("pose/oks", {"y": 0.5, "p": 0.5}, 0.25 + 0.0625),
    ("pose/oks", {"y": 0.0, "p": 0.5}, 0.25 + 0.0625),
    ("pose/oks", {"y": 1.0, "p": 2.0}, 14.0**2 + 16),
    ("det/rpn_cls", ONE, 4 * math.exp(math.tanh(1))),
    ("det/rpn_cls", ZERO, 4.0),
    ("det/rpn_reg", BOXES, 1.0),
    ("det/rcnn_cls", ONE, LN4),
    ("det/rcnn_cls", ZERO, 0.0),
    ("det/rcnn_reg", BOXES, LN4),
    ("ins/rpn_cls", ONE, -0.25 / math.tanh(0.25)),
    ("ins/rpn_cls", ZERO, 0.0),
    ("ins/rpn_reg", BOXES, 1.0),
    ("ins/rcnn_cls", ONE, LN4),
    ("ins/rcnn_reg", BOXES, -0.5),
    ("ins/mask", ONE, LN4),
    ("ins/mask", ZERO, 0.0),
    ("baseline/ce", ONE, LN4),
    ("baseline/ce", ZERO, 0.0),
    ("baseline/bce", ONE, LN4),
    ("baseline/bce", ZERO, -math.log(0.75)),
    ("baseline/mse", ONE, 0.75**2),
    ("baseline/mse", ZERO, 0.25**2),
    ("baseline/huber", {"y": 1.0, "p": 0.25}, 0.75**2 / 2),
    ("baseline/huber", {"y": 1.0, "p": 4.0}, 2.5),
    ("baseline/quantile_10", {"y": 1.0, "p": 4.0}, 0.9 * 3),
    ("baseline/quantile_90", {"y": 1.0, "p": 4.0}, 0.1 * 3),
    ("baseline/quantile_5", {"y": 1.0, "p": 4.0}, 0.95 * 3),
    ("baseline/quantile_95", {"y": 4.0, "p": 1.0}, 0.95 * 3),
    ("baseline/focal", ONE, 0.75**2 * LN4),
    ("baseline/focal", ZERO, 0.0),
    ("baseline/iou", BOXES, math.log(3)),
    ("baseline/giou", BOXES, 1 - 1 / 3 + 1 / 4),
    ("baseline/cse_auto_a_reg", BOXES, 2 - 1 / 3 - 22 / 80),
    ("baseline/ranknet", ONE, LN4),
    ("baseline/lambdarank", {"w": 0.5, "p": 0.25}, 0.5 * LN4),
    ("baseline/auc_hinge", {"p": 0.25}, 0.75),
    ("baseline/auc_hinge", {"p": 1.25}, 0.0),
    ("baseline/auc_square", {"p": 1.25}, 0.25**2),
    ("baseline/auc_exponential", {"p": 1.25}, math.exp(-1.25)),
]
SINGLE = [name for name in zoo.names() if zoo.get_entry(name).formula]


@pytest.mark.parametrize(("name", "leaves", "expected"), BY_HAND, ids=[f"{case[0]}-{case[2]:.3f}" for case in BY_HAND])
def test_values_computed_by_hand(name, leaves, expected):
    loss = zoo.get(name)
    assert isinstance(loss, Loss)
    tensors = {leaf: torch.full((1, 1, 1, 1), value, dtype=torch.float64) for leaf, value in leaves.items()}
    assert loss["main"].evaluate(tensors).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_every_formula_has_a_value_computed_by_hand():
    # Those of the shelf have closed forms in tests/zoo/test_shelf.py; those found are compared with their runs in test_cards.py.
    assert {case[0] for case in BY_HAND} == {name for name in SINGLE if not name.startswith(("shelf/", "found/"))}


def test_all_16_published_losses_are_there_six_four_five_and_one():
    published = [name for name in SINGLE if not name.startswith(("baseline/", "shelf/", "found/"))]
    assert [sum(name.startswith(task) for name in published) for task in ("seg/", "det/", "ins/", "pose/")] == [
        6,
        4,
        5,
        1,
    ]
    assert len(published) == 16
    assert all("Appendix B" in zoo.get_entry(name).source for name in published)


def test_every_entry_says_what_it_is_where_it_is_from_and_what_it_needs():
    for name in zoo.names():
        row = zoo.get_entry(name)
        assert row.name == name
        assert all((row.description, row.source, row.metric, row.target, row.activation))
        assert len(row.formulas) == (1 if row.formula else len(row.members))
        assert (row.factory is None) is bool(row.formulas)


@pytest.mark.parametrize(("task", "branches"), [("det", 4), ("ins", 5)])
def test_a_detector_is_all_its_branches_as_one_loss(task, branches):
    loss = zoo.get(task)
    assert isinstance(loss, Loss)
    assert len(loss) == branches
    assert all(zoo.get(f"{task}/{branch}") == Loss(tree) for branch, tree in loss.items())
    assert Loss.parse(str(loss)) == loss


@pytest.mark.parametrize("name", ["seg/miou", "seg/macc", "seg/bf1", "baseline/ce", "baseline/focal"])
@pytest.mark.parametrize("factor", [2, -2])
def test_a_scaled_loss_has_a_gradient_scaled_with_its_sign(name, factor):
    drawn = samples()
    directions = draw_directions(drawn, 0)
    tree = parse(zoo.get_entry(name).formula)
    scaled = build("mul", parse(str(factor)), tree)
    one, other = (compute_gradient(each, BRANCH, drawn, directions) for each in (tree, scaled))
    assert other.norms == pytest.approx([abs(factor) * norm for norm in one.norms], rel=1e-6)
    assert other.products == pytest.approx([factor * product for product in one.products], rel=1e-6)


class TestDice:
    """A baseline that is no tree."""

    @staticmethod
    def independent(p, y):
        """Per class over the whole batch, in NumPy; classes that y lacks count as 0."""
        scores = [
            1 - 2 * (p[:, k] * y[:, k]).sum() / (p[:, k] + y[:, k]).sum() if y[:, k].any() else 0.0
            for k in range(p.shape[1])
        ]
        return sum(scores) / len(scores)

    @staticmethod
    def drawn(*shape):
        generator = torch.Generator().manual_seed(0)
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(True)

    def test_by_hand(self):
        # One position of each of two classes, all probabilities one half: 1 − 2·½ / (1 + 1) for both.
        loss = zoo.get("baseline/dice").criterion()(torch.zeros(2, 2), torch.tensor([0, 1]))
        assert loss.item() == pytest.approx(0.5)

    @pytest.mark.parametrize("classes", [4, 3])
    def test_agrees_with_numpy_and_a_class_that_is_not_there_is_silent(self, classes):
        logits = self.drawn(2, 4, 3, 5)
        target = torch.randint(classes, (2, 3, 5), generator=torch.Generator().manual_seed(1))
        found = zoo.get("baseline/dice").criterion()(logits, target)
        p = logits.softmax(dim=1).detach().numpy()
        y = np.eye(4)[target.numpy()].transpose(0, 3, 1, 2)
        assert found.item() == pytest.approx(self.independent(p, y), rel=1e-9)
        found.backward()
        assert logits.grad is not None
        assert logits.grad.any()

    def test_ignored_positions_count_nowhere(self):
        logits = self.drawn(1, 3, 2, 4)
        target = torch.randint(3, (1, 2, 4), generator=torch.Generator().manual_seed(1))
        target[..., 2:] = 255
        criterion = zoo.get("baseline/dice").criterion(ignore_index=255)
        found = criterion(logits, target)
        assert found.item() == pytest.approx(criterion(logits[..., :2], target[..., :2]).item())
        (slope,) = torch.autograd.grad(found, logits)
        assert not slope[..., 2:].any()

    def test_one_logit_is_two_classes(self):
        logits = self.drawn(3, 1, 2, 2)
        target = torch.randint(2, (3, 2, 2), generator=torch.Generator().manual_seed(1))
        criterion = zoo.get("baseline/dice").criterion()
        both = torch.cat([torch.zeros_like(logits), logits], dim=1)
        assert criterion(logits, target).item() == pytest.approx(criterion(both, target).item())

    def test_falls_to_zero_as_the_prediction_becomes_the_target(self):
        target = torch.tensor([0, 1, 2])
        logits = 40 * torch.nn.functional.one_hot(target, 3).float()
        assert zoo.get("baseline/dice").criterion()(logits, target).item() == pytest.approx(0, abs=1e-6)

    def test_never_runs_in_sixteen_bits(self):
        logits = self.drawn(2, 3).detach().bfloat16()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert zoo.get("baseline/dice").criterion()(logits, torch.tensor([0, 1])).dtype == torch.float32

    def test_in_a_task_it_brings_its_branchs_weight(self):
        context, prediction = {"target": torch.tensor([0, 1])}, torch.zeros(2, 2)
        branches = {"main": ActivatedBranch(weight=3.0)}
        criterion = bind(zoo.resolve("baseline/dice", branches)[1], branches)
        assert criterion["main"](prediction, context).item() == pytest.approx(1.5)

    def test_needs_a_prediction_and_a_target(self):
        with pytest.raises(RequestError, match=r"branch has (the leaves )?i, u, e"):
            zoo.resolve("baseline/dice", {"reg": AreaBranch()})

    def test_its_text_is_its_name(self):
        assert str(zoo.get("baseline/dice")) == "baseline/dice"
        assert "baseline/dice, activation='softmax'" in repr(zoo.get("baseline/dice").criterion())


class TestBoxes:
    """Baselines of detection that are no trees."""

    CONTEXT = {
        "target": torch.tensor([1, 0]),
        "overlap": torch.tensor([0.5, 1.0]),
        "box": torch.tensor([[0.0, 0, 10, 10], [3, 3, 9, 9]]),
        "reference": torch.tensor([[1.0, 0, 11, 10], [3, 3, 9, 9]]),
        "deviations": torch.ones(1, 4),
    }

    def test_classes_weigh_more_where_the_box_is_right(self):
        loss = zoo.resolve("baseline/cse_auto_a_cls", {"cls": ActivatedBranch()})[1]["cls"]
        logits = torch.tensor([[0.0, math.log(3)], [0.0, math.log(3)]])[:, :, None, None]
        # The first is right with p 3/4 and half an overlap, the second wrong with p 1/4: a negative counts as 1.
        expected = ((1 + math.sin(0.5)) * math.log(4 / 3) + (1 + math.sin(1.0)) * LN4) / 2
        assert loss(logits, self.CONTEXT).item() == pytest.approx(expected, rel=1e-6)

    def test_deltas_count_for_positives_alone_and_with_weight_one(self):
        branch = BoxRegression(weight=10.0)
        loss = zoo.resolve("baseline/l1", {"reg": branch})[1]["reg"]
        # The one positive is a tenth of its width off, within the parabola of 1/9; two boxes were sampled.
        assert loss(torch.zeros(2, 4, 1, 1), self.CONTEXT).item() == pytest.approx(0.1**2 * 9 / 2 / 2, rel=1e-5)
        assert loss(branch.ideal(self.CONTEXT), self.CONTEXT).item() == 0.0

    def test_each_needs_its_own_kind_of_branch(self):
        with pytest.raises(RequestError, match="deltas of boxes"):
            zoo.resolve("baseline/l1", MAIN)
        with pytest.raises(RequestError, match="cse_auto_a_reg"):
            zoo.resolve("baseline/cse_auto_a_cls", {"reg": BoxRegression()})
        with pytest.raises(RequestError, match="use detection"):
            zoo.get("baseline/cse_auto_a_cls").criterion()(torch.zeros(2, 3), torch.tensor([0, 1]))


class Heat(ActivatedBranch):
    """A branch whose leaves have names of its own."""

    __slots__ = ()

    def __init__(self):
        super().__init__(activation="none")
        object.__setattr__(self, "leaves_and_roles", {"depth": Role.PREDICTION, "y": Role.TARGET})


MAIN = {"main": ActivatedBranch()}
TWO = {"cls": ActivatedBranch(), "reg": AreaBranch()}


class TestResolving:
    @pytest.mark.parametrize("name", SINGLE)
    def test_a_name_is_its_tree_under_the_tasks_own_branch(self, name):
        kernel = zoo.get_entry(name).activation
        pairs = PairBranch(columns=("value", "weight"), weigh="item")
        branch = {
            "box": AreaBranch(),
            "pair_probability": pairs,
            "pair_difference": replace(pairs, activation="none"),
        }.get(kernel, ActivatedBranch())
        label, losses = zoo.resolve(f" {name} ", {"heat": branch})
        assert label == name
        assert losses == {"heat": parse(zoo.get_entry(name).formula)}

    @pytest.mark.parametrize("text", ["-y * log(p)", "y/p", "neg(mul(y, log(p)))", " p "])
    def test_a_formula_is_its_tree(self, text):
        assert zoo.resolve(text, MAIN) == (text.strip(), {"main": parse(text)})

    def test_a_formula_for_each_branch(self):
        _, losses = zoo.resolve("reg: i / e; cls: y * p", TWO)
        assert losses == {"cls": parse("y * p"), "reg": parse("i / e")}

    def test_a_name_or_a_formula_for_each_branch_as_a_task_gives_its_standard(self):
        label, losses = zoo.resolve({"cls": "baseline/ce", "reg": "-log(i / e)"}, TWO)
        assert label == "cls: baseline/ce; reg: -log(i / e)"
        assert losses == {"cls": parse("-y * log(p)"), "reg": parse("-log(i / e)")}
        assert zoo.resolve({"main": "baseline/ce"}, MAIN)[0] == "baseline/ce"

    def test_a_name_for_all_branches(self):
        branches = {
            "rpn_cls": MAIN["main"],
            "rcnn_reg": AreaBranch(),
            "rpn_reg": AreaBranch(),
            "rcnn_cls": MAIN["main"],
        }
        label, losses = zoo.resolve("det", branches)
        assert label == "det"
        assert list(losses) == list(branches)
        assert all(losses[name] == parse(zoo.get_entry(f"det/{name}").formula) for name in branches)
        assert set(bind(losses, branches)) == set(branches)

    @pytest.mark.parametrize("text", ["-y * log(p)\n", "\n  -y\n  * log(p)", "main: -y * log(p);\n"])
    def test_a_file_with_a_formula(self, tmp_path, text):
        path = tmp_path / "found.txt"
        path.write_text(text)
        assert zoo.resolve(str(path), MAIN) == ("found.txt", {"main": parse("-y * log(p)")})

    def test_leaves_are_the_branchs_own(self):
        assert zoo.resolve("depth - y", {"main": Heat()})[1] == {"main": parse("depth - y", ["depth", "y"])}
        both = {"a": Heat(), "b": ActivatedBranch()}
        assert zoo.resolve("a: depth - y; b: p", both)[1]["a"] == parse("depth - y", ["depth", "y"])
        with pytest.raises(FormulaError, match=r"no leaf named 'p'.*Known: depth, y, 1"):
            zoo.resolve("p - y", {"main": Heat()})

    @pytest.mark.parametrize(
        ("text", "branches", "problem"),
        [
            ("seg/miuo", MAIN, r"no loss named 'seg/miuo'\. Did you mean 'seg/miou'\? `autoloss zoo` lists all"),
            ("ce", MAIN, r"no loss named 'ce'\. Did you mean 'baseline/ce'"),
            ("CrossEntropyLoss", MAIN, r"Did you mean 'baseline/ce'"),
            ("BCEWithLogitsLoss", MAIN, r"Did you mean 'baseline/bce'"),
            ("focal_loss", MAIN, r"Did you mean 'baseline/focal'"),
            ("dice", MAIN, r"Did you mean 'baseline/dice'"),
            (
                "nowhere/found.txt",
                MAIN,
                r"no loss named 'nowhere/found.txt'.*Nor is it a file or formula",
            ),
            ("seg/miou", TWO, r"'seg/miou' is a loss for one branch; this task has 2: cls, reg.*'cls: …; reg: …'"),
            ("-y * log(p)", TWO, r"is a loss for one branch; this task has 2: cls, reg"),
            ("baseline/dice", TWO, r"'baseline/dice' is a loss for one branch"),
            ("det", MAIN, r"'det' has the branches rpn_cls, .*; this task has main"),
            ("cls: y * p", TWO, r"has the branches cls; this task has cls, reg"),
            ("main: y * p", {"heat": MAIN["main"]}, r"has the branches main; this task has heat"),
            ({"cls": "baseline/ce"}, TWO, r"has the branches cls; this task has cls, reg"),
            ({"main": "det"}, MAIN, r"'det' has the branches rpn_cls.*; this task has main"),
            ("det/rpn_reg", MAIN, r"needs e, i, u; the branch 'main' has y, p"),
            ("baseline/ce", {"reg": AreaBranch()}, r"needs p, y; the branch 'reg' has i, u, e"),
            ("y * 2", MAIN, r"does not depend on the prediction"),
            ("1", MAIN, r"does not depend on the prediction"),
            ("i / e", MAIN, r"no leaf named 'i'.*Known: y, p, 1"),
            ("-y * lgo(p)", MAIN, r"Did you mean 'log'"),
            ("", MAIN, r"found nothing"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_what_exists(self, text, branches, problem):
        with pytest.raises(RequestError, match=problem):
            zoo.resolve(text, branches)

    @pytest.mark.parametrize(
        ("content", "problem"),
        [(b"-y * lgo(p)", r"found\.txt: .*Did you mean 'log'"), (b"\xff\xfe\x00", "cannot be read"), (b"", "nothing")],
    )
    def test_a_file_without_a_formula_is_named(self, tmp_path, content, problem):
        path = tmp_path / "found.txt"
        path.write_bytes(content)
        with pytest.raises(RequestError, match=problem):
            zoo.resolve(str(path), MAIN)

    def test_a_huge_file_is_not_read_to_its_end(self, tmp_path):
        path = tmp_path / "found.txt"
        path.write_text("p + " * 100_000)
        with pytest.raises(RequestError, match="at most 10000 characters"):
            zoo.resolve(str(path), MAIN)

    def test_an_unknown_name_is_refused_with_the_nearest(self):
        with pytest.raises(RequestError, match=r"Did you mean 'baseline/dice'\?"):
            zoo.get("baseline/dise")


def test_listing_names_imports_no_torch():
    code = "import sys, autoloss.zoo as z; print(len(z.names()), z.get_entry('det').formulas['rpn_reg'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(zoo.names())), "e", "/", "(i", "+", "u)", "False"]


PUBLISHED = [
    ("miou", "one_hot"),
    ("fwiou", "one_hot"),
    ("gacc", "one_hot"),
    ("macc", "one_hot"),
    ("biou", "band"),
    ("bf1", "edge"),
]


@pytest.mark.parametrize(("metric", "encoding"), PUBLISHED)
def test_the_protocol_accepts_each_published_segmentation_loss_on_its_own_metric(metric, encoding):
    row = zoo.get_entry(f"seg/{metric}")
    assert (row.target, row.metric.lower()) == (encoding, metric)
    branch = ActivatedBranch(
        measure=SegmentationMetric(metric, tolerance=2), encoding=encoding, tolerance=2, channels=CLASSES
    )
    tree = row.make_branch_loss("main", branch)
    assert isinstance(tree, Expression)
    reference = measure_reference(branch, samples())
    settings = ProtocolSettings(samples=2)
    found = simulate(tree, branch, reference, settings)
    assert found.passed, f"g = {found.score}"
    negated = simulate(build("neg", tree), branch, reference, settings)
    assert negated.reason in (Reason.LOW_GAIN, Reason.NOT_FINITE)
