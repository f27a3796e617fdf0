"""A search that starts from what its user knows: losses, frozen branches, a size, operators, a second metric."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import autoloss
from autoloss.cli.arguments import parse_frozen
from autoloss.errors import RequestError, RunError
from autoloss.proposing.chance import derive_seed
from autoloss.proposing.records import Origin
from autoloss.report.leaderboard import columns_of, comparison_table, top_table
from autoloss.report.summary import comparison_rows, list_by_size, list_top
from autoloss.report.take_home import export_loss
from autoloss.run.notes import describe_starts
from autoloss.run.replay import replay
from autoloss.run.request import make_request, prepare
from autoloss.run.resolving import freeze_branches
from autoloss.run.results import open_run, training_command
from autoloss.run.scoring import score
from autoloss.run.starting_losses import FROM_RUN, name_losses, parse_starting_losses
from autoloss.space.form import ACTIVATIONS
from autoloss.space.loss import Loss, bind
from autoloss.space.loss_text import split_branches
from autoloss.space.operators import OPERATORS
from autoloss.store.run_settings import StartVerdict
from autoloss.store.store import Store
from autoloss.training.training import Scored, Training
from autoloss.zoo import ENTRIES, resolve
from histories import as_text

from .quick import SETTINGS, QuickTask

CE, INVERTED = "neg(mul(y, log(p)))", "mul(y, log(p))"
BOTH = QuickTask(("cls", "reg"))


def squash(x: Tensor) -> Tensor:
    return x / (1 + x.abs())


SQUASH = autoloss.Operator("squash", 1, squash)
FEW = ("exp", "abs", "inv", "tanh", "square", "sqrt", "mean_nhw", "mean_c", "max_pool", "min_pool")
"""Off, so that an own operator is met soon."""


def searched(directory, task=None, evaluations=4, **options):
    settings = {**SETTINGS, **options.pop("settings", {})}
    return autoloss.search(
        task or QuickTask(),
        evaluations=evaluations,
        seed=3,
        workers=0,
        directory=directory,
        settings=settings,
        final=False,
        **options,
    )


class TestStart:
    @pytest.fixture(scope="class")
    @staticmethod
    def run(tmp_path_factory):
        """Three to start from: one passes, one descends the metric, one is the first once more in other words."""
        directory = tmp_path_factory.mktemp("start") / "run"
        said: list[str] = []
        found = searched(directory, start=["baseline/ce", INVERTED, "-log(p) * y"], say=said.append)
        return found, said

    def test_the_first_children_are_the_given_losses(self, run):
        found, _ = run
        first = found.history[0].candidate
        assert (first.loss, first.kinds, first.attempts) == (CE, {"main": "given"}, {"main": 0})
        again = found.history[2].candidate
        assert (again.origin, again.source) == (Origin.TWIN, 0)
        assert [found.history[k].candidate.parent for k in range(3)] == [None] * 3

    def test_one_that_does_not_pass_is_named_with_its_g_and_its_place_is_drawn(self, run):
        found, said = run
        passed, rejected = (text for text in said if "tarts from" in text or "replaces" in text)
        assert passed == "Starts from 2 known losses: cross entropy, -log(p) * y."
        assert rejected.startswith(f"A random tree replaces {INVERTED}: too little gain (g -") or "g 0.000" in rejected
        second = found.history[1].candidate
        assert second.kinds == {"main": "fresh"}
        assert second.attempts["main"] > 0
        assert second.loss != INVERTED

    def test_the_run_keeps_what_it_started_from(self, run):
        found, _ = run
        assert found.configuration.evolution.start[:2] == (CE, INVERTED)
        kept = found.settings.start
        assert [verdict.label for verdict in kept] == ["baseline/ce", INVERTED, "-log(p) * y"]
        assert [verdict.reason is None for verdict in kept] == [True, False, True]

    def test_a_resumed_run_has_the_same_history(self, run, tmp_path):
        found, _ = run
        searched(tmp_path / "run", evaluations=1, start=["baseline/ce", INVERTED, "-log(p) * y"])
        longer = autoloss.resume(tmp_path / "run", QuickTask(), evaluations=4, workers=0, final=False)
        assert list(as_text(longer.history)) == list(as_text(found.history))


def test_a_file_holds_a_loss_on_each_line(tmp_path):
    file = tmp_path / "formulas.txt"
    file.write_text("# what we use\n\nbaseline/ce   # the usual one\n(p - y)**2\n", encoding="utf-8")
    found = searched(tmp_path / "run", evaluations=1, start=str(file))
    assert found.configuration.evolution.start == (CE, "square(add(p, neg(y)))")


def test_names_and_formulas_stand_with_commas_between(tmp_path):
    found = searched(tmp_path / "run", evaluations=1, start="baseline/ce, mul(neg(y), p), (p - y)**2")
    assert found.configuration.evolution.start == (CE, "mul(neg(y), p)", "square(add(p, neg(y)))")


def test_none_leaves_the_losses_of_the_settings_out(tmp_path):
    settings = {"evolution.start": "baseline/ce"}
    for start, expected in ((["(p - y)**2"], 2), (["none", "(p - y)**2"], 1), ("none", 0)):
        found = searched(tmp_path / str(expected), evaluations=1, start=start, settings=settings)
        assert len(found.configuration.evolution.start) == expected


def test_losses_that_are_given_come_before_those_of_the_settings():
    settings = {"evolution.start": "baseline/ce"}
    start = make_request(QuickTask(), settings, start=["(p - y)**2", "mul(neg(y), p)"]).start
    assert [*map(str, start)] == ["square(add(p, neg(y)))", "mul(neg(y), p)", CE]


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("baseline/ce,-y * lgo(p)", "lgo"),
        ("baseline/ce,-y * log(p)", "-y \\* log\\(p\\) is the same loss as baseline/ce"),
        (["baseline/ce", "-y * log(p)"], "-y \\* log\\(p\\) is the same loss as baseline/ce"),
        ("baseline/dice", "baseline/dice is written by hand; a search can start from formulas only"),
        ("baseline/cee", "no loss named 'baseline/cee'"),
        (
            ["p - y", "y - p", "p * y", "p / y", "y / p", "p + y"],
            "6 losses to start from are more than evolution.initial = 5",
        ),
    ],
)
def test_what_no_search_can_start_from_is_refused(start, message, tmp_path):
    with pytest.raises(RequestError, match=message):
        searched(tmp_path / "run", start=start)
    assert not (tmp_path / "run").exists()


def test_a_fault_in_a_file_is_named_by_its_line(tmp_path):
    file = tmp_path / "formulas.txt"
    file.write_text("-y * log(p)\ny * lgo(p)\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"formulas.txt, line 2: there is no operator named 'lgo'"):
        searched(tmp_path / "run", start=str(file))
    file.write_text("# nothing\n", encoding="utf-8")
    with pytest.raises(RequestError, match="holds no formula"):
        searched(tmp_path / "run", start=str(file))


class TestWarmStart:
    """`zoo` and the folder of a run stand for many losses; as many are taken as there is room for."""

    @pytest.fixture(scope="class")
    @staticmethod
    def earlier(tmp_path_factory):
        return searched(tmp_path_factory.mktemp("earlier") / "run", evaluations=8)

    def test_the_zoo_gives_all_its_formulas_that_fit_each_once(self, tmp_path):
        said: list[str] = []
        settings = {"evolution.initial": 60}
        found = searched(tmp_path / "run", evaluations=1, start="zoo", settings=settings, say=said.append)
        formulas = found.configuration.evolution.start
        fit = [entry.formula for entry in ENTRIES.values() if entry.formula and entry.activation in ACTIVATIONS]
        assert set(formulas) == {str(autoloss.parse(formula)) for formula in fit}
        assert formulas[0] == CE
        passed = next(text for text in said if text.startswith("Starts from "))
        rejected = sum(text.startswith("A random tree replaces ") for text in said)
        assert passed.count(", ") + 1 + rejected == len(formulas)
        assert not any("left out" in text for text in said)

    def test_a_run_gives_the_best_of_each_size_and_the_highest_scores(self, earlier, tmp_path):
        found = searched(
            tmp_path / "run", evaluations=1, start=str(earlier.directory), settings={"evolution.initial": 20}
        )
        chosen = found.configuration.evolution.start
        assert len(chosen) == min(FROM_RUN, len(earlier.top(100)))
        assert {loss.formula.found for loss in list_by_size(earlier)} <= set(chosen)
        assert chosen[0] == earlier.best.formula
        assert found.settings.start[0].label == f"run #{earlier.best.id}"
        assert found.settings.start[0].reason is None

    def test_they_are_mixed_with_formulas_and_what_finds_no_room_is_left_out_and_counted(self, earlier, tmp_path):
        said: list[str] = []
        found = searched(
            tmp_path / "run",
            evaluations=1,
            start=[f"{INVERTED}, zoo", str(earlier.directory), "p - y"],
            say=said.append,
        )
        start = found.configuration.evolution.start
        assert (len(start), start[0], start[1], start[-1]) == (5, INVERTED, CE, "add(p, neg(y))")
        of_zoo, of_run = (text for text in said if "left out" in text)
        assert "losses of the zoo are left out: the search starts from evolution.initial = 5 losses at most." in of_zoo
        assert f"losses of {earlier.directory} are left out" in of_run

    def test_a_loss_that_was_given_is_not_taken_from_the_zoo_once_more(self, tmp_path):
        found = searched(tmp_path / "run", evaluations=1, start="baseline/focal, zoo, baseline/ce")
        start = found.configuration.evolution.start
        assert len(set(start)) == len(start) == 5
        assert start[-1] == CE

    def test_the_history_goes_on_and_is_derived_again(self, earlier, tmp_path):
        start = ["zoo", str(earlier.directory)]
        searched(tmp_path / "run", evaluations=2, start=start)
        longer = autoloss.resume(tmp_path / "run", QuickTask(), evaluations=6, workers=0, final=False)
        whole = searched(tmp_path / "whole", evaluations=6, start=start)
        assert list(as_text(longer.history)) == list(as_text(whole.history))
        assert replay(tmp_path / "whole", task=QuickTask(), full=True).difference is None

    def test_a_network_of_several_branches_takes_what_the_zoo_has_for_all_of_them(self, tmp_path):
        found = searched(tmp_path / "run", TwoStandards(("cls", "reg")), evaluations=1, start="zoo")
        assert found.configuration.evolution.start == ("cls: neg(mul(y, log(p))); reg: square(add(p, neg(y)))",)

    def test_the_shelfs_losses_for_several_branches_take_turns(self):
        task = TwoStandards(("cls", "reg"))
        losses, _ = parse_starting_losses(name_losses(["shelf"]), task, OPERATORS, most=20)
        # The first is the standard loss on both; a label names the losses of both.
        labels = [split_branches(label) for label in list(losses.values())[1:7]]
        changed = [name for label in labels for name, loss in label.items() if loss != task.standard[name]]
        assert changed == ["cls", "reg"] * 3

    def test_a_run_with_other_branches_is_refused_in_a_sentence(self, earlier, tmp_path):
        with pytest.raises(RequestError, match=r"its branches are main \(.*those of this task are cls \(.*reg \("):
            searched(tmp_path / "run", BOTH, start=str(earlier.directory))
        (tmp_path / "empty").mkdir()
        with pytest.raises(RequestError, match="no run"):
            searched(tmp_path / "run", start=str(tmp_path / "empty"))

    def test_formulas_that_were_given_and_find_no_room_remain_a_mistake(self, tmp_path):
        start = ["zoo", "p - y", "y - p", "p * y", "p / y", "y / p", "p + y"]
        with pytest.raises(RequestError, match=r"6 losses to start from are more than evolution\.initial = 5"):
            searched(tmp_path / "run", start=start)


class TwoStandards(QuickTask):
    standard = {"cls": "baseline/ce", "reg": "baseline/mse"}


class TestSpace:
    @pytest.fixture(scope="class")
    @staticmethod
    def run(tmp_path_factory):
        directory = tmp_path_factory.mktemp("space") / "run"
        settings = {"evolution.maximum_operators": 5, "space.without": FEW}
        return searched(directory, evaluations=6, operators=[SQUASH], settings=settings)

    def test_no_tree_holds_what_is_switched_off_or_is_too_large(self, run):
        for individual in run.history:
            tree = Loss.parse(individual.formula, operators={**autoloss.space.operators.OPERATORS, "squash": SQUASH})
            assert not {operator.name for operator in tree["main"].operators} & set(FEW)
            assert tree.operators <= 5
        assert sum(individual.candidate.counts.get("SIZE", 0) for individual in run.history) > 0

    def test_own_operators_are_drawn_tested_and_trained(self, run):
        with_own = [found for found in run.history if "squash(" in found.formula and found.outcome.score is not None]
        assert with_own
        assert with_own[0].candidate.origin in (Origin.TRAINED, Origin.TWIN)
        assert Loss(run.top(1)[0].loss) == run.top(1)[0].loss

    def test_a_run_with_operators_that_were_handed_over_asks_for_them(self, run):
        with pytest.raises(RequestError, match=r"operator 'squash' was given as an object.*operators=\["):
            autoloss.resume(run.directory, QuickTask(), workers=0)
        sine = autoloss.Operator("sine", 1, torch.sin)
        with pytest.raises(RequestError, match="no operators named sine"):
            autoloss.resume(run.directory, QuickTask(), workers=0, operators=[SQUASH, sine])
        again = autoloss.resume(run.directory, QuickTask(), workers=0, operators=[SQUASH], final=False)
        assert list(as_text(again.history)) == list(as_text(run.history))

    def test_operators_of_a_file_are_found_again(self, run, tmp_path):
        file = tmp_path / "ops.py"
        file.write_text(
            "import autoloss\n\n\ndef squash(x):\n    return x / (1 + x.abs())\n\n\n"
            "OPERATORS = [autoloss.Operator('squash', 1, squash)]\n",
            encoding="utf-8",
        )
        options = {"settings": {"evolution.maximum_operators": 5, "space.without": FEW}}
        searched(tmp_path / "run", evaluations=2, operators=[f"{file}:OPERATORS"], **options)
        longer = autoloss.resume(tmp_path / "run", QuickTask(), evaluations=6, workers=0, final=False)
        assert list(as_text(longer.history)) == list(as_text(run.history))
        best = next(found for found in longer.history if "squash(" in found.formula and found.outcome.score is not None)
        assert "def squash(x):" in export_loss(tmp_path / "run", best.id, "python")
        assert f"--operators {file}:OPERATORS" in training_command(open_run(tmp_path / "run"), best.formula)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"settings": {"space.without": ("maxpool",)}}, "no operator named 'maxpool'"),
            ({"operators": ["nowhere.py:x"]}, "There is no file .*nowhere.py. An operator of your own is named"),
            ({"operators": ["squash"]}, "operator 'squash' was given as an object"),
            ({"operators": [SQUASH, SQUASH]}, "The name 'squash' is taken"),
            ({"settings": {"evolution.maximum_operators": "2"}}, "at least evolution.depth = 3"),
            ({"settings": {"space.without": "log,lgo"}}, "no operator named 'lgo'"),
        ],
    )
    def test_a_wrong_space_is_answered_in_a_sentence(self, options, message, tmp_path):
        with pytest.raises(RequestError, match=message):
            searched(tmp_path / "run", **options)


class TestFrozen:
    def test_a_frozen_branch_keeps_its_loss_and_is_not_searched(self, tmp_path):
        found = searched(tmp_path / "run", BOTH, evaluations=2, frozen={"reg": "baseline/mse"})
        assert {tuple(individual.candidate.kinds) for individual in found.history} == {("cls",)}
        best = found.top(1)[0]
        losses = {"cls": best.loss["cls"], **resolve({"reg": "baseline/mse"}, {"reg": BOTH.branches["reg"]})[1]}
        outcome = BOTH.train(bind(losses, BOTH.branches), Training(seed=derive_seed(3, "training")))
        assert isinstance(outcome, Scored)
        assert outcome.score == best.score
        longer = autoloss.resume(tmp_path / "run", BOTH, evaluations=3, workers=0, final=False)
        assert set(longer.history[-1].candidate.kinds) == {"cls"}
        assert "--frozen reg=baseline/mse" in training_command(found, best.formula)

    def test_a_name_stands_for_all_branches_that_begin_with_it(self):
        task = QuickTask(("rpn_cls", "rpn_reg", "rcnn_cls"))
        kept = freeze_branches(task, parse_frozen(["rpn=baseline/ce"]))
        assert list(kept.branches) == ["rcnn_cls"]
        assert set(kept.samples(2, 0)) == {"rcnn_cls"}

    def test_without_a_loss_the_standard_one_is_kept(self):
        task = QuickTask(("main", "other"))
        assert list(freeze_branches(task, parse_frozen(["main"])).branches) == ["other"]
        with pytest.raises(RequestError, match="The branch 'other' has no standard loss"):
            freeze_branches(task, parse_frozen(["other"]))

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (["=baseline/ce"], "takes branch=loss"),
            (["cls=p", "cls=y"], "frozen twice"),
            (["mask=p"], "no branch named 'mask'"),
            (["cls=baseline/ce", "reg=baseline/mse"], r"All branches \(cls, reg\) are frozen"),
            (["cls=lgo(p)"], "no operator named 'lgo'"),
        ],
    )
    def test_what_cannot_be_frozen_is_refused(self, texts, message):
        with pytest.raises(RequestError, match=message):
            freeze_branches(BOTH, parse_frozen(texts))


class TestBrokenTask:
    @pytest.mark.parametrize(
        ("member", "value", "message"),
        [
            ("branches", {}, "The task quick has no branches"),
            ("branches", [1], r"The branches of the task quick are \[1\]; expected a dictionary"),
            ("branches", {"main": int}, "The branches of the task quick are .*int.*; expected a dictionary"),
            ("standard", "baseline/ce", "standard of the task quick is 'baseline/ce'; expected a dictionary"),
            ("samples", lambda count, seed: {"cls": BOTH.samples(count, seed)["cls"]}, "no set of samples for branch named 'reg'"),
            (
                "samples",
                lambda count, seed: {name: iter([(1, 2)] * count) for name in BOTH.branches},
                r"A sample of branch cls is \(1, 2\); expected Sample\(prediction, context\)",
            ),
            ("samples", lambda count, seed: [1], "Drawing samples of the task fails: TypeError: 'list' object is not a mapping"),
            (
                "samples",
                lambda count, seed: {
                    name: [replace(one, context={}) for one in drawn] for name, drawn in BOTH.samples(count, seed).items()
                },
                "Reading a sample of branch cls fails: KeyError: 'target'",
            ),
        ],
    )  # fmt: skip
    def test_it_is_named_before_anything_is_trained(self, member, value, message):
        broken = type("Broken", (QuickTask,), {"branches": BOTH.branches, "standard": {}})()
        if member == "samples":
            broken.samples = value
        else:
            setattr(type(broken), member, value)
        with pytest.raises((RequestError, RunError), match=message):
            autoloss.check(broken, workers=0)

    def test_a_standard_loss_of_no_branch_is_a_doubt(self):
        assert any(
            "names 'main', which is no branch of the task (cls, reg)" in text
            for text in prepare(make_request(BOTH)).diagnose()
        )


class TestAlso:
    def test_a_further_metric_has_a_column(self, tmp_path):
        found = searched(tmp_path / "run", evaluations=2, also=["digest"])
        assert "digest" in [column.header for column in top_table(found, list_top(found, 3)).columns]
        assert list(columns_of(None, found)) == ["digest"]
        assert "digest" not in [column.header for column in top_table(found, list_top(found, 3), (), []).columns]
        with pytest.raises(RequestError, match=r"no further metric of the run in .* named 'miou'. Known: digest"):
            columns_of(["miou"], found)

    def test_a_run_that_measured_none_has_none_to_show(self, tmp_path):
        class Silent(QuickTask):
            def train(self, *given, **options):
                return replace(super().train(*given, **options), also={})

        found = searched(tmp_path / "run", Silent(diverging=999), evaluations=1)
        with pytest.raises(RequestError, match=r"no further metric of the run in .* named 'digest'. Known: none"):
            columns_of(["digest"], found)

    def test_a_comparison_shows_its_mean(self):
        rows = score(QuickTask(), ["baseline/ce", "(p - y)**2"], seeds=2, workers=0, also=["digest"])
        assert all(0 <= row.also["digest"] <= 1 for row in rows if None not in row.scores)
        assert any(row["also"] for row in comparison_rows(rows))
        assert "digest" in [column.header for column in comparison_table("x", rows, ["digest"]).columns]

    @pytest.mark.parametrize(
        ("name", "options", "metric", "known", "unknown"),
        [
            ("digits-seg", {"train": 4, "valid": 2, "test": 2}, "bf1", "miou", "auc"),
            ("tabular", {}, "f1", "auc", "r2"),
        ],
    )
    def test_tasks_of_the_catalogue_say_what_they_measure_besides(
        self, name, options, metric, known, unknown, tmp_path
    ):
        task = autoloss.tasks.get(name, metric=metric, **options)
        assert known in task.also
        with pytest.raises(RequestError, match=f"no further metric of the task {name} named '{unknown}'"):
            autoloss.search(task, also=[unknown], directory=tmp_path / "run", workers=0)


def test_a_run_without_any_of_it_is_as_before(tmp_path):
    found = searched(tmp_path / "run", evaluations=1)
    assert found.configuration.space == type(found.configuration.space)()
    with Store(tmp_path / "run") as store:
        assert store.settings().start == ()


def test_a_run_with_all_of_it_is_derived_again(tmp_path):
    options = {"start": ["baseline/ce", INVERTED], "operators": [SQUASH], "frozen": {"reg": "p * y"}}
    options["settings"] = {"space.without": FEW}
    searched(tmp_path / "run", BOTH, evaluations=3, **options)
    for full in (False, True):
        found = replay(tmp_path / "run", task=BOTH, full=full, operators=[SQUASH])
        assert found.difference is None
        assert found.children >= 3
    with pytest.raises(RequestError, match="given as an object"):
        replay(tmp_path / "run", task=BOTH)


def test_a_shelf_of_which_nothing_passes_is_one_message():
    refused = [StartVerdict(name, name, {"main": 0.1}, "too little gain") for name in ("p", "y")]
    (said,) = describe_starts(refused)
    assert said.startswith("No known loss passes the rejection protocol (p: too little gain; y: too little gain).")
    assert said.endswith("The search starts from random trees only.")
    assert len(describe_starts([*refused, StartVerdict("-p", "neg(p)", {"main": 1.0}, None)])) == 3
