"""Adding a way to search takes one class and one row: a newcomer's proposer, run like those that come with autoloss."""

from __future__ import annotations

import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.proposing.history import History, as_text
from autoloss.proposing.mutation import Kind
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.proposers import PROPOSERS, RandomSearch
from autoloss.settings import Configuration
from tests.run.quick import SETTINGS, QuickTask

from .conformance import PROPOSER_CLAIMS

BRANCHES = ("cls", "reg")


# The whole of what a newcomer writes, in a file of its own …
class CoinFlips(Proposer):
    """Mutates the very first loss or draws a new one, at random."""

    def needs_outcomes(self, k):
        return k > 0

    def ask(self, k, visible):
        heads = visible.generator("coin").random() < 0.5
        if heads or 0 not in visible.scored(1.0):
            return Plan(k, None, dict.fromkeys(visible.branches, Kind.FRESH))
        return Plan(k, 0, dict.fromkeys(visible.branches, Kind.MUTATION))


# … and the row.
ROW = {"coin-flips": lambda archive, configuration: CoinFlips()}


@pytest.fixture(autouse=True)
def row(monkeypatch):
    for name, make in ROW.items():
        monkeypatch.setitem(PROPOSERS, name, make)


def searched(directory, proposer, workers=0, **more):
    settings = {**SETTINGS, "search.proposer": proposer, **more.pop("settings", {})}
    task = QuickTask(BRANCHES, delay_seconds=0.05 if workers else 0.0)
    return autoloss.search(
        task,
        evaluations=10,
        seed=3,
        workers=workers,
        directory=directory,
        settings=settings,
        final=False,
        **more,
    )


@pytest.mark.parametrize("claim", PROPOSER_CLAIMS, ids=lambda claim: claim.__name__)
def test_it_conforms(claim):
    claim(lambda configuration: CoinFlips())


@pytest.mark.parametrize("proposer", ["coin-flips", "random"])
def test_it_has_one_history_for_any_number_of_workers_resumes_and_replays(proposer, tmp_path):
    found = searched(tmp_path / "a", proposer)
    lines = list(as_text(found.history))
    assert list(as_text(searched(tmp_path / "b", proposer, 2).history)) == lines
    assert autoloss.replay(tmp_path / "b", full=False).difference is None
    longer = autoloss.resume(tmp_path / "b", QuickTask(BRANCHES), evaluations=14, workers=0, final=False)
    assert list(as_text(longer.history))[: len(lines)] == lines
    assert found.configuration.search.proposer == proposer
    parents = {individual.candidate.parent for individual in longer.history}
    assert parents == ({None, 0} if proposer == "coin-flips" else {None})


def test_random_search_finds_the_losses_of_evolution_with_fresh_trees_alone(tmp_path):
    fresh = {"offspring.copy": 0.0, "offspring.fresh": 1.0}
    evolved = searched(tmp_path / "a", "evolution", settings=fresh).history
    drawn = searched(tmp_path / "b", "random").history
    assert [(one.formula, one.outcome.score) for one in drawn] == [(one.formula, one.outcome.score) for one in evolved]


def test_any_proposer_begins_with_the_losses_to_start_from(tmp_path):
    found = searched(tmp_path / "run", "random", start="cls: -y * log(p); reg: -y * log(p)")
    assert found.history[0].candidate.kinds == {"cls": "given", "reg": "given"}
    assert found.history[1].candidate.kinds == {"cls": "fresh", "reg": "fresh"}


def test_a_history_takes_a_proposer_that_has_no_name():
    configuration = Configuration().changed(SETTINGS)
    history = History(BRANCHES, configuration, RandomSearch())
    assert history.plan(70) == Plan(70, None, dict.fromkeys(BRANCHES, Kind.FRESH), 1.0)


def test_an_unknown_proposer_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(RequestError, match=r"no proposer named 'rndom'\. Did you mean 'random'"):
        searched(tmp_path / "run", "rndom")
    assert not (tmp_path / "run").exists()


def test_a_configuration_of_an_earlier_release_is_the_papers_evolution():
    assert Configuration.from_json('{"evaluations": 5, "evolution": {"lag": 2}}').search.proposer == "evolution"
