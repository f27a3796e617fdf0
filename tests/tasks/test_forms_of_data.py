"""Forms of data, batches, optimizers and metrics of a SupervisedTask: they train alike, short and whole, and repeat exactly."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from autoloss.errors import RequestError
from autoloss.space.loss import Loss, bind
from autoloss.tasks.data import Data
from autoloss.tasks.metric import SplitMetrics
from autoloss.tasks.splits import Split
from autoloss.tasks.supervised import SupervisedTask
from autoloss.training.checkpoints import Checkpoints
from autoloss.training.loop import Execution, fit
from autoloss.training.recipe import Recipe
from autoloss.training.training import Diverged, Scored, Training
from tests.tasks.toy import Items, Noisy, accuracy

ROWS = 48
RECIPE = Recipe(epochs=4, batch_size=8, learning_rate=0.1)
READING = {field.name for field in dataclasses.fields(Data)}


def rows(seed: int = 0) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


def network() -> nn.Module:
    return nn.Linear(4, 2)


class Named(nn.Module):
    """Takes its inputs by name and returns its prediction by name, as networks of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = network()

    def forward(self, left: Tensor, right: Tensor) -> Mapping[str, Tensor]:
        return {"hidden": left, "logits": self.linear(torch.cat([left, right], dim=1))}


def task(train: Any = None, valid: Any = None, build: Any = network, **others: Any) -> SupervisedTask:
    reading = {name: others.pop(name) for name in READING & others.keys()}
    given = {"recipe": RECIPE, "data": Data(**{"rows_per_sample": 16, **reading}), **others}
    train, valid = (rows(seed) if data is None else data for seed, data in enumerate((train, valid)))
    return SupervisedTask(build, train, valid, "softmax", given.pop("metric", accuracy), **given)


def train(made: SupervisedTask, formula: str = "-y * log(p)", execution: Execution | None = None, **training: Any):
    outcome = made.train(bind(Loss(formula), made.branches), Training(**{"seed": 0, **training}), execution)
    assert isinstance(outcome, Scored)
    return outcome


def items(pair: tuple[Tensor, Tensor]) -> list[tuple[Tensor, int]]:
    return [(row, int(label)) for row, label in zip(*pair, strict=True)]


FORMS: dict[str, Callable[[tuple[Tensor, Tensor]], Any]] = {
    "list of pairs": items,
    "longer items": lambda pair: [(row, label, {"name": "x"}, None, "text") for row, label in items(pair)],
    "dictionaries": lambda pair: [{"row": row, "label": label, "name": "x"} for row, label in items(pair)],
    "columns by name": lambda pair: {"row": pair[0], "labels": pair[1]},
    "lists of rows and labels": lambda pair: (list(pair[0]), pair[1].tolist()),
    "several tensors": lambda pair: TensorDataset(*pair, torch.arange(ROWS)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_same_rows_gives_the_same_numbers(name: str):
    made = task(FORMS[name](rows(0)), FORMS[name](rows(1)))
    expected = task()
    assert made.steps(Training(seed=0)) == expected.steps(Training(seed=0)) == 24
    assert train(made) == train(expected)
    assert train(made, fidelity=0.25) == train(expected, fidelity=0.25)
    for one, other in zip(made.samples(2, 0)["main"], expected.samples(2, 0)["main"], strict=True):
        assert one.prediction.equal(other.prediction)


def test_a_dictionary_of_inputs_reaches_the_network_by_name():
    def split(pair: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"left": pair[0][:, :1], "labels": pair[1], "right": pair[0][:, 1:]}

    by_name = train(task(split(rows(0)), split(rows(1)), Named))
    # As a tokenizer gives them, with the labels beside.
    pairs = [
        ({key: part for key, part in split(rows(seed)).items() if key != "labels"}, rows(seed)[1]) for seed in (0, 1)
    ]
    assert train(task(*pairs, Named)) == by_name
    found = by_name.score
    assert found > 0.9


def test_parts_of_an_item_are_chosen_by_key_or_position():
    triples = [[(0, row[:1], row[1:], label) for row, label in items(rows(seed))] for seed in (0, 1)]
    made = task(*triples, Named, inputs=(1, 2), target=3, output=lambda found: found["logits"])
    assert train(made).score > 0.9
    records = [[{"a": row, "b": row * 0, "species": label} for row, label in items(rows(seed))] for seed in (0, 1)]
    assert train(task(*records, inputs="a", target="species")) == train(task())


def test_a_function_collates_texts():
    texts = [["ab c", "b", "a a a b", "bb"][at % 4] for at in range(ROWS)]
    labels = [int("a" in text) for text in texts]

    def collate(batch: list[tuple[str, int]]) -> dict[str, Tensor]:
        length = max(len(text) for text, _ in batch)
        codes = [[ord(letter) % 8 for letter in text.ljust(length)] for text, _ in batch]
        return {"codes": torch.tensor(codes), "label": torch.tensor([label for _, label in batch])}

    made = task((texts, labels), (texts, labels), lambda: nn.EmbeddingBag(8, 2), collate_fn=collate)
    values = [loss for _, loss in train(made).curve]
    assert sum(values[-6:]) < sum(values[:6])


@pytest.mark.parametrize(
    "loader",
    [
        lambda data: DataLoader(data, batch_size=8, shuffle=True),
        lambda data: DataLoader(data, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7)),
        lambda data: DataLoader(data, batch_size=10, shuffle=True, drop_last=True),
        lambda data: DataLoader(data, batch_size=8, sampler=SubsetRandomSampler(range(20))),
        lambda data: DataLoader(data, batch_size=8, sampler=WeightedRandomSampler([1.0] * ROWS, 30)),
        lambda data: DataLoader(data, batch_sampler=[[0, 1, 2], [3, 4], [5, 6, 7, 8]]),
    ],
)
def test_a_loader_keeps_its_batches_and_repeats_them(loader: Callable[[Any], DataLoader[Any]]):
    given = loader(items(rows(0)))
    made = task(given)
    first = train(made)
    list(given)
    assert train(made) == first
    assert len(first.curve) == made.steps(Training(seed=0)) == 4 * len(given)
    assert len(train(made, fidelity=0.5).curve) == 2 * len(given)
    if given.batch_size:
        assert made.recipes["proxy"].batch_size == given.batch_size
    told = [text for text in made.choices() if "batch_size=8 of the recipe is not used" in text]
    assert len(told) == (given.batch_size == 10)


class Swapped(TensorDataset):
    """Has the other label in its items, and draws nothing."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        row, label = super().__getitem__(index)
        return row, 1 - label


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: DataLoader(data, batch_size=8)])
def test_the_items_of_a_class_of_ones_own_are_used(wrap: Callable[[Any], Any]):
    _, targets = Split(wrap(Swapped(*rows(0))), "train").first(ROWS)
    assert torch.equal(targets, 1 - rows(0)[1])


class ByEpoch(Sampler[int]):
    """Draws as samplers of several processes do: from its seed and epoch, or from a generator of NumPy."""

    def __init__(self, of_numpy: bool) -> None:
        self.epoch, self.seed = 0, 0
        self.random = np.random.default_rng(0) if of_numpy else None

    def __len__(self) -> int:
        return ROWS

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        drawn = self.random or np.random.RandomState(self.seed + self.epoch)
        yield from drawn.permutation(ROWS).tolist()


@pytest.mark.parametrize("of_numpy", [False, True])
def test_a_sampler_of_ones_own_draws_anew_in_each_epoch_and_for_each_seed(of_numpy: bool):
    split = Split(DataLoader(items(rows(0)), batch_size=ROWS, sampler=ByEpoch(of_numpy)), "train")
    drawn = [split.draw_order(RECIPE, torch.Generator().manual_seed(seed)) for seed in (0, 1, 0)]
    assert all(map(torch.equal, drawn[0], drawn[2]))
    assert len({tuple(batch.tolist()) for order in drawn[:2] for batch in order}) == 8


def test_a_loader_of_a_subset_evaluates_that_subset():
    seen: list[int] = []

    def metric(prediction: Tensor, target: Tensor) -> float:
        seen.append(len(target))
        return accuracy(prediction, target)

    train(
        task(valid=DataLoader(items(rows(1)), batch_size=7, sampler=SubsetRandomSampler(range(5, 25))), metric=metric)
    )
    assert seen[-1] == 20


def test_a_loader_without_indices_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            yield from items(rows(0))

    with pytest.raises(RequestError, match="expected a pair"):
        task(DataLoader(Stream(), batch_size=8))
    with pytest.raises(RequestError, match="a batch size"):
        task(DataLoader(items(rows(0)), batch_size=None))


def test_a_loader_that_changes_its_batches_itself_is_refused():
    class Mixing(DataLoader):
        def __iter__(self):
            yield from ((inputs, 1 - target) for inputs, target in super().__iter__())

    with pytest.raises(RequestError, match="is a Mixing, which makes its batches in an __iter__ of its own"):
        task(Mixing(items(rows(0)), batch_size=8))


SIZED = [torch.randn(3, 5 + at % 3, 6, generator=torch.Generator().manual_seed(at)) for at in range(12)]


def test_images_of_different_sizes_are_trained_one_by_one():
    pairs = [(image, (image[0] > 0).long()) for image in SIZED]
    small = Recipe(epochs=2, batch_size=1, evaluation_batch=1, learning_rate=0.5)
    made = task(pairs, pairs, lambda: nn.Conv2d(3, 2, 1), recipe=small)
    assert {tuple(sample.prediction.shape) for sample in made.samples(4, 0)["main"]} == {(1, 2, 5, 6)}
    assert train(made).score > 0.6
    with pytest.raises(RequestError, match=r"collate_fn=…\), which brings"):
        task(pairs, pairs, lambda: nn.Conv2d(3, 2, 1))


def test_a_metric_of_different_sizes_is_the_mean_over_images():
    totals = SplitMetrics([accuracy])
    for size, hit in ((2, 1.0), (3, 0.0)):
        target = torch.zeros(1, size, size).long()
        totals.add(torch.stack([target * 0 + hit, target * 0 + 0.5], dim=1), target)
    assert totals.values() == [0.5]


class WithImageList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1)

    def forward(self, images: Tensor | list[Tensor]) -> Tensor:
        return torch.cat([self.layer(image[None]).mean((2, 3)) for image in images])


def test_a_network_gets_a_list_of_images_that_differ_in_size():
    labels = [int(image[0].mean() > 0) for image in SIZED]
    made = task((SIZED, labels), (SIZED, labels), WithImageList, rows_per_sample=4)
    assert train(made).score == train(made).score
    assert made.samples(1, 0)["main"][0].prediction.shape == (4, 2, 1, 1)


def test_one_history_for_any_number_of_loaders_and_after_a_resume(tmp_path):
    outcomes = [train(task(Noisy(rows()), loaders=loaders)) for loaders in (0, 1, 2)]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    made = task(Noisy(rows()))

    class Stop(Exception):
        pass

    def stop(step: int, loss: float) -> None:
        if step == 13:
            raise Stop

    kept = Execution(checkpoints=Checkpoints(directory=tmp_path, is_due=lambda step: step % 5 == 0))
    with pytest.raises(Stop):
        made.train(bind(Loss("-y * log(p)"), made.branches), Training(seed=0), kept, stop)
    assert train(made, execution=kept) == outcomes[0]


def test_loading_leaves_the_global_generators_alone():
    split = Split(Noisy(rows()), "train")
    np.random.seed(3)
    np.random.randn(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    list(split.batches(torch.arange(ROWS).split(8)))
    assert (torch.get_rng_state() == before[0]).all()
    assert np.random.get_state()[1].tolist() == before[1]


class OwnGenerator(Items):
    def __init__(self, pair: tuple[Tensor, Tensor]) -> None:
        super().__init__(pair)
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row, label = super().__getitem__(index)
        return row + float(self.rng.normal()), label


def test_a_data_set_with_a_generator_of_its_own_is_seeded_or_refused():
    with pytest.raises(RequestError, match=r"random generator.*reseed="):
        task(OwnGenerator(rows()))

    def reseed(data: OwnGenerator, seed: int) -> None:
        data.rng = np.random.default_rng(seed)

    made = task(OwnGenerator(rows()), reseed=reseed)
    assert train(made) == train(made)


class SignMomentum(torch.optim.Optimizer):
    """An optimizer that torch does not have (Lion)."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            slow, fast = group["betas"]
            for weight in group["params"]:
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                weight.sub_(group["lr"] * (slow * mean + (1 - slow) * weight.grad).sign())
                mean.mul_(fast).add_(weight.grad, alpha=1 - fast)


OPTIMIZERS = {
    "AdamW": functools.partial(torch.optim.AdamW, weight_decay=0.3),
    "Lion": SignMomentum,
    "SGD": functools.partial(torch.optim.SGD, momentum=0.9),
}
SCHEDULES = {
    "one cycle": lambda optimizer, steps: OneCycleLR(optimizer, max_lr=0.1, total_steps=steps),
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_functions_of_torch_train_as_in_a_plain_loop(optimizer: str, schedule: str, factor: float):
    inputs, target = rows()
    steps = 12

    def build() -> nn.Module:
        torch.manual_seed(1)
        return network()

    plain, expected = build(), []
    made = OPTIMIZERS[optimizer](plain.parameters(), lr=0.01)
    scheduler = SCHEDULES[schedule](made, steps)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(plain(inputs), target)
        made.zero_grad()
        loss.backward()
        scheduled = made.param_groups[0]["lr"]
        made.param_groups[0]["lr"] = scheduled * factor
        made.step()
        made.param_groups[0]["lr"] = scheduled
        scheduler.step()
        expected.append(loss.item())
    own = build()
    recipe = Recipe(optimizer=OPTIMIZERS[optimizer], schedule=SCHEDULES[schedule], learning_rate=0.01)
    curve = fit(
        own,
        [None] * steps,
        lambda _: nn.functional.cross_entropy(own(inputs), target),
        recipe.scale_learning_rate(factor),
        steps,
    )
    assert not isinstance(curve, Diverged)
    assert [loss for _, loss in curve] == expected


def test_a_schedule_of_torch_goes_on_after_a_resume_and_ends_in_a_short_training(tmp_path):
    recipe = Recipe(epochs=4, batch_size=8, optimizer=OPTIMIZERS["AdamW"], schedule=SCHEDULES["one cycle"])
    made = task(recipe=recipe)
    whole = train(made)
    assert len(train(made, fidelity=0.25).curve) == 6
    seen = []

    def stop(step: int, loss: float) -> None:
        seen.append(step)
        if step == 17:
            raise KeyboardInterrupt

    kept = Execution(checkpoints=Checkpoints(directory=tmp_path, is_due=lambda step: step % 4 == 0))
    with pytest.raises(KeyboardInterrupt):
        made.train(bind(Loss("-y * log(p)"), made.branches), Training(seed=0), kept, stop)
    assert train(made, execution=kept) == whole


def test_what_a_recipe_says_of_functions_is_their_name():
    recipe = Recipe(optimizer=OPTIMIZERS["AdamW"], schedule=CosineAnnealingLR).scale_learning_rate(0.5)
    values = recipe.as_values()
    assert values["optimizer"] == "partial(torch.optim.adamw.AdamW, weight_decay=0.3)"
    assert values["schedule"] == "0.5 × torch.optim.lr_scheduler.CosineAnnealingLR"


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"optimizer": lambda parameters: torch.optim.AdamW(parameters)}, r"called with the parameters and lr=…"),
        ({"optimizer": lambda parameters, lr: "adam"}, "expected a torch.optim.Optimizer"),
        ({"optimizer": torch.optim.LBFGS}, r"is a LBFGS, whose step\(\) needs a closure"),
        ({"schedule": lambda optimizer: None}, "called with an optimizer and the number of steps"),
        ({"schedule": lambda optimizer, steps: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}, "step alone"),
    ],
)
def test_functions_that_cannot_be_used_are_named(recipe: dict[str, Any], message: str):
    with pytest.raises(RequestError, match=message):
        train(task(recipe=Recipe(epochs=1, **recipe)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"a": 1, "b": 2}] * 4, r"keys a, b; name the target as target=…"),
        ([{"label": 1, "name": "x"}] * 4, "no tensor .* the target 'label'"),
        ((torch.zeros(3, 4), ["a", "b", "c"]), "encode text"),
        ([(torch.zeros(4), "a")] * 4, "no tensor.*encode text"),
        ("rows", "expected a pair"),
    ],
)
def test_data_that_cannot_be_used_is_named(data: Any, message: str):
    with pytest.raises(RequestError, match=message):
        task(data)


def test_the_trainer_of_another_library_trains_short_slow_and_never_past_a_loss_that_is_not_finite():
    calls: list[tuple[float, float]] = []

    def own(made: nn.Module, loss: nn.Module, training: Training) -> None:
        calls.append((training.fidelity, training.learning_rate))
        np.random.seed(training.seed)
        optimizer = torch.optim.SGD(made.parameters(), lr=0.5 * training.learning_rate)
        for _ in range(round(20 * training.fidelity)):
            optimizer.zero_grad()
            loss(made(rows()[0]), rows()[1]).backward()
            optimizer.step()

    made = task(trainer=own)
    outcome = train(made)
    assert outcome.score > 0.8
    assert train(made) == outcome
    # Seeds of a search have 63 bits.
    assert len(train(made, seed=2**62).curve) == len(outcome.curve) == 20
    assert len(train(made, fidelity=0.25, learning_rate=0.5).curve) == 5
    assert calls[-1] == (0.25, 0.5)
    assert made.steps(Training(seed=0)) is None
    assert "own" in made.recipe("proxy")["trainer"]
    wrong = made.train(bind(Loss("exp(exp(exp(p + y + 1)))"), made.branches), Training(seed=0))
    assert wrong == Diverged(1, "the loss is not finite")

    def careless(made: nn.Module, loss: nn.Module, training: Training) -> None:
        for batch in range(3):
            with contextlib.suppress(Exception):
                loss(made(rows()[0]) * (math.nan if batch == 1 else 1.0), rows()[1]).backward()

    given = task(trainer=careless)
    outcome = given.train(bind(Loss("-y * log(p)"), given.branches), Training(seed=0))
    assert outcome == Diverged(2, "the loss is not finite")
    with pytest.raises(RequestError, match="never called the loss"):
        train(task(trainer=lambda *given: None))
    with pytest.raises(RequestError, match=r"At 0.01 of the schedule, train one step at least: max\(1"):
        train(made, fidelity=0.01)
    with pytest.raises(RequestError, match="a target that is a list; expected"):
        train(task(trainer=lambda made, loss, training: loss(made(rows()[0]), rows()[1].tolist())))


def test_another_metric_of_a_task_is_its_score():
    def recall(prediction: Tensor, target: Tensor) -> float:
        return accuracy(prediction[target == 1], target[target == 1])

    made = task(also={"recall": recall})
    chosen = made.with_metric("recall")
    one, other = train(made), train(chosen)
    assert other.score == one.also["recall"]
    assert other.also == {"accuracy": one.score}
    sample = chosen.samples(1, 0)["main"][0]
    measured = chosen.branches["main"].metric(sample.prediction, sample.context)
    assert measured == recall(sample.prediction.softmax(1).flatten(1), sample.context["target"])
    assert not math.isnan(measured)


def test_counts_are_numbers_and_no_classes():
    def draw(seed: int, most: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(ROWS, 4, generator=generator), torch.randint(most, (ROWS, 1), generator=generator)

    def closeness(prediction: Tensor, target: Tensor) -> float:
        return -(prediction - target).abs().mean().item()

    made = SupervisedTask(lambda: nn.Linear(4, 1), draw(0, 5), draw(1, 9), "none", closeness, recipe=RECIPE)
    told = [*made.choices(), *made.diagnose()]
    assert not [text for text in told if "class" in text]


def test_a_mark_of_missing_values_does_not_count_as_a_size():
    inputs, target = torch.randn(ROWS, 4), torch.randn(ROWS, 2)
    target[::3] = -999
    made = SupervisedTask(
        lambda: nn.Linear(4, 2), (inputs, target), (inputs, target), "none", accuracy, data=Data(ignore_index=-999)
    )
    assert not [text for text in made.diagnose() if "are of size" in text]


def test_tables_of_pandas_are_paired_by_place_and_read_whatever_the_kinds_of_their_numbers():
    pandas = pytest.importorskip("pandas")
    inputs, target = (column.numpy() for column in rows())
    table, wanted = pandas.DataFrame(inputs), pandas.Series(target)
    mixed = table.astype({0: "Float64"}).assign(flag=[True, False] * (ROWS // 2))
    found, classes = Split((mixed, wanted.astype("Int64")), "train").whole() or (None, None)
    assert torch.equal(found, torch.cat([rows()[0], torch.tensor([1.0, 0.0]).repeat(ROWS // 2)[:, None]], dim=1))
    assert torch.equal(classes, rows()[1])
    assert Split((table.mask(table > 0), wanted), "train").whole()[0].isnan().any()
    whole = pandas.DataFrame({"index": [0, 1, 2]})
    assert Split((whole, wanted[:3]), "train").whole()[0].dtype == torch.int64
    # As in scikit-learn, rows are paired by their place, not by their labels.
    assert torch.equal(Split((table, wanted[::-1]), "train").whole()[1], rows()[1].flip(0))
    with pytest.raises(RequestError, match="is not numeric"):
        Split((table.assign(name="a"), wanted), "train")
    with pytest.raises(RequestError, match="The train data is a DataFrame; expected a pair"):
        Split(table, "train")
