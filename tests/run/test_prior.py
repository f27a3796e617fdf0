"""Searches with a prior: it orders the pools, belongs to the run, and a person's own runs add to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.proposing.memory import read_prior
from autoloss.run.learning import LEAST_LOSSES
from autoloss.run.results import Search
from histories import as_text

from .quick import QuickTask

QUICK = {
    "rejection.steps": 20,
    "rejection.samples": 2,
    "rejection.threshold": 0.01,
    "evolution.initial": 4,
    "ladder.share": 0,
    "search.rungs": "1",
}


def task() -> autoloss.Task:
    return autoloss.tasks.get("tabular", data="iris", steps=20)


def searched(
    directory: Path, evaluations: int = 6, workers: int = 0, made: autoloss.Task | None = None, **options
) -> Search:
    return autoloss.search(
        made or task(), evaluations=evaluations, seed=2, workers=workers, directory=directory, settings=QUICK, final=False,
        start="none", **options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def long(tmp_path_factory) -> Search:
    return searched(tmp_path_factory.mktemp("prior") / "run", LEAST_LOSSES, prior="none")


@pytest.fixture(scope="module")
def own(long, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("own") / "mine.npz"
    learnt = autoloss.learn([long.directory], out, prior="none")
    assert (learnt.sources, list(learnt.losses.values())) == (1, [LEAST_LOSSES])
    return out


def test_the_default_prior_belongs_to_the_run_and_orders_the_first_candidates(tmp_path):
    found = searched(tmp_path / "run")
    assert found.configuration.search.prior == "default"
    assert found.configuration.search.prior_digest == read_prior("default")[1]
    assert all(one.candidate.pool for one in found.history[:4])


def test_without_a_prior_the_first_attempt_that_passes_is_trained(long):
    assert long.configuration.search.prior_digest == ""
    assert not any(one.candidate.pool for one in long.history[:4])


def test_the_recipe_of_the_paper_has_none(tmp_path):
    found = autoloss.search(
        task(), evaluations=1, recipe="paper", workers=0, directory=tmp_path / "run", settings=QUICK, final=False
    )
    assert (found.configuration.search.prior, found.configuration.search.prior_digest) == ("none", "")


def test_a_proposer_that_does_not_choose_refuses_a_prior(tmp_path):
    with pytest.raises(RequestError, match=r"search\.proposer=guided"):
        autoloss.search(task(), recipe="paper", prior="default", directory=tmp_path / "run")


def test_own_runs_add_to_a_prior(own, long, tmp_path):
    learnt = autoloss.learn([long.directory], tmp_path / "more.npz")
    assert learnt.sources == 1 + len(read_prior("default")[0])
    again = autoloss.learn([long.directory], tmp_path / "again.npz", prior=learnt.path)
    assert (again.sources, again.digest) == (learnt.sources, learnt.digest)


def test_another_search_of_the_same_task_is_another_source(own, long, tmp_path):
    by_mcc = autoloss.tasks.get("tabular", data="iris", steps=20, metric="mcc")
    other = searched(tmp_path / "run", LEAST_LOSSES, prior="none", made=by_mcc)
    assert other.settings.samples_digest == long.settings.samples_digest
    assert autoloss.learn([long.directory, other.directory], tmp_path / "both.npz", prior=own).sources == 2


def test_a_prior_takes_no_folder_s_place(long, tmp_path):
    with pytest.raises(RequestError, match=f"{tmp_path} cannot be written"):
        autoloss.learn([long.directory], tmp_path, prior="none")


def test_a_prior_takes_the_place_of_a_prior_alone(long, own, tmp_path):
    """Nothing else is replaced, least of all a run."""
    run = tmp_path / "run.sqlite"
    shutil.copy(long.directory / "run.sqlite", run)
    before = run.read_bytes()
    with pytest.raises(RequestError, match=r"run\.sqlite exists already and is not a prior, so it is not replaced"):
        autoloss.learn([long.directory], run, prior="none")
    assert run.read_bytes() == before
    mine = tmp_path / "mine.npz"
    shutil.copy(own, mine)
    assert autoloss.learn([long.directory], mine).sources == 1 + len(read_prior("default")[0])


def test_one_history_with_a_prior_of_ones_own(own, tmp_path, simulated_workers):
    found = searched(tmp_path / "one", prior=own)
    lines = list(as_text(found.history))
    assert list(as_text(searched(tmp_path / "two", prior=own, workers=2).history)) == lines
    first = searched(tmp_path / "short", 4, prior=own)
    assert list(as_text(first.history)) == lines[: len(first.history)]
    resumed = autoloss.resume(tmp_path / "short", task(), evaluations=6, workers=0, final=False)
    assert list(as_text(resumed.history)) == lines
    assert autoloss.replay(tmp_path / "one").difference is None


def test_a_resume_with_another_prior_is_named_and_nothing_is_lost(own, long, tmp_path):
    path = tmp_path / "prior.npz"
    path.write_bytes(own.read_bytes())
    found = searched(tmp_path / "run", 3, prior=path)
    whole = path.read_bytes()
    autoloss.learn([long.directory], path)
    for use in (autoloss.resume, autoloss.replay):
        with pytest.raises(RequestError, match="was started with the prior"):
            use(tmp_path / "run", task())
    path.unlink()
    with pytest.raises(RequestError, match="There is no prior"):
        autoloss.resume(tmp_path / "run", task())
    assert len(autoloss.open_run(tmp_path / "run").history) == len(found.history)
    path.write_bytes(whole)
    longer = autoloss.resume(tmp_path / "run", task(), evaluations=4, workers=0, final=False)
    assert list(as_text(longer.history))[: len(found.history)] == list(as_text(found.history))


def test_a_run_without_trained_losses_teaches_nothing(tmp_path):
    found = searched(tmp_path / "run", 2)
    with pytest.raises(RequestError, match=f"2 trained losses with a score; at least {LEAST_LOSSES}"):
        autoloss.learn([found.directory], tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
    with pytest.raises(RequestError, match="no run"):
        autoloss.learn([], tmp_path / "out.npz")


def test_a_run_of_several_branches_teaches_nothing(tmp_path):
    found = autoloss.search(
        QuickTask(), evaluations=1, workers=0, directory=tmp_path / "run", settings=QUICK, start="none", final=False
    )
    if len(found.settings.branches) > 1:
        with pytest.raises(RequestError, match="its branches are"):
            autoloss.learn([found.directory], tmp_path / "out.npz")


def test_the_command_prints_what_was_learnt(long, tmp_path, capsys):
    from autoloss.cli.application import app

    app(["learn", str(long.directory), "--out", str(tmp_path / "out.npz"), "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["sources"] > 1
