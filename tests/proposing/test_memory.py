"""The memory of a search: it knows a good loss from a bad one, trusts what agrees with the run, and refuses a damaged prior."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from random import Random

import numpy as np
import pytest

from autoloss.errors import RequestError
from autoloss.proposing import memory
from autoloss.proposing.initialization import valid_expression
from autoloss.proposing.memory import Forest, Memory, grow_forest, read_prior, recall, write_prior
from autoloss.proposing.portrait import describe_tree, find_kind
from autoloss.settings import SearchSettings
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet
from autoloss.space.form import BranchForm, PairForm
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import parse

ENTROPY, REVERSED = "neg(mul(y, log(p)))", "mul(y, log(p))"
FORM = BranchForm()
ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
TREES = [valid_expression(ALPHABET, 3, Random(seed)) for seed in range(60)]
PORTRAITS = [describe_tree(tree, "classes") for tree in TREES]
LIKE_ENTROPY = [float(portrait[1]) for portrait in PORTRAITS]
"""The cosine to the gradient of cross entropy where the network is untrained."""


def forest(source: str = "one", sign: float = 1.0) -> Forest:
    return grow_forest(source, "classes", PORTRAITS, [sign * value for value in LIKE_ENTROPY])


@pytest.fixture
def prior(tmp_path) -> Path:
    write_prior([forest(), forest("other", -1.0)], tmp_path / "prior.npz")
    return tmp_path / "prior.npz"


def rewrite(path: Path, **changes: object) -> Path:
    """Change the header of a prior, or an array."""
    with np.load(path) as data:
        arrays = dict(data)
    header = json.loads(arrays["header"].tobytes())
    for name, value in changes.items():
        if name in header:
            header[name] = value
        else:
            arrays[name.replace("__", ".")] = np.asarray(value)
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)
    data = BytesIO()
    np.savez_compressed(data, **arrays)
    path.write_bytes(data.getvalue())
    return path


class TestPortraits:
    @pytest.mark.parametrize("kind", ["classes", "labels", "values"])
    def test_a_multiple_has_the_same_gradients(self, kind):
        one = describe_tree(parse("square(add(p, neg(y)))"), kind)
        twice = describe_tree(parse("add(square(add(p, neg(y))), square(add(p, neg(y))))"), kind)
        gradients = len(one) - len(OPERATORS) - 1
        assert np.allclose(one[:gradients], twice[:gradients], atol=2e-4)

    def test_the_standard_loss_points_its_own_way_and_its_opposite_the_other(self):
        assert describe_tree(parse(ENTROPY), "classes")[1] == pytest.approx(1)
        assert describe_tree(parse(REVERSED), "classes")[1] == pytest.approx(-1)

    @pytest.mark.parametrize("text", ["add(y, 1)", "inv(add(p, neg(p)))", "exp(exp(exp(exp(inv(p)))))"])
    def test_a_loss_without_a_finite_gradient_has_one_all_the_same(self, text):
        assert np.isfinite(describe_tree(parse(text), "classes")).all()

    def test_boxes_heatmaps_and_pairs_have_none(self):
        heatmap, rows = (BranchForm(activation="none", from_prediction=plain) for plain in (False, True))
        boxes = BranchForm(leaves=("i", "u", "e"), from_prediction=False, activation="none")
        pairs = BranchForm(activation="sigmoid", pairs=PairForm())
        assert [find_kind(form) for form in (heatmap, boxes, pairs)] == [None] * 3
        assert (find_kind(rows), find_kind(FORM)) == ("values", "classes")


class TestForests:
    def test_a_forest_is_read_as_it_was_written(self, prior):
        forests, digest = read_prior(str(prior))
        assert [one.source for one in forests] == ["one", "other"]
        rows = np.array(PORTRAITS)
        assert np.array_equal(forests[0].predict(rows), forest().predict(rows))
        assert digest == write_prior([forest(), forest("other", -1.0)], prior)

    def test_it_orders_losses_that_it_has_not_seen(self):
        entropy, reversed_ = forest().predict(
            np.array([describe_tree(parse(text), "classes") for text in (ENTROPY, REVERSED)])
        )
        assert entropy > reversed_

    def test_the_prior_of_the_package_prefers_cross_entropy_to_its_opposite(self):
        known = Memory(read_prior("default")[0], {"main": FORM}, OPERATORS)
        weights = known.weigh("main", [], [])
        good, bad = (known.predict("main", [ENTROPY, REVERSED]) * weights).sum(axis=1)
        assert good > bad


class TestWeights:
    texts = [str(tree) for tree in TREES]

    def weigh(self, count: int, sign: float) -> list[float]:
        known = Memory([forest(), forest("other", -1.0)], {"main": FORM}, OPERATORS)
        return known.weigh("main", self.texts[:count], [sign * value for value in LIKE_ENTROPY[:count]]).tolist()

    def test_all_count_alike_before_there_are_outcomes(self):
        first, second = self.weigh(0, 1.0)
        assert first == second > 0

    def test_what_orders_the_outcomes_of_the_run_counts_more_and_its_opposite_nothing(self):
        first, second = self.weigh(60, 1.0)
        assert first > 2 * self.weigh(0, 1.0)[0] * 0.7
        assert second == 0
        assert self.weigh(60, -1.0)[0] == 0

    def test_a_prior_that_disagrees_fades_with_the_outcomes(self):
        falling = [self.weigh(count, -1.0)[0] for count in (0, 5, 10, 20, 40)]
        assert falling == sorted(falling, reverse=True)
        assert falling[-1] == 0

    def test_outcomes_that_are_all_equal_say_nothing(self):
        known = Memory([forest()], {"main": FORM}, OPERATORS)
        assert known.weigh("main", self.texts[:30], [0.5] * 30)[0] > 0


class TestBadPriors:
    def refused(self, path: Path) -> str:
        with pytest.raises(RequestError) as caught:
            read_prior(str(path))
        return str(caught.value)

    def test_one_that_is_not_there(self, tmp_path):
        assert "There is no prior" in self.refused(tmp_path / "none.npz")

    def test_a_file_of_another_kind(self, prior):
        prior.write_text("import torch")
        assert "cannot serve as a prior: it holds no arrays. Give a file" in self.refused(prior)

    def test_one_of_another_version(self, prior):
        assert "prior: its version is '99', not " in self.refused(rewrite(prior, version=99)).replace('"', "'")

    def test_one_of_other_operators(self, prior):
        assert "prior: it was learned without the operators " in self.refused(rewrite(prior, operators=["add", "sin"]))

    @pytest.mark.parametrize("length", [0, 10, 500, -1])
    def test_one_that_is_cut_short(self, length, prior):
        prior.write_bytes(prior.read_bytes()[:length])
        assert "cannot serve as a prior: " in self.refused(prior)

    def test_one_that_was_edited(self, prior):
        changed = np.zeros_like(forest().arrays["values"])
        assert "its digest does not match its content" in self.refused(rewrite(prior, **{"0__values": changed}))

    def test_one_with_a_pickle(self, prior):
        assert "cannot serve" in self.refused(rewrite(prior, **{"0__values": np.array([{}], dtype=object)}))

    def test_one_with_strange_contents(self, prior):
        assert "cannot serve" in self.refused(rewrite(prior, forests=[{"source": 1}]))

    def test_one_that_is_too_large(self, prior):
        prior.write_bytes(b"x" * (memory.MOST_BYTES + 1))
        assert "larger" in self.refused(prior)

    def test_a_run_with_another_prior_is_named(self, prior):
        settings = SearchSettings(prior=str(prior), prior_digest="0123456789abcdef")
        with pytest.raises(RequestError, match="0123456789abcdef"):
            recall(settings, {"main": FORM}, OPERATORS)


def test_a_branch_of_an_unknown_kind_is_said():
    boxes = BranchForm(leaves=("i", "u", "e"), from_prediction=False, activation="none")
    known = Memory([forest()], {"cls": FORM, "box": boxes}, OPERATORS)
    assert [known.knows("cls"), known.knows("box")] == [True, False]
    [text] = known.describe_unknown()
    assert "branch box" in text
    assert Memory([forest()], {"cls": FORM}, OPERATORS).describe_unknown() == []
