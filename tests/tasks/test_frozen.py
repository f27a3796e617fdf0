"""A task with frozen branches is the task itself in everything else: whatever `Task` declares, the wrapper forwards."""

from __future__ import annotations

import pytest
import torch

from autoloss.errors import RequestError
from autoloss.space.branch import Criterion
from autoloss.space.loss import bind
from autoloss.space.parsing import parse
from autoloss.tasks.task import FrozenTask, Picture, Task
from autoloss.training.loop import Execution
from autoloss.training.training import Scored, Training
from tests.tasks import conformance
from tests.tasks.toy import TwoHeadsTask


class Everything(TwoHeadsTask):
    """Offers all that a task may offer, each with a value that no default has."""

    name = "everything"
    baselines = ({"kind": "baseline/focal"}, {"place": "baseline/l1"}, {"kind": "a", "place": "b"})
    splits = ("valid", "test", "other")
    folds = 3
    schedules = ("proxy", "full", "long")
    also = ("kind", "place", "other")
    tunes_learning_rate = True
    shortens = True
    step_rules = ("recipe", "one_norm")
    lengthens = True
    chooses_length = True
    tunes_threshold = True
    replays_norms = True
    execution = Execution(precision="bfloat16")
    describe_reference = str
    obstacle = "an obstacle"

    def steps(self, training: Training) -> int:
        return 1000 + training.seed

    def lengthen(self, factor: float) -> Task:
        longer = Everything()
        longer.schedules = (f"{factor:g} times",)
        return longer

    def untrained(self, seed: int) -> float:
        return 0.25 + seed

    def recipe(self, schedule: str) -> dict[str, str]:
        return {"recipe of": schedule}

    def constant_score(self) -> float:
        return 0.125

    def choices(self) -> tuple[str, ...]:
        return ("a choice",)

    def fingerprints(self) -> dict[str, list[float]]:
        return {"test": [0.5, 0.25]}

    def diagnose(self) -> tuple[str, ...]:
        return ("a doubt",)

    def train(self, criterion, training, execution=None, observe=None, pacing=None):
        if pacing is None:
            return super().train(criterion, training, execution, observe)
        assert set(criterion) == set(pacing) == {"kind", "place"}
        return Scored(float(training.seed))

    def pictures(self, criterion: Criterion, training: Training, count: int) -> list[Picture]:
        assert set(criterion) == {"kind", "place"}
        return [Picture(*(torch.full((2, 2), training.seed) for _ in range(3)))] * count


def frozen(task: Task, *names: str) -> FrozenTask:
    branches = {name: task.branches[name] for name in names}
    return FrozenTask(task, bind({name: parse(task.standard[name]) for name in names}, branches))


def test_every_member_of_task_is_forwarded():
    declared = {name for name in (*vars(Task), *Task.__annotations__) if not name.startswith("_")}
    wrapper = frozen(Everything(), "place")
    assert declared - {*vars(FrozenTask), *vars(wrapper)} == set()
    # The list of checks below is complete as well.
    assert declared == {*FORWARDED, "branches", "samples", "train", "standard", "baselines", "steps", "untrained"} | {
        "recipe",
        "pictures",
        "choices",
        "constant_score",
        "diagnose",
        "fingerprints",
        "measuring",
        "lengthen",
    }


FORWARDED = (
    *("name", "splits", "folds", "schedules", "also", "execution", "obstacle", "describe_reference"),
    *("tunes_learning_rate", "shortens", "step_rules", "lengthens", "chooses_length"),
    *("tunes_threshold", "replays_norms"),
)


@pytest.mark.parametrize("member", FORWARDED)
def test_what_a_task_declares_is_the_tasks_own(member: str):
    task = Everything()
    assert getattr(frozen(task, "place"), member) == getattr(task, member) != getattr(Task, member)


def test_what_a_task_can_tell_is_the_tasks_own():
    wrapper, training = frozen(Everything(), "place"), Training(seed=7)
    assert wrapper.steps(training) == 1007
    assert wrapper.untrained(7) == 7.25
    assert wrapper.recipe("long") == {"recipe of": "long"}
    assert wrapper.constant_score() == 0.125
    assert wrapper.choices() == ("a choice",)
    assert wrapper.diagnose() == ("a doubt",)
    assert wrapper.fingerprints() == {"test": [0.5, 0.25]}
    assert wrapper.measuring(["own"]).branches.keys() == wrapper.branches.keys()
    longer = wrapper.lengthen(2)
    assert (longer.schedules, longer.branches.keys()) == (("2 times",), wrapper.branches.keys())
    one = {"kind": conformance.trees(Everything())["kind"]}
    assert wrapper.train(one, training, pacing=one) == Scored(7.0)
    pictures = wrapper.pictures({"kind": conformance.trees(Everything())["kind"]}, training, 3)
    assert [picture.image[0, 0].item() for picture in pictures] == [7, 7, 7]


def test_only_the_branches_that_are_searched_are_seen():
    task = Everything()
    wrapper = frozen(task, "place")
    assert wrapper.branches == {"kind": task.branches["kind"]}
    assert wrapper.standard == {"kind": task.standard["kind"]}
    assert list(wrapper.baselines) == [{"kind": "baseline/focal"}]
    assert conformance.identical(wrapper.samples(2, 0), {"kind": task.samples(2, 0)["kind"]})


def test_a_training_is_that_of_the_task_with_the_frozen_losses():
    task = TwoHeadsTask()
    criterion = conformance.trees(task)
    kept = bind({"place": parse(task.standard["place"])}, {"place": task.branches["place"]})
    seen: list[int] = []
    outcome = FrozenTask(task, kept).train(
        {"kind": criterion["kind"]}, Training(seed=3, split="test"), observe=lambda step, loss: seen.append(step)
    )
    assert isinstance(outcome, Scored)
    assert outcome == task.train({"kind": criterion["kind"], **kept}, Training(seed=3, split="test"))
    assert seen == list(range(1, len(seen) + 1))
    with pytest.raises(RequestError, match="loss for the branch named 'kind'"):
        FrozenTask(task, kept).train({}, Training(seed=3))


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_task(claim):
    claim(frozen(TwoHeadsTask(), "kind"))
