"""The table of trained losses as a file: one row for each loss, in CSV, plain while it grows and compressed when it is done."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "results" / "lossbench.csv.gz"
DIGITS = 7
"""Significant digits of a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRow:
    """One loss with what its trainings came to; docs/lossbench.md describes each column.

    A score is None where the training diverged.
    """

    task: str
    number: int
    kind: str
    parent: int | None
    attempts: int
    formula: str
    factor: float
    learning_rate: float
    signature: tuple[str, ...]
    g: float
    gains: tuple[float, ...]
    size: int
    eighth_1: float | None
    quarter_1: float | None
    whole_1: float | None
    whole_2: float | None
    seconds_eighth: float
    seconds_quarter: float
    seconds_whole: float

    def __post_init__(self) -> None:
        # As it will be read: ties and tournaments are the same before and after a stop.
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _round(getattr(self, field.name)))


def _round(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_round(each) for each in typing.cast("Sequence[Any]", value))
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


COLUMNS = tuple(field.name for field in dataclasses.fields(LossRow))


def read_rows(path: Path) -> list[LossRow]:
    """Read a table, plain or compressed, sorted by task and number; a last row that was cut off by a kill is left out."""
    if not path.exists():
        return []
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    whole = text[: text.rfind("\n") + 1]
    rows = [_read_row(cells) for cells in csv.DictReader(io.StringIO(whole))]
    return sorted(rows, key=lambda row: (row.task, row.number))


def append_row(path: Path, row: LossRow) -> None:
    """Append a row to a plain table, after removing what a kill left of an unfinished one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(_write_rows([row], header=whole == 0))
        file.flush()


def write_table(path: Path, rows: Iterable[LossRow]) -> None:
    """Write a compressed table; equal rows give equal bytes."""
    path.write_bytes(gzip.compress(_write_rows(rows, header=True), mtime=0))


def _write_rows(rows: Iterable[LossRow], header: bool) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(COLUMNS)
    writer.writerows([_write_cell(getattr(row, name)) for name in COLUMNS] for row in rows)
    return text.getvalue().encode("utf-8")


def _write_cell(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(_write_cell, typing.cast("Sequence[Any]", value)))
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    return "" if value is None else str(value)


def _read_row(cells: dict[str, str]) -> LossRow:
    return LossRow(**{name: _read_cell(cells[name], kind) for name, kind in _column_types().items()})


@cache
def _column_types() -> dict[str, Any]:
    return typing.get_type_hints(LossRow)


def _read_cell(text: str, kind: Any) -> Any:
    if isinstance(kind, types.UnionType):
        return None if text == "" else typing.get_args(kind)[0](text)
    if typing.get_origin(kind) is tuple:
        return tuple(typing.get_args(kind)[0](part) for part in text.split())
    return kind(text)
