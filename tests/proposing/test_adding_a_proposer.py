"""Adding a way to search takes one class, handed in as an object: a newcomer's proposer, run like those that come with autoloss."""

from __future__ import annotations

import math

import numpy as np
import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.proposing.history import History
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.proposers import RandomSearch
from autoloss.settings import Configuration
from histories import as_text
from tests.run.quick import SETTINGS, QuickTask

from .conformance import ARCHIVE_CLAIMS, PROPOSER_CLAIMS

BRANCHES = ("cls", "reg")


# The whole of what a newcomer writes, in a file of its own.
class CoinFlips(Proposer):
    """Mutates the very first loss or draws a new one, at random."""

    def needs_outcomes(self, k):
        return k > 0

    def ask(self, k, visible):
        heads = visible.generator("coin").random() < 0.5
        if heads or 0 not in visible.scored(1.0):
            return Plan(k, None, dict.fromkeys(visible.branches, Kind.FRESH))
        return Plan(k, 0, dict.fromkeys(visible.branches, Kind.MUTATION))


class Latest(autoloss.Archive):
    """Parents are the last losses with a score."""

    def draw_parent(self, visible, rng):
        return next(iter(visible.scored(1.0)[-1:]), None)


def searched(directory, workers=0, **more):
    settings = {**SETTINGS, **more.pop("settings", {})}
    return autoloss.search(
        QuickTask(BRANCHES),
        evaluations=10,
        seed=3,
        workers=workers,
        directory=directory,
        settings=settings,
        final=False,
        **more,
    )


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "None is no plan of candidate 0 with the branches cls, reg"),
        (Plan(1, None, dict.fromkeys(BRANCHES, Kind.FRESH)), "is no plan of candidate 0"),
        (Plan(0, None, dict.fromkeys(BRANCHES, "fresh")), "needs a Kind for each branch"),
        (Plan(0, None, dict.fromkeys(BRANCHES, Kind.FRESH), pool=0), "at least one attempt in its pool, seed and fold"),
        (
            Plan(0, None, dict.fromkeys(BRANCHES, Kind.FRESH), seeds=()),
            "at least one attempt in its pool, seed and fold",
        ),
        (
            Plan(0, None, dict.fromkeys(BRANCHES, Kind.FRESH), folds=()),
            "at least one attempt in its pool, seed and fold",
        ),
        *(
            (Plan(0, None, dict.fromkeys(BRANCHES, kind), **values), message)
            for kind, values, message in (
                (Kind.FRESH, {"pool": -1}, "pool is -1; expected a whole number, at least 1"),
                (Kind.FRESH, {"fidelity": math.nan}, "fidelity is nan; expected a number, at least 0 and at most 1"),
                (Kind.FRESH, {"partner": False}, "partner is False; expected a whole number, at least 0, or none"),
                (Kind.FRESH, {"seeds": ("a",)}, r"seeds is \('a',\); expected a list, each a whole number"),
                (Kind.FRESH, {"folds": (0, 0)}, "a seed or a fold twice"),
                (Kind.COPY, {}, "a parent.*which it does not name"),
                (Kind.SUM, {}, "a parent.*which it does not name"),
                (Kind.START, {}, "starts from a loss, which it does not name"),
            )
        ),
    ],
)
def test_what_is_no_plan_is_refused(plan, message, tmp_path):
    class Wrong(CoinFlips):
        def ask(self, k, visible):
            return plan

    with pytest.raises(ValueError, match=message):
        searched(tmp_path, proposer=Wrong())


@pytest.mark.parametrize("chosen", [None, {}, {"cls": None, "reg": None}])
def test_what_is_no_choice_is_refused(chosen, tmp_path):
    class Wrong(CoinFlips):
        def ask(self, k, visible):
            return Plan(k, None, dict.fromkeys(BRANCHES, Kind.FRESH), pool=2)

        def choose(self, plan, pools, parent, visible):
            return chosen

    with pytest.raises(ValueError, match="is no choice of one attempt from the pool of each branch: cls, reg"):
        searched(tmp_path, proposer=Wrong())


@pytest.mark.parametrize("claim", PROPOSER_CLAIMS, ids=lambda claim: claim.__name__)
def test_the_proposer_conforms(claim):
    claim(lambda configuration: CoinFlips())


@pytest.mark.parametrize("claim", ARCHIVE_CLAIMS, ids=lambda claim: claim.__name__)
def test_the_archive_conforms(claim):
    claim(Latest())


OBJECTS = {
    "object CoinFlips": {"proposer": CoinFlips()},
    "evolution with object Latest": {"archive": Latest()},
    "random": {"settings": {"search.proposer": "random"}},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_it_has_one_history_for_any_number_of_workers_resumes_and_replays(name, tmp_path, simulated_workers):
    found = searched(tmp_path / "a", **OBJECTS[name])
    lines = list(as_text(found.history))
    assert list(as_text(searched(tmp_path / "b", 2, **OBJECTS[name]).history)) == lines
    objects = {word: value for word, value in OBJECTS[name].items() if word != "settings"}
    assert autoloss.replay(tmp_path / "b", full=False, **objects).difference is None
    again = {"evaluations": 14, "workers": 0, "final": False}
    if objects:
        with pytest.raises(RequestError, match="object is missing"):
            autoloss.resume(tmp_path / "b", QuickTask(BRANCHES), **again)
    with pytest.raises(RequestError, match="'object RandomSearch' is another"):
        autoloss.resume(tmp_path / "b", QuickTask(BRANCHES), **again, proposer=RandomSearch())
    longer = autoloss.resume(tmp_path / "b", QuickTask(BRANCHES), **again, **objects)
    assert list(as_text(longer.history))[: len(lines)] == lines
    assert len(longer.history) > len(lines)
    assert found.configuration.search.proposer == name
    if "proposer" in objects:
        assert {individual.candidate.parent for individual in longer.history} == {None, 0}


def test_an_archive_is_not_given_beside_a_proposer(tmp_path):
    with pytest.raises(RequestError, match="Pass the archive to the proposer"):
        searched(tmp_path / "run", proposer=CoinFlips(), archive=Latest())


RANDOM = {"search.proposer": "random"}


def test_random_search_finds_the_losses_of_evolution_with_fresh_trees_alone(tmp_path):
    fresh = {"offspring.copy": 0.0, "offspring.fresh": 1.0}
    evolved = searched(tmp_path / "a", settings=fresh).history
    drawn = searched(tmp_path / "b", settings=RANDOM).history
    assert [(one.formula, one.outcome.score) for one in drawn] == [(one.formula, one.outcome.score) for one in evolved]


def test_any_proposer_begins_with_the_losses_to_start_from(tmp_path):
    found = searched(tmp_path / "run", settings=RANDOM, start="cls: -y * log(p); reg: -y * log(p)")
    assert found.history[0].candidate.kinds == {"cls": "given", "reg": "given"}
    assert found.history[1].candidate.kinds == {"cls": "fresh", "reg": "fresh"}


def test_a_history_takes_a_proposer_that_has_no_name():
    configuration = Configuration().changed(SETTINGS)
    history = History(BRANCHES, configuration, RandomSearch())
    assert history.plan(70) == Plan(70, None, dict.fromkeys(BRANCHES, Kind.FRESH), 1.0)


def test_an_unknown_proposer_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RequestError, match=r"no proposer named 'rndom'\. Did you mean 'random'"):
        searched(tmp_path / "run", settings={"search.proposer": "rndom"})
    assert not (tmp_path / "run").exists()


def test_a_configuration_of_an_earlier_release_is_the_papers_evolution():
    assert Configuration.from_json('{"evaluations": 5, "evolution": {"lag": 2}}').search.proposer == "evolution"


def test_a_plan_may_hold_the_numbers_of_numpy(tmp_path):
    class OfNumPy(CoinFlips):
        def ask(self, k, visible):
            plan = super().ask(k, visible)
            parent = None if plan.parent is None else np.int64(plan.parent)
            return Plan(k, parent, plan.kinds, np.float32(1.0), pool=np.int64(1), seeds=np.arange(1).tolist())

    found = searched(tmp_path / "numpy", proposer=OfNumPy())
    assert list(as_text(found.history)) == list(as_text(searched(tmp_path / "python", proposer=CoinFlips()).history))
    assert any(one.candidate.parent == 0 for one in autoloss.open_run(tmp_path / "numpy").history)
