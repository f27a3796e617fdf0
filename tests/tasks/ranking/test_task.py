"""The task `ranking`: its data, with and without queries, and what bad input gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import autoloss
from autoloss.comparison.baselines import baselines
from autoloss.errors import RequestError
from autoloss.space.pairs import PairBranch
from autoloss.tasks.metric import RESAMPLES, SplitMetrics, draw_resamples
from autoloss.tasks.ranking import BUNDLED, RANKING_METRICS
from autoloss.training.training import Scored, Training
from autoloss.zoo import resolve
from tests.tasks import conformance


def write(path: Path, rows: int = 120, **columns: object) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 2))
    query = np.repeat([f"q{number}" for number in range(rows // 4)], 4)
    grade = np.clip(np.round(x[:, 0] + 0.3 * rng.normal(size=rows) + 1), 0, 3).astype(int)
    found = {"one": x[:, 0], "two": x[:, 1], "query": query, "grade": grade} | columns
    lines = [",".join(found)] + [",".join(map(str, row)) for row in zip(*found.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def get(path: Path, metric: str = "ndcg", **options: object):
    given = {"target": "grade", "query": "query", "steps": 20, "batch_size": 6, "size_of_sample": 8, **options}
    return autoloss.tasks.get("ranking", metric, data=str(path), **given)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("data") / "table.csv")


@pytest.fixture(scope="module", params=["ndcg", "auc"])
def task(request, path):
    return get(path) if request.param == "ndcg" else get(path, "auc", query=None, batch_size=24, size_of_sample=32)


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim, task):
    claim(task)


def test_a_query_stays_in_one_split_and_in_one_batch(path: Path):
    task = get(path)
    queries = [
        {float(one) for _, target in split.in_order(4) for one in target[:, 1]}
        for split in task._splits["proxy"][0].values()
    ]
    assert sum(map(len, queries)) == len(set.union(*queries)) == 30
    sample = task.samples(1, 0)["main"][0]
    groups = sample.context["target"][:, 1]
    assert sorted(torch.bincount(groups.long()).unique().tolist()) == [0, 4]
    assert torch.equal(groups[sample.context["first"]], groups[sample.context["second"]])


def test_identifiers_of_more_digits_than_a_float_holds_stay_apart(tmp_path: Path):
    # One short identifier among them makes an array of floats of all.
    numbers = np.repeat([7, *range(90071992547409930, 90071992547409959)], 4)
    task = get(write(tmp_path / "table.csv", query=numbers))
    queries = {
        float(one)
        for split in task._splits["proxy"][0].values()
        for _, target in split.in_order(4)
        for one in target[:, 1]
    }
    assert len(queries) == 30


def test_ndcg_gives_pairs_their_weight_and_other_metrics_none(path: Path):
    for metric, weighed in (("ndcg5", True), ("map", False), ("mrr", False)):
        branch = get(path, metric).branches["main"]
        assert isinstance(branch, PairBranch)
        assert ("w" in branch.leaves_and_roles) is weighed


def test_known_losses_train(path: Path):
    task = get(path)
    for loss in ("baseline/lambdarank", "baseline/listnet", "baseline/pointwise", "baseline/auc_hinge"):
        losses = resolve(loss, task.branches)[1]
        outcome = task.train(autoloss.bind(losses, task.branches), Training(seed=0))
        assert isinstance(outcome, Scored)
        assert outcome.score > task.untrained(0)


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_tables(name: str):
    pytest.importorskip("statsmodels")
    task = autoloss.tasks.get("ranking", "ndcg" if name == "modechoice" else "auc", data=name, steps=2)
    assert 0.1 < task.untrained(0) < 0.9


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"grade": [1, "good"] * 60}, {}, "Line 3, column 'grade': 'good' is text"),
        ({"grade": [*[0, 1] * 59, 2, -1]}, {}, "Line 121, column 'grade': -1 is below the minimum 0"),
        ({"grade": np.ones(120)}, {"query": None, "metric": "auc"}, "no two rows can be compared"),
        (
            {"grade": [2] + [1] * 119},
            {"query": None, "metric": "auc"},
            "1 of 120 rows have more than 1 in column 'grade'",
        ),
        ({"query": np.arange(120)}, {}, "120 have one item"),
        ({"grade": np.ones(120)}, {}, "Only 0 of 30 queries"),
        ({}, {"query": None}, "--set query="),
        ({}, {"target": ""}, "Give target=<one of one, two, query, grade>"),
        ({}, {"query": "q"}, "query"),
        ({}, {"target": "query"}, "is named twice"),
    ],
)
def test_bad_input_is_refused_with_a_reason(tmp_path: Path, columns, options, message: str):
    with pytest.raises(RequestError, match=message):
        get(write(tmp_path / "table.csv", **columns), **options)


def test_each_split_has_queries_that_say_something(tmp_path: Path):
    few = write(tmp_path / "table.csv", grade=[0, 1] * 10 + [1] * 100)
    for seed in range(8):
        assert isinstance(standard_outcome(get(few, split_seed=seed)), Scored)


def standard_outcome(task: autoloss.SupervisedTask, resampled: bool = False):
    criterion = autoloss.bind(resolve("baseline/ranknet", task.branches)[1], task.branches)
    return task.train(criterion, Training(seed=0, resampled=resampled))


def test_a_resample_draws_queries_not_rows():
    scores, relevance = torch.tensor([0.1, 0.4, 0.3, 0.2, 0.6, 0.5, 0.7]), torch.tensor([0, 1, 0, 0, 1, 1, 1])
    target = torch.stack([relevance.double(), torch.tensor([5.0, 5, 5, 9, 9, 2, 2])], dim=1)
    metric = RANKING_METRICS["mrr"]
    replicator = SplitMetrics([metric], resampled=True)
    replicator.add(scores[:3], target[:3])
    replicator.add(scores[3:], target[3:])
    found = replicator.replicates()
    # Nothing can be compared in the third query.
    values = torch.tensor([metric(scores[rows], target[rows]) for rows in (slice(0, 3), slice(3, 5))])
    assert found.examples == 2
    assert found.scores == pytest.approx([values[drawn].mean().item() for drawn in draw_resamples(2, RESAMPLES)])


def test_a_training_of_the_task_resamples_queries(path: Path):
    task = get(path)
    outcome = standard_outcome(task, resampled=True)
    assert outcome.replicates.examples <= len(task._splits["proxy"][0]["valid"].dataset) == 6


def test_a_function_is_measured_on_resamples_of_lists_as_the_metrics_of_the_task_are():
    generator = torch.Generator().manual_seed(0)
    scores, lists = torch.rand(24, generator=generator), torch.tensor([7, 3, 5, 9]).repeat_interleave(6)
    order = torch.randperm(24, generator=generator)
    target = torch.stack([torch.arange(24) % 3, lists], dim=1)[order].float()
    metric = RANKING_METRICS["ndcg"]
    found = []
    for measured in (SplitMetrics([metric], True), SplitMetrics([lambda *pair: metric(*pair)], True, group=1)):
        measured.add(scores, target)
        found.append(measured.replicates())
    assert found[1].examples == 4
    # The first draws queries in the order of their numbers, too.
    assert found[1].scores == pytest.approx(found[0].scores)


def test_strata_of_times_are_no_lists():
    assert autoloss.PairBranch(columns=("value", "group")).group == 1
    assert autoloss.PairBranch(columns=("value", "event", "group")).group is None


@pytest.mark.parametrize(("lists", "examples"), [(8, 8), (1, 5)])
def test_the_lists_of_ones_own_task_are_resampled_or_the_rows_of_a_single_one(lists: int, examples: int):
    generator = torch.Generator().manual_seed(0)
    inputs, value = torch.randn(lists * 5, 3, generator=generator), torch.arange(5.0).repeat(lists)
    rows = inputs, torch.stack([value, torch.arange(lists).repeat_interleave(5)], dim=1)
    branch = autoloss.PairBranch(columns=("value", "group"), measure=lambda scores, target: scores.mean())
    task = autoloss.SupervisedTask(lambda: torch.nn.Linear(3, 1), train=rows, valid=rows, branch=branch)
    assert standard_outcome(task, resampled=True).replicates.examples == examples


def test_rows_without_queries_are_resampled_as_rows():
    scores, relevance = torch.rand(20, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 2
    replicator = SplitMetrics([RANKING_METRICS["auc"]], resampled=True)
    replicator.add(scores, relevance[:, None].double())
    assert replicator.replicates().examples == 20


def test_every_comparison_is_made_with_the_losses_over_pairs_in_common_use(task):
    names = {one.loss for one in baselines(task)}
    weighted = {"baseline/lambdarank"} if task.branches["main"].weigh == "ndcg" else {"baseline/auc_margin"}
    assert names >= {"baseline/ranknet", "baseline/auc_hinge", "baseline/auc_square", "baseline/listnet"} | weighted


@pytest.mark.parametrize(("most", "standard"), [(1, "baseline/listnet"), (3, "baseline/ranknet")])
def test_where_items_are_relevant_or_not_the_standard_loss_is_the_softmax(tmp_path: Path, most: int, standard: str):
    task = get(write(tmp_path / "table.csv", grade=np.arange(120) % (most + 1)))
    assert task.standard == {"main": standard}
    assert {"baseline/ranknet", "baseline/listnet", "baseline/pointwise"} <= {one.loss for one in baselines(task)}


def test_a_target_that_hardly_two_rows_share_is_ranked_by_auc(tmp_path: Path):
    task = get(write(tmp_path / "table.csv", grade=np.arange(120.0)), "auc", query=None, batch_size=24)
    assert {name: len(split) for name, split in task._splits["proxy"][0].items()} == {
        "train": 72,
        "valid": 24,
        "test": 24,
    }
    assert task.train(autoloss.bind(autoloss.Loss("-y * log(p)"), task.branches), Training(seed=0)).score is not None
