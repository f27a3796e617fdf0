"""Parts of every script: arguments, processes, writing of results, and the figures that docs/results.md repeats."""

from __future__ import annotations

import argparse
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from multiprocessing import get_context, parent_process
from pathlib import Path
from statistics import fmean
from typing import Any

from machine import describe_machine

NOT_RUN = "not_run"
"""The key of the reason, in the result of a script that something is missing for."""


class NoRowError(KeyError):
    """A list of a result lacks the row of a figure, as that of a smaller sample may."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a script's result.

    Args:
        path: Where it is: keys, and for a list of rows the values that select one, `("rows", {"loss": "gAcc"}, "ratio")`.
        digits: Decimals that are shown; negative ones round to tens, hundreds and so on.
        percent: Whether it is shown as a percentage.
    """

    path: Sequence[str | Mapping[str, Any]]
    digits: int = 2
    percent: bool = False

    def format(self, result: Mapping[str, Any]) -> str:
        """Return the number as text. Of a list of numbers it is the mean, of any other list the length.

        Raises:
            KeyError: The result does not hold it.
        """
        found: Any = result
        for step in self.path:
            found = found[step] if isinstance(step, str) else _select(found, step)
        if isinstance(found, list | tuple):
            numbers = [each for each in found if isinstance(each, int | float)]
            found = fmean(numbers) if numbers else len(found)
        if found is None or isinstance(found, bool):
            return {None: "–", True: "yes", False: "no"}[found]
        digits = 0 if isinstance(found, int) else self.digits
        number = (100 if self.percent else 1) * Decimal(str(found))
        # Halves are rounded up, as the page does: 1.605 is 1.61.
        rounded = number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
        text = f"{rounded:,.{max(digits, 0)}f}".replace("-", "−")
        return f"{text} %" if self.percent else text


def _select(rows: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    for row in rows:
        if wanted.items() <= {name: row.get(name) for name in wanted}.items():
            return row
    raise NoRowError(f"no row with {dict(wanted)}")


def make_parser(doc: str | None, **sizes: int | float) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every script, described by the first line of its docstring.

    Args:
        sizes: Further arguments that are numbers, with their defaults.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--out", type=Path, help="also write the JSON document to this file")
    for name, size in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(size), default=size, help=f"{size} by default")
    return parser


def parse_arguments(parser: argparse.ArgumentParser, argv: Sequence[str] | None, **quick: Any) -> argparse.Namespace:
    """Add `--quick` and parse.

    Args:
        argv: The command line; that of the process when None.
        quick: The defaults of other arguments under `--quick`; what the command line names still wins.
    """
    sizes = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in quick.items())
    parser.add_argument("--quick", action="store_true", help=f"the same figures from a smaller sample: {sizes}")
    if parser.parse_args(argv).quick:
        parser.set_defaults(**quick)
    return parser.parse_args(argv)


@contextmanager
def make_pool(processes: int, initializer: Callable[[], object] | None = None) -> Iterator[Executor]:
    """Return so many processes that share nothing with this one; with 0, a thread of this process.

    What has not begun when an error ends the block is not begun: it would be shown hours later.
    """
    pool: Executor
    if processes == 0:
        pool = ThreadPoolExecutor(1, initializer=initializer)
    else:
        pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin, (initializer,))
    with pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(initializer: Callable[[], object] | None) -> None:
    # A process of a pool waits for ever when the one that it belongs to is killed.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if initializer is not None:
        initializer()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def keep_rows(rows: Sequence[dict[str, Any]], arguments: argparse.Namespace, key: str = "rows") -> list[dict[str, Any]]:
    """Add the rows of other measurements that `--out` holds already, where `--only` names some; each row has its date."""
    rows = [{**row, "date": describe_machine()["date"]} for row in rows]
    if not (arguments.only and arguments.out and arguments.out.exists()):
        return rows
    measured = {row["name"] for row in rows}
    before = json.loads(arguments.out.read_text(encoding="utf-8"))[key]
    return [row for row in before if row["name"] not in measured] + rows


def emit(result: Mapping[str, Any], arguments: argparse.Namespace, show: Callable[[dict[str, Any]], object]) -> None:
    """Add the machine, write the result where `--out` asks for it, and print it."""
    document = {"machine": describe_machine(), **result}
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if arguments.json:
        print(json.dumps(document, ensure_ascii=False))
    else:
        show(document)
