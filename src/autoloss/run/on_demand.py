"""Rows of a run, each read from its store, and checked, when it is asked for: of a hundred thousand, what is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final, overload

from autoloss.run.columns import Columns
from autoloss.search.records import Candidate, Individual
from autoloss.store.store import Store, StoreError


@final
class Children(Mapping[int, Candidate]):
    """The children of a run by number, each read from the store when it is asked for, and then kept: rows never change."""

    def __init__(self, directory: Path, columns: Columns) -> None:
        self._directory = directory
        self._columns = columns
        self._known: dict[int, Candidate] = {}

    def __getitem__(self, number: int) -> Candidate:
        if number not in self._known:
            if number not in self._columns:
                raise KeyError(number)
            with Store(self._directory) as store:
                self._known[number] = _present(store.child(number), store, "child", number)
        return self._known[number]

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and number in self._columns

    def __iter__(self) -> Iterator[int]:
        return iter(self._columns.numbers)

    def __len__(self) -> int:
        return len(self._columns.numbers)


@final
class Individuals(Sequence[Individual]):
    """The children that have an outcome, in order, each read from the store when it is asked for."""

    def __init__(self, directory: Path, children: Children, columns: Columns) -> None:
        self._directory = directory
        self._children = children
        self._columns = columns
        self._numbers = columns.finished

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Individual: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Individual]: ...
    def __getitem__(self, index: int | slice) -> Individual | Sequence[Individual]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        child = self._children[self._numbers[index]]
        root = self._columns.root(child.id)
        with Store(self._directory) as store:
            return Individual(child, _present(store.outcome(root), store, "outcome", root))


def _present(row: Any, store: Store, table: str, number: int) -> Any:
    if row is None:
        raise StoreError(f"{store.path}: the row of {table} {number} is missing. Restore the file from a copy.")
    return row
