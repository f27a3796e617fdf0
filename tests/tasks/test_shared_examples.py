"""Data that a search would accept in silence: splits that share their examples, and a single class."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, SubsetRandomSampler, TensorDataset

import autoloss
from autoloss.errors import RequestError


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, (inputs[:, 0] > 0).long()


def accuracy(prediction: torch.Tensor, target: torch.Tensor) -> float:
    return (prediction.argmax(1) == target).double().mean().item()


class Network(torch.nn.Linear):
    """Takes inputs of 16 bits as well."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.float())


def make(train: object, valid: object, test: object = None) -> autoloss.SupervisedTask:
    recipe = autoloss.Recipe(epochs=1, batch_size=16)
    return autoloss.SupervisedTask(lambda: Network(4, 2), train, valid, "softmax", accuracy, test=test, recipe=recipe)


class Rows(Dataset):
    def __init__(self, data: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data[0])

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return self.data[0][row], int(self.data[1][row])


def sample(first: int, end: int) -> DataLoader:
    """Return a loader of some rows of a data set that all loaders have."""
    return DataLoader(ALL, batch_size=8, sampler=SubsetRandomSampler(range(first, end)))


A, B = draw(64, 0), draw(64, 1)
SHORT = A[0].bfloat16(), A[1]
HALF = tuple(torch.cat([one[:40], other[:24]]) for one, other in zip(A, B, strict=True))
ROWS, ALL = Rows(A), TensorDataset(*A)
CASES = {
    "the same tensors": ((A, A), ["64 of 64 valid examples are in the train data"]),
    "equal tensors in another order": ((A, tuple(part.flip(0) for part in A)), ["64 of 64 valid"]),
    "most of them": ((A, HALF), ["40 of 64 valid"]),
    "of 16 bits": ((SHORT, SHORT), ["64 of 64 valid"]),
    "all three": ((A, A, A), ["64 of 64 valid", "test examples are in the train", "test examples are in the valid"]),
    "the same data set": ((ROWS, ROWS), ["64 of 64 valid"]),
    "two data sets of the same rows": ((Rows(A), Rows(A)), ["64 of 64 valid"]),
    "samplers of one data set": ((sample(0, 40), sample(10, 50)), ["30 of 40 valid"]),
    "samplers of different rows": ((sample(0, 40), sample(40, 64)), []),
    "different tensors": ((A, B), []),
    "different data sets": ((Rows(A), Rows(B)), []),
}


@pytest.mark.parametrize("name", CASES)
def test_splits_that_share_their_examples_are_named(name):
    data, expected = CASES[name]
    found = [text for text in make(*data).diagnose() if "Split the data." in text and "examples" in text]
    assert len(found) == len(expected)
    assert all(part in text for part, text in zip(expected, found, strict=True))


def test_a_search_on_one_class_is_refused_as_check_says(tmp_path):
    task = make((A[0], torch.zeros(64, dtype=torch.long)), B)
    assert (
        "nothing can be learned"
        in autoloss.check(task, rates=False, settings={"rejection.engine": "reference", "rejection.steps": 15}).doubts[
            0
        ]
    )
    with pytest.raises(RequestError, match="All train targets are 0: nothing can be learned from them"):
        autoloss.search(task, directory=tmp_path / "run", workers=0, evaluations=2)
