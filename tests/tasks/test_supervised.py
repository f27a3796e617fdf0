"""SupervisedTask: its forms of data, network and metric, what its metric is given, its defaults, and what wrong input gets."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.loss import Loss, bind
from autoloss.tasks.data import Data
from autoloss.tasks.metric import to_float
from autoloss.tasks.splits import Split
from autoloss.tasks.supervised import SupervisedTask
from autoloss.tasks.trainer_task import FullSchedule
from autoloss.training.recipe import Recipe
from autoloss.training.trainer import select_examples
from autoloss.training.training import Diverged, Scored, Training
from tests.tasks.toy import Items, Noisy, accuracy

RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=0.1)
ROWS = 96


def rows(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(ROWS, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def network() -> nn.Module:
    return nn.Linear(4, 2)


def task(
    build: Callable[[], nn.Module] | nn.Module = network,
    train: Any = None,
    valid: Any = None,
    activation: Any = "softmax",
    metric: Any = accuracy,
    **others: Any,
) -> SupervisedTask:
    given = {"recipe": RECIPE, "data": Data(rows_per_sample=16), **others}
    data = (rows(place) if split is None else split for place, split in enumerate((train, valid)))
    return SupervisedTask(build, *data, activation, metric, **given)


def trained(made: SupervisedTask, formula: str = "-y * log(p)", **training: Any) -> Scored:
    outcome = made.train(bind(Loss(formula), made.branches), Training(**{"seed": 0, **training}))
    assert isinstance(outcome, Scored)
    return outcome


class Loud(float):
    def __repr__(self) -> str:
        raise KeyboardInterrupt

    def __eq__(self, other: object) -> bool:
        raise KeyboardInterrupt

    __hash__ = float.__hash__


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        Loud(0.5),
        Decimal("0.5"),
        Fraction(1, 2),
        np.array(0.5),
        np.float16(0.5),
        torch.tensor(0.5),
        np.array(0.5 + 0j),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_metric_returns_a_number_of_any_type(value):
    found = to_float(value)
    assert (type(found), found) == (float, 0.5)
    assert to_float(True) == 1.0


@pytest.mark.parametrize(
    "value",
    [math.inf, 10**400, Decimal("-Infinity"), np.array(math.nan), np.ma.masked],
    ids=lambda value: str(value)[:9],
)
def test_a_number_that_is_no_float_is_undefined(value):
    assert math.isnan(to_float(value))


@pytest.mark.parametrize(
    "value", [1 + 2j, np.array(1 + 2j), torch.tensor(1 + 2j), "good", "0.7", None, Decimal("sNaN")], ids=repr
)
def test_what_is_no_number_is_named(value):
    kind = "None" if value is None else f"a {type(value).__name__}"
    advice = "Does it end with a return" if value is None else "Average over classes"
    with pytest.raises(RequestError, match=f"returned {kind}.*expected one number.*{advice}"):
        to_float(value)


def test_tensors_arrays_and_data_sets_of_the_same_rows_train_alike():
    expected = trained(task())
    for form in (
        lambda pair: tuple(part.numpy() for part in pair),
        lambda pair: (pair[0].double().numpy(), pair[1].numpy()),
        lambda pair: (pair[0].numpy(), pair[1].numpy().astype(np.uint16)),
        lambda pair: TensorDataset(*pair),
        Items,
    ):
        assert trained(task(train=form(rows(0)), valid=form(rows(1)))) == expected


def test_cross_entropy_learns():
    assert trained(task()).score > 0.9


def test_a_module_is_copied_with_its_weights():
    module = network()
    before = module.weight.clone()
    made = task(module)
    assert trained(made) == trained(made)
    assert bool((module.weight == before).all())
    raw = made.samples(1, seed=0)["main"][0].prediction
    assert made.samples(1, seed=0)["main"][0].prediction.equal(raw)


def test_the_metric_gets_activated_predictions_and_the_targets_own_type():
    seen: list[tuple[tuple[int, ...], torch.dtype, torch.dtype]] = []

    def metric(prediction: Tensor, target: Tensor) -> float:
        assert bool((prediction.sum(dim=1) - 1).abs().max() < 1e-5)
        seen.append((tuple(prediction.shape), prediction.dtype, target.dtype))
        return accuracy(prediction, target)

    made = task(
        train=(rows(0)[0], rows(0)[1].to(torch.uint8)),
        valid=(rows(1)[0], rows(1)[1].to(torch.uint8)),
        metric=metric,
    )
    made.samples(1, seed=0)
    sampled = len(seen)
    trained(made)
    assert set(seen[:sampled]) == {((16, 2), torch.float32, torch.uint8)}
    assert seen[sampled:] == [((ROWS, 2), torch.float32, torch.uint8)]


def test_a_torchmetrics_metric_is_streamed_and_agrees_with_the_function():
    from torchmetrics.classification import MulticlassAccuracy

    streamed = task(metric=MulticlassAccuracy(2, average="micro"), also={"own": accuracy})
    outcome = trained(streamed)
    assert outcome.score == pytest.approx(outcome.also["own"])
    assert trained(streamed) == outcome
    for one, other in zip(streamed.samples(2, 0)["main"], task().samples(2, 0)["main"], strict=True):
        assert one.prediction.equal(other.prediction)


@pytest.mark.parametrize(
    ("activation", "outputs", "target", "shape"),
    [
        ("softmax", 1, lambda x: (x[:, 0] > 0).long(), (ROWS,)),
        ("sigmoid", 1, lambda x: x[:, 0] > 0, (ROWS,)),
        ("sigmoid", 3, lambda x: (x[:, :3] > 0).long(), (ROWS, 3)),
        ("none", 1, lambda x: x[:, 0].double(), (ROWS,)),
        ("none", 1, lambda x: (3 * x[:, 0]).round().long(), (ROWS,)),
        ("none", 2, lambda x: x[:, :2], (ROWS, 2)),
    ],
)
def test_predictions_reach_the_metric_in_the_targets_shape(
    activation: str, outputs: int, target: Callable[[Tensor], Tensor], shape: tuple[int, ...]
):
    seen = []

    def metric(prediction: Tensor, target: Tensor) -> float:
        seen.append(tuple(prediction.shape))
        return -(prediction.float() - target.float()).square().mean().item()

    pairs = [(rows(seed)[0], target(rows(seed)[0])) for seed in (0, 1)]
    made = task(lambda: nn.Linear(4, outputs), *pairs, activation, metric)
    samples = made.samples(2, seed=0)["main"]
    branch = made.branches["main"]
    for sample in samples:
        assert sample.prediction.shape == (16, outputs, 1, 1)
        assert branch.ideal(sample.context).shape == sample.prediction.shape
        assert branch.metric(branch.ideal(sample.context), sample.context) == pytest.approx(0.0, abs=1e-6)
    outcome = trained(made, "(p - y) ** 2")
    assert seen[-1] == shape
    assert outcome.score > -0.5


@pytest.mark.parametrize(
    ("activation", "standard"), [("softmax", "baseline/ce"), ("sigmoid", "baseline/bce"), ("none", "baseline/mse")]
)
def test_the_standard_loss_follows_from_the_activation(activation: str, standard: str):
    assert task(activation=activation).standard == {"main": standard}
    assert task(activation=activation, standard="-y*log(p)").standard == {"main": "-y*log(p)"}


def test_a_training_at_another_learning_rate_is_that_of_the_recipe_times_the_factor():
    full = Recipe(epochs=1, batch_size=8, learning_rate=0.5)
    made = task(full=FullSchedule(recipe=full))
    slower = task(
        recipe=dataclasses.replace(RECIPE, learning_rate=RECIPE.learning_rate * 0.1),
        full=FullSchedule(recipe=dataclasses.replace(full, learning_rate=0.5 * 0.1)),
    )
    for schedule in ("proxy", "full"):
        assert trained(made, learning_rate=0.1, schedule=schedule) == trained(slower, schedule=schedule)
        assert trained(made, learning_rate=0.1, schedule=schedule) != trained(made, schedule=schedule)
    assert made.recipes == {"proxy": RECIPE, "full": full}
    assert trained(made) != trained(made, schedule="full")


def test_samples_that_are_undefined_or_already_at_their_best_are_redrawn():
    def metric(prediction: Tensor, target: Tensor) -> float:
        mean = target.float().mean().item()
        return math.nan if mean < 0.5 else accuracy(prediction, target)

    samples = task(metric=metric).samples(4, seed=0)["main"]
    assert len(samples) == 4
    assert all(sample.context["target"].float().mean() >= 0.5 for sample in samples)


def test_no_usable_samples_ask_for_more_rows():
    with pytest.raises(RequestError, match=r"Only 0 of 2 .* undefined on 100 .* Raise rows_per_sample, now 16"):
        task(metric=lambda prediction, target: math.nan).samples(2, seed=0)
    flickers = cycle([0.0, 1.0, 1.0, 0.0])
    with pytest.raises(
        RequestError, match=r"Of 2 usable samples some are not when they are measured again: .* without chance"
    ):
        task(metric=lambda prediction, target: next(flickers)).samples(2, seed=0)
    with pytest.raises(RequestError, match="already at its best on 100"):
        task(metric=lambda prediction, target: 1.0).samples(2, seed=0)


def test_predictions_and_metrics_that_are_no_numbers_have_reasons_of_their_own():
    class Breaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 2)
            self.broken = False

        def forward(self, inputs: Tensor) -> Tensor:
            self.broken = self.broken or self.training
            return self.linear(inputs) * (math.nan if self.broken and not self.training else 1.0)

    made = task(Breaks)
    criterion = bind(Loss("-y * log(p)"), made.branches)
    assert made.train(criterion, Training(seed=0)) == Diverged(48, "a prediction is not finite")
    for value in (math.nan, math.inf):
        made = task(metric=lambda prediction, target, value=value: value)
        assert made.train(criterion, Training(seed=0)) == Diverged(48, "the metric is not finite")


def test_short_trainings_measure_the_further_metrics_that_a_run_shows():
    plain = task(also={"own": accuracy, "other": accuracy})
    short, shown = (trained(made, fidelity=0.5) for made in (plain, plain.measuring(["own"])))
    assert (short.also, list(shown.also), shown.score) == ({}, ["own"], short.score)
    assert set(trained(plain).also) == {"own", "other"}


def test_a_further_metric_that_is_undefined_is_left_out():
    outcome = trained(task(also={"undefined": lambda prediction, target: math.nan, "own": accuracy}))
    assert outcome.also == {"own": outcome.score}


def test_images_are_samples_of_their_own():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6, 1, 4, 4, generator=generator)
    pair = (images, (images[:, 0] > 0).long())
    made = task(lambda: nn.Conv2d(1, 2, 1), pair, pair)
    assert [sample.prediction.shape for sample in made.samples(3, 0)["main"]] == [(1, 2, 4, 4)] * 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": (torch.zeros(0, 4), torch.zeros(0).long())}, "holds no examples"),
        ({"train": (torch.zeros(3, 4), torch.zeros(2).long())}, "3 inputs and 2 targets"),
        (
            {"train": DataLoader(TensorDataset(torch.zeros(3, 4), torch.zeros(3).long()), 8, drop_last=True)},
            "gives no batch: 3",
        ),
        ({"train": 5}, "expected a pair"),
        ({"train": (np.array([["a"], ["b"]]), np.array([0, 1]))}, "encode text"),
        ({"train": TensorDataset(torch.zeros(3, 4))}, "expected a pair"),
        ({"valid": (torch.zeros(3, 5), torch.zeros(3).long())}, r"cannot take the valid inputs.*\(3, 5\)|\(2, 5\)"),
        ({"train": (torch.zeros(3, 4), torch.full((3,), 2))}, "class indices from 2 to 2.*0 to 1"),
        ({"train": (torch.zeros(3, 4), torch.zeros(3, 7))}, r"\(2, 7\).*does not fit"),
        ({"build": 3}, "expected an nn.Module"),
        ({"build": lambda: 3}, "expected an nn.Module"),
        ({"build": lambda: nn.LSTM(4, 2)}, "returns a tuple"),
        ({"metric": 3}, "metric is 3"),
        ({"activation": "softmaks"}, "Did you mean 'softmax'"),
        ({"activation": None}, "activation is None"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_what_does_not_fit_together_is_named(wrong: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        task(**wrong)


def test_a_metric_that_returns_no_number_is_named():
    with pytest.raises(RequestError, match=r"Tensor of shape \(16, 2\)"):
        task(metric=lambda prediction, target: prediction).samples(1, seed=0)


def test_a_class_index_out_of_range_anywhere_in_a_tensor_is_found():
    inputs, target = rows(0)
    target[-1] = 7
    with pytest.raises(RequestError, match=r"Give 0 for -1: \(targets \+ 1\) // 2"):
        SupervisedTask(
            lambda: nn.Linear(4, 2),
            *[(torch.zeros(4, 4), torch.tensor([-1, 1, 1, -1]))] * 2,
            "softmax",
            lambda p, y: 0.5,
        )
    with pytest.raises(RequestError, match="class indices from 0 to 7"):
        task(train=(inputs, target))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ((-1.0, 1.0), "targets are -1 and 1, and the activation is sigmoid"),
        ((0, 255), "targets are 0 and 255.*0 for no and 1 for yes"),
        ((1, 2), "targets are 1 and 2"),
        ((-1.0, 0.0, 1.0), r"lie between -1 and 1.*Data\(ignore_index=…\)"),
    ],
)
def test_values_that_no_probability_comes_to_are_named(labels: tuple[float, ...], message: str):
    inputs = rows(0)[0]
    target = torch.tensor(labels)[torch.arange(ROWS) % len(labels)][:, None]
    with pytest.raises(RequestError, match=message):
        task(lambda: nn.Linear(4, 1), (inputs, target), (inputs, target), "sigmoid")


def test_missing_labels_that_are_named_and_soft_ones_are_probabilities():
    inputs = rows(0)[0]
    target = torch.tensor([-1.0, 0.0, 0.3])[torch.arange(ROWS) % 3][:, None]
    pair = (inputs, target)
    made = task(lambda: nn.Linear(4, 1), pair, pair, "sigmoid", data=Data(rows_per_sample=16, ignore_index=-1))
    assert not any("probabilities" in text for text in made.diagnose())


def test_several_labels_at_once_under_softmax_are_doubted():
    inputs, several = rows(0)[0], (torch.arange(3 * ROWS) % 2).float().reshape(ROWS, 3)
    soft = torch.rand(ROWS, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    for target, doubted in ((several, True), (soft, False)):
        made = task(lambda: nn.Linear(4, 3), (inputs, target), (inputs, target))
        assert any("use the activation sigmoid" in text for text in made.diagnose()) == doubted


def test_a_split_of_one_value_is_doubted():
    inputs, target = rows(0)
    targets = {"train": target.float()[:, None], "valid": torch.zeros(ROWS, 1)}
    made = task(lambda: nn.Linear(4, 1), *((inputs, one) for one in targets.values()), "sigmoid")
    assert [text for text in made.diagnose() if "All valid targets are 0" in text]


def test_a_function_that_returns_one_network_each_time_is_refused():
    one = network()
    with pytest.raises(RequestError, match="the same module each time"):
        task(lambda: one)
    assert task(one).train


@pytest.mark.parametrize(("outputs", "activation"), [(1, "sigmoid"), (3, "sigmoid"), (1, "none"), (3, "none")])
def test_it_says_how_many_times_the_loss_of_torch_the_standard_loss_is(outputs: int, activation: str):
    inputs = rows(0)[0]
    target = torch.rand(ROWS, outputs, generator=torch.Generator().manual_seed(0)).round()
    made = task(lambda: nn.Linear(4, outputs), (inputs, target), (inputs, target), activation)
    branch, prediction = made.branches["main"], torch.randn(ROWS, outputs)
    loss = bind(zoo.resolve(made.standard["main"], made.branches)[1], made.branches)["main"]
    here, theirs = loss(prediction, branch.make_context(prediction, target)), nn.MSELoss()
    if activation == "sigmoid":
        theirs = nn.BCEWithLogitsLoss()
    factor = round((here / theirs(prediction, target)).item(), 3)
    said = [text for text in made.choices() if f"it is {factor:g} times nn.{type(theirs).__name__}" in text]
    assert bool(said) == (factor != 1), made.choices()


class TwoOutputs(nn.Module):
    """In training the prediction, and an auxiliary one from a head of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.other = network(), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        return (self.main(inputs), self.other(inputs)) if self.training else self.main(inputs)


def test_an_auxiliary_prediction_adds_its_share_of_the_same_loss():
    plain, half, whole = (
        trained(task(TwoOutputs, recipe=Recipe(epochs=1, batch_size=ROWS, auxiliary=auxiliary))).curve[0][1]
        for auxiliary in (0.0, 0.5, 1.0)
    )
    assert half - plain == pytest.approx((whole - plain) / 2)
    assert whole > plain


class OneOfTwoOutputs(TwoOutputs):
    """Built without its auxiliary head, as GoogLeNet with aux_logits=False."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.named = named

    def forward(self, inputs: Tensor) -> Any:
        found = self.main(inputs)
        return {"out": found, "aux": None} if self.named else (found, None) if self.training else found


@pytest.mark.parametrize("named", [False, True])
def test_an_auxiliary_prediction_that_is_none_is_left_out(named):
    def build(kind: Callable[[], nn.Module]) -> nn.Module:
        torch.manual_seed(0)
        return kind()

    made = lambda kind, **recipe: trained(task(lambda: build(kind), recipe=Recipe(epochs=1, batch_size=ROWS, **recipe)))  # noqa: E731
    without = made(TwoOutputs, auxiliary=0.0)
    assert made(lambda: OneOfTwoOutputs(named)).curve[0] == without.curve[0]


@pytest.mark.parametrize("activation", ["none", "sigmoid"])
def test_whole_numbers_in_the_shape_of_the_prediction_are_values(activation):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 4, generator=generator)
    targets = torch.randint(2 if activation == "sigmoid" else 5, (ROWS, 2), generator=generator)
    data = inputs[::2], targets[::2]
    made = task(
        train=data,
        valid=(inputs[1::2], targets[1::2]),
        activation=activation,
        metric=lambda p, t: -abs(float((p - t).mean())),
    )
    said = " ".join([*made.choices(), *made.diagnose()])
    assert "classes in train" not in said
    assert "class indices" not in said


@pytest.mark.parametrize("given", [lambda made: made.parameters(), lambda made: [{"factor": 0.1}]])
def test_parameter_groups_of_another_form_are_refused(given):
    with pytest.raises(RequestError, match=r"A parameter group is .*expected dictionaries such as"):
        trained(task(groups=given))


def test_a_class_of_metrics_is_refused():
    with pytest.raises(RequestError, match=r"metric is the class Decimal; give an object of it: Decimal\(…\)"):
        task(metric=Decimal)


def test_parameter_groups_have_learning_rates_of_their_own():
    def frozen(made: nn.Module) -> list[dict[str, Any]]:
        return [{"params": made.parameters(), "factor": 0.0}]

    assert trained(task(groups=frozen)).score != trained(task()).score
    values = [loss for _, loss in trained(task(groups=frozen, recipe=Recipe(epochs=4, batch_size=ROWS))).curve]
    assert values == pytest.approx([values[0]] * 4)


def test_the_full_schedule_may_have_a_network_and_data_of_its_own():
    calls: list[str] = []

    def wider() -> nn.Module:
        calls.append("wider")
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    inputs, target = rows(2)
    made = task(
        full=FullSchedule(network=wider, data={"train": (inputs[:16], target[:16]), "valid": (inputs, 1 - target)})
    )
    assert made.steps(Training(seed=0, schedule="full")) == 8
    assert not calls
    proxy, full = trained(made), trained(made, schedule="full")
    assert calls == ["wider"]
    assert (len(proxy.curve), len(full.curve)) == (48, 8)
    assert proxy.score > 0.9
    assert full.score < 0.5


MISFITS: Mapping[str, FullSchedule] = {
    "In the full schedule: The network cannot process the train inputs": FullSchedule(network=lambda: nn.Linear(5, 2)),
    "In the full schedule: The test targets hold class indices from 5 to 6": FullSchedule(
        data={"test": (rows(2)[0], rows(2)[1] + 5)}
    ),
    "In the full schedule: The train inputs are not finite in 96 rows": FullSchedule(
        data={"train": (rows(2)[0] * math.nan, rows(2)[1])}
    ),
}


@pytest.mark.parametrize("said", MISFITS)
def test_what_would_end_the_training_of_the_full_schedule_is_said_before_the_search(said):
    assert not [text for text in task(full=FullSchedule(network=lambda: nn.Linear(4, 2))).diagnose() if "full" in text]
    (told,) = [text for text in task(full=MISFITS[said]).diagnose() if "full" in text]
    assert said in told


@pytest.mark.parametrize(("train", "full"), [(None, {}), (rows(), {"train": None})])
def test_a_task_needs_training_data(train, full):
    with pytest.raises(RequestError, match="The train data are None"):
        SupervisedTask(network, train, rows(1), "softmax", accuracy, full=FullSchedule(data=full))


@pytest.mark.parametrize("name", ["score", "threshold"])
def test_a_further_metric_has_a_name_of_its_own(name: str):
    with pytest.raises(RequestError, match=f"A further metric is named {name}, as the"):
        task(also={name: lambda prediction, target: 0.5})


def test_examples_are_measured_in_batches_of_their_own_size():
    seen: list[int] = []

    class Sizes(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            if not self.training:
                seen.append(len(inputs))
            return super().forward(inputs)

    made = task(lambda: Sizes(4, 2), recipe=Recipe(epochs=1, batch_size=32, evaluation_batch=40))
    seen.clear()
    trained(made)
    assert seen == [40, 40, 16]


def test_what_an_example_draws_depends_on_its_place_and_not_on_who_loads_it():
    order = [torch.tensor([0, 1]), torch.tensor([0, 2])]
    here, there = (
        list(Split(Noisy(rows()), "train", Data(loaders=loaders)).batches(order, seed=3)) for loaders in (0, 1)
    )
    torch.rand(5)
    later = list(Split(Noisy(rows()), "train").batches(order[1:], seed=3, first=1))
    for one, other in zip([*here, here[1]], [*there, *later], strict=True):
        assert one[0].equal(other[0])
    assert not here[0][0][0].equal(here[1][0][0])
    assert not here[0][0].equal(next(Split(Noisy(rows()), "train").batches(order, seed=4))[0])


def test_a_short_training_is_evaluated_on_the_same_examples_for_every_loss():
    seen: list[list[int]] = []

    def watching(prediction: Tensor, target: Tensor) -> float:
        seen.append(target.tolist())
        return accuracy(prediction, target)

    generator = torch.Generator().manual_seed(2)
    valid = torch.randn(3000, 4, generator=generator), torch.randint(0, 2, (3000,), generator=generator)
    made = task(valid=valid, metric=watching)
    for formula, seed in (("-y * log(p)", 0), ("(p - y) ** 2", 0), ("-y * p", 5)):
        trained(made, formula, seed=seed, fidelity=0.125)
    assert seen[-1] == seen[-2] == seen[-3]
    assert len(seen[-1]) == math.ceil(3000 * math.sqrt(0.125))
    trained(made)
    assert seen[-1] == valid[1].tolist()


@pytest.mark.parametrize(
    ("count", "fidelity", "least", "kept"),
    [
        (3000, 0.125, 512, 1061),
        (3000, 0.01, 512, 512),
        (400, 0.125, 512, 400),
        (3000, 1.0, 512, 3000),
        (100, 0.25, 64, 64),
    ],
)
def test_the_measurement_shrinks_with_the_root_of_the_share(count, fidelity, least, kept):
    found = select_examples(count, fidelity, least).tolist()
    assert len(found) == len(set(found)) == kept
    assert found == sorted(found)
    assert set(found) <= set(range(count))
    assert found == select_examples(count, fidelity, least).tolist()


def count_transposed(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(3)(prediction.transpose(0, 1), target)


@pytest.mark.parametrize(
    ("targets", "measure", "advice"),
    [
        (lambda y: torch.nn.functional.one_hot(y).float(), accuracy, "targets.argmax(dim=1)"),
        (lambda y: y, count_transposed, "prediction.argmax(dim=1)"),
    ],
)
def test_a_metric_that_expects_another_form_says_which_line_helps(targets, measure, advice):
    (inputs, first), (others, second) = rows(0), rows(1)
    with pytest.raises(RequestError, match=re.escape(advice)):
        task(train=(inputs, targets(first)), valid=(others, targets(second)), metric=measure).samples(1, 0)
