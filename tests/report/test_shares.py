"""Scores at different shares of the schedule are never mixed: wherever one is read, its share stands beside it."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from autoloss.comparison.entrant import Entrant
from autoloss.proposing.records import Individual
from autoloss.report.failures import group_failures, print_failures
from autoloss.report.individual import print_show, show_values
from autoloss.report.page.contents import gather_contents
from autoloss.report.page.figures import _typical_low
from autoloss.report.page.rendering import page
from autoloss.report.page.shapes import draw_kind
from autoloss.report.shares import at_share, describe_factors, write_score, write_share
from autoloss.report.state import state_of
from autoloss.report.status import line, panel
from autoloss.report.summary import summarize
from autoloss.report.take_home import export_loss
from autoloss.run.loop import TEST_SECONDS, USUAL_WEIGHT, Forecast, Progress
from autoloss.run.results import Search, open_run
from autoloss.space.form import BranchForm
from autoloss.space.parsing import parse
from autoloss.store.read import Reader, read_once
from autoloss.store.store import lock_run
from tests.report.written import CE, ROOT, SCALED, add, begin, candidate, promoted, scored, words

FACTOR = describe_factors(SCALED)


@pytest.fixture
def directory(tmp_path) -> Path:
    return promoted(tmp_path / "run")


def shown(search: Search, number: int) -> str:
    console = Console(record=True, width=200)
    print_show(console, show_values(search, number))
    return console.export_text()


@pytest.mark.parametrize(
    ("fidelity", "text"), [(1.0, "whole"), (0.125, "at 1/8"), (0.3, "at 3/10"), (1 / 3, "at 1/3"), (0.337, "at 0.337")]
)
def test_a_share_is_a_fraction_where_it_is_one(fidelity, text):
    assert at_share(fidelity) == text
    assert write_score(0.5, fidelity) == f"0.5000 {text}"
    assert write_score(None, fidelity) == "–"
    assert write_share(fidelity) in text


def test_the_factors_of_several_branches_are_named():
    assert describe_factors(f"cls: {CE}; reg: 3.00 * log(p)") == FACTOR.replace("0.371", "3.00 (reg)")
    assert describe_factors(f"cls: {CE}; reg: log(p)") == describe_factors("0.25 * log(p)") == ""


def test_show_tells_the_share_the_promotion_with_both_scores_and_the_factor(directory):
    search = open_run(directory)
    whole, short = shown(search, 3), shown(search, 1)
    assert "scored  score 0.8000 whole" in whole
    assert "promoted from #1, score 0.2000 at 1/8" in whole
    assert re.search(r"3 +promoted from 1/8 +0.8000 +whole", whole)
    assert "Train it again: autoloss score" in whole
    assert "scored  score 0.2000 at 1/8" in short
    assert "promoted to #3, score 0.8000 whole" in short
    assert "Train it with the whole schedule: autoloss score" in short
    for printed in (whole, short):
        assert printed.count(FACTOR) == 1
        assert "−0.371·y·log(p)" in printed
    values = show_values(search, 3)
    assert (values["fidelity"], values["promoted_to"]) == (1.0, None)
    assert values["promoted_from"] == {"id": 1, "fidelity": 0.125, "score": 0.2}
    assert [step["fidelity"] for step in values["lineage"]] == [1.0, 0.125]


def test_a_promotion_in_training_has_no_score_yet(tmp_path):
    directory = begin(tmp_path / "run", **{"search.rungs": (0.125, 1.0)})
    whole = candidate(1, CE, parent=0, kinds={"main": "promoted"})
    add(directory, (candidate(0, CE, fidelity=0.125), scored(0.2)), (whole, None))
    assert "promoted to #1, no score whole" in shown(open_run(directory), 0)


def test_a_run_that_trains_all_whole_says_nothing_of_shares(tmp_path):
    directory = begin(tmp_path / "run")
    add(directory, (candidate(0, ROOT), scored(0.3)), (candidate(1, CE, parent=0), scored(0.5)))
    # Without the glossary, which explains all words.
    written, _, rest = page(gather_contents(Reader(directory))).partition('<aside id="glossary"')
    told = [shown(open_run(directory), 1), words(written), words(rest.partition("</aside>")[2])]
    told += [panel_text(progress(rungs={1.0: 2})), line(progress(rungs={1.0: 2}))]
    for text in told:
        assert "whole" not in text.replace("with the whole schedule", "")
        assert "1/8" not in text


def test_failures_name_the_share_of_their_example(directory):
    values = group_failures(Reader(directory))
    assert values["trainings"][0]["example"]["fidelity"] == 0.125
    console = Console(record=True, width=200)
    print_failures(console, values, directory)
    assert "(at 1/8, step 3)" in console.export_text()


def test_an_exported_loss_brings_its_share_and_its_factor(directory):
    whole, short = (" ".join(export_loss(directory, number, "python").split()) for number in (None, 1))
    assert "score of the proxy training, valid split: 0.8" in whole
    assert "promoted from: #1, score 0.2000 at 1/8" in whole
    assert "score of the proxy training at 1/8, valid split: 0.2" in short
    assert "promoted to: #3, score 0.8000 whole" in short
    assert f"factor: {FACTOR}" in whole
    assert "promoted" not in export_loss(directory, 0, "python")


def progress(*, rungs: dict[float, int], best: Individual | None = None, **changes: object) -> Progress:
    values = Progress(
        trained=12.5,
        budget=40,
        trained_here=12.5,
        trainings=rungs,
        running=2,
        sampled=4321,
        simulated=800,
        passed=100,
        reused=30,
        rejected={"too little gain": 700},
        best=best,
        best_age=3,
        workers=2,
        busy=2,
        seconds=300.0,
        eta_seconds=660.0,
    )
    return replace(values, **changes)


def panel_text(shown: Progress) -> str:
    console = Console(record=True, width=200)
    console.print(panel(shown))
    return console.export_text()


def test_the_line_of_a_search_says_how_far_the_best_against_the_standard_loss_and_the_time_of_all_that_follows():
    best = Individual(candidate(88, CE, fidelity=0.125), replace(scored(0.211), fidelity=0.125))
    rungs = {0.125: 92, 1.0: 1}
    assert line(progress(rungs=rungs, best=best)) == (
        "12.5 of 40 trainings · best 0.2110 at 0.125 of the schedule · about 11 min 00 s left"
    )
    whole = Individual(candidate(89, CE), scored(0.8105))
    ended = line(progress(rungs=rungs, best=whole, standard=0.7712))
    assert ended == "12.5 of 40 trainings · best 0.8105 · standard loss 0.7712 · about 11 min 00 s left"
    assert len(ended) < 100
    assert "12.5 of 40 training equivalents · 92 short, 1 whole" in panel_text(progress(rungs=rungs, best=whole))
    assert "4321 losses drawn" in line(progress(rungs={0.125: 0, 1.0: 0}, trained=0.0))


def test_the_time_left_counts_usual_trainings_and_what_the_search_has_needed():
    trainings = {
        Entrant("", "baseline/ce").job(seed, "valid", fidelity=share): replace(scored(0.5), seconds=seconds)
        for seed, (share, seconds) in enumerate([(0.25, 30.0), (0.25, 1.5), (1.0, 4.0), (1.0, 4.0), (1.0, 5.0)])
    }
    forecast = Forecast(workers=2)
    assert forecast.tell(10, 0.25) is None
    forecast.expect(20, trainings)
    # Ten whole trainings of the search and twenty after it take 4 s each.
    assert forecast.tell(10, 0.25) == pytest.approx((30 * 4.0 + 20 * TEST_SECONDS) / 2)
    # A training that takes longer than usual says little.
    slow = [replace(scored(0.5), seconds=400.0)]
    usual = (4.0 + 2 * TEST_SECONDS) / 2
    assert forecast.tell(9, 0.25, slow) == pytest.approx(9 * usual + 20 * 4.0 / 2)
    # A search that waits for its tests says so, the more the longer it waits.
    waited = [forecast.tell(9, 0.25, slow, 1.0, seconds) for seconds in (usual, 60.0, 120.0)]
    paces = [(USUAL_WEIGHT * usual + seconds) / (USUAL_WEIGHT + 1) for seconds in (usual, 60.0, 120.0)]
    assert waited == pytest.approx([9 * pace + 20 * 4.0 / 2 for pace in paces])
    assert waited[0] < waited[1] < waited[2]
    # Of two trainings the first loads libraries.
    two = {
        Entrant("", "baseline/ce").job(seed, "valid"): replace(scored(0.5), seconds=9.0 - 8 * seed) for seed in (0, 1)
    }
    begun = Forecast(workers=1)
    begun.expect(20, two)
    assert begun.tell(2, 1.0) == pytest.approx(22 + 2 * TEST_SECONDS)
    # Few trainings of the comparison tell no pace yet.
    assert forecast.tell_trainings(20, done=0, seconds=50.0) == forecast.tell_trainings(16, 4, 50.0) == waited[2]
    assert forecast.tell_trainings(10, done=10, seconds=50.0) == 50.0
    # Without trainings before it, those of the search count.
    assert Forecast(workers=1).tell(2, 1.0, slow) == pytest.approx(800 + 2 * TEST_SECONDS)


def test_the_page_lists_every_loss_at_its_share_whatever_their_order(directory, monkeypatch):
    """The scores of new seeds order losses of several shares."""
    summary = summarize(Search(Reader(directory)))
    whole, short = summary.top
    alternate = replace(summary, top=[short, whole, short])
    monkeypatch.setattr("autoloss.report.page.contents.summarize", lambda *_: alternate)
    rankings = gather_contents(Reader(directory)).rankings
    assert [[share, *(row.found.id for row in rows)] for share, rows in rankings.items()] == [[1.0, 3], [0.125, 0, 0]]


def test_the_page_draws_shares_apart_and_names_them(directory):
    contents = gather_contents(Reader(directory))
    whole, short = contents.over_time
    assert (whole.title, short.title) == ("Trained whole", "Trained at 1/8 of the schedule")
    assert "Scores of 1 training in" in whole.description
    assert "Scores of 2 trainings" in short.description
    # Both are over training equivalents: two eighths, then a whole one.
    assert (whole.x, whole.x.high, whole.x.label) == (short.x, 1.25, "training equivalents")
    assert list(contents.rankings) == [1.0, 0.125]
    assert [[row.found.id for row in rows] for rows in contents.rankings.values()] == [[3], [0]]
    assert [(one["id"], one["how"]["main"], one["score"]) for one in contents.family] == [
        (1, "fresh", 0.2),
        (3, "promoted from 1/8", 0.8),
    ]
    assert [chart.title for chart in contents.curves] == ["#3: score 0.8000 whole", "#1: score 0.2000 at 1/8"]
    text = words(page(contents))
    assert "The best so far is #3 with 0.8000 on the valid split, trained whole." in text
    assert "promoted from 1/8 score 0.8000 whole" in text
    assert "training equivalents 1.25 of 6 trainings 3 at 1/8, 1 whole" in text
    assert "promoted trained whole as well 1" in text
    assert f"It is {FACTOR}." in text
    assert "all smaller ones, trained whole." in text
    assert "(at 1/8, step 3)" in text


def test_a_page_without_a_whole_training_says_so(tmp_path):
    directory = begin(tmp_path / "run", **{"search.rungs": (0.125, 1.0)})
    add(directory, (candidate(0, SCALED, fidelity=0.125), scored(0.2)), (candidate(1, CE, fidelity=0.125), None))
    contents = gather_contents(Reader(directory))
    assert [chart.title for chart in contents.over_time] == ["Trained at 1/8 of the schedule"]
    text = words(page(contents))
    assert "0.2000 on the valid split, trained at 1/8 of the schedule; none is trained whole yet." in text
    assert "stopped 0.125 of 6" in text
    assert "trainings 1 at 1/8, 0 whole" in text


@pytest.mark.parametrize(("evaluations", "word"), [(1, "finished"), (2, "finished"), (3, "stopped")])
def test_a_search_whose_rest_is_too_little_for_a_whole_training_is_finished(evaluations, word, tmp_path):
    directory = promoted(tmp_path / "run", evaluations=evaluations)
    assert gather_contents(Reader(directory)).summary.state.word == word
    # The process of the search still holds the run when it prints the end.
    with closing(lock_run(directory)):
        assert state_of(Search(read_once(directory), "the budget is spent", branches={})).word == word


def test_scores_far_below_the_others_do_not_compress_a_chart():
    lows = [_typical_low(scores) for scores in ([-1e13, -3, -2, -1], [0.1, 0.8, 0.9], [0.2, 0.2, 0.2], [2.0])]
    assert lows == pytest.approx([-7, 0.3, 0.2, 2])


def test_the_shape_of_a_scaled_loss_is_drawn_at_its_factor():
    plain, scaled = (draw_kind(parse(text), BranchForm().kind, "", "#1") for text in (CE, f"2.50 * {CE}"))
    assert "over 0.693 in the middle" in plain.charts[0].description
    assert "over 1.73 in the middle" in scaled.charts[0].description
    assert "over -5 in the middle" in scaled.charts[1].description
    assert "#1 is drawn with its factor, 2.50." in scaled.notes
