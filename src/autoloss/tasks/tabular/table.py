"""Reading a table from a CSV file; its faults are listed by line and column.

Columns of numbers are kept, columns of text become one-hot, columns of dates become numbers.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from autoloss.errors import RequestError, join_names, quote, unknown
from autoloss.tasks.files import report_faults
from autoloss.tasks.tabular.metrics import Kind
from autoloss.tasks.tabular.rows import Table, build_table

DAY_SECONDS = 86_400.0
YEAR_DAYS, WEEK_DAYS = 365.25, 7.0


def _parse_iso(text: str) -> datetime:
    if not text[:4].isdigit() or text[4:5] != "-":
        raise ValueError(f"{text} does not begin with a year and a dash")
    return datetime.fromisoformat(text)


NOTATIONS: Mapping[str, Callable[[str], datetime]] = {
    "2026-01-31": _parse_iso,
    "2026/01/31": lambda text: datetime.strptime(text, "%Y/%m/%d"),
    "31.01.2026": lambda text: datetime.strptime(text, "%d.%m.%Y"),
    "31/01/2026": lambda text: datetime.strptime(text, "%d/%m/%Y"),
    "01/31/2026": lambda text: datetime.strptime(text, "%m/%d/%Y"),
}
"""An example of each notation, and its parser; the first may have a time, as in 2026-01-31 17:30."""


def parse_date(text: str, notation: str) -> float | None:
    """Return the seconds since 1970, or None where the text has another notation."""
    try:
        found = NOTATIONS[notation](text)
    except ValueError:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def find_notations(texts: Sequence[str], share: float) -> list[str]:
    """Return the notations that at least a share of the texts fit, the best first; several where day and month look alike."""
    fits = {notation: sum(parse_date(text, notation) is not None for text in texts) for notation in NOTATIONS}
    best = max(fits.values())
    return [notation for notation, fit in fits.items() if fit == best] if texts and best >= share * len(texts) else []


def encode_dates(name: str, seconds: Sequence[float]) -> dict[str, list[float]]:
    """Return a column of dates as numbers: days, the position in the year and in the week, and in the day where times differ."""
    columns = {f"{name}: day": [second / DAY_SECONDS for second in seconds]}
    periods = {"year": YEAR_DAYS * DAY_SECONDS, "week": WEEK_DAYS * DAY_SECONDS}
    if any(second % DAY_SECONDS for second in seconds if not math.isnan(second)):
        periods["time"] = DAY_SECONDS
    for period, length in periods.items():
        angles = [2 * math.pi * (second % length) / length for second in seconds]
        columns[f"{name}: {period}, sine"] = [math.sin(angle) for angle in angles]
        columns[f"{name}: {period}, cosine"] = [math.cos(angle) for angle in angles]
    return columns


MISSING = frozenset({"", "?", "na", "n/a", "nan", "null"})
"""Texts of a missing value, in lower case."""
NUMERIC_SHARE = 0.9
"""Share of numbers from which a column is one of numbers, and likewise of dates; any other value in it is then a fault."""
DISTINCT_TEXTS = 50
"""Maximum number of distinct values in a column of categories."""
LEAST_IDENTIFIERS = 50
"""Number of rows from which whole numbers that are all different may be identifiers."""
EXACT = 2.0**53
"""From here on, floats do not tell all whole numbers apart."""
LARGEST = 1e100
"""Upper limit of numbers, whose squares must be finite when inputs are standardised."""

Missing = Literal["refuse", "impute", "drop"]
"""Handling of missing values: they are faults; numbers are imputed and texts get a category of their own; rows are dropped."""


@dataclass(slots=True)
class Faults:
    """Collects the faults of a file, so that all are reported at once."""

    path: Path
    targets: Sequence[str] = ()
    dropped: Sequence[str] = ()
    found: list[tuple[int, str | None, str]] = field(default_factory=list)
    missing: Counter[str] = field(default_factory=Counter[str])
    """Column → its missing values."""

    def add(self, line: int, column: str | None, what: str) -> None:
        """Add the fault of a line, or of its value in a column."""
        place = f"line {line}" + (f", column {quote(column)}" if column is not None else "")
        self.found.append((line, column, f"{place}: {what}"))

    def check(self) -> None:
        """Raise a RequestError that lists the faults, if there are any."""
        if not self.found:
            return
        listed = [text for *_, text in sorted(self.found, key=lambda fault: fault[0])]
        # A target can be neither left out nor filled in.
        others = dict.fromkeys(column for _, column, _ in self.found if column not in self.targets)
        names = [column for column in others if column is not None]
        drop = ",".join([*self.dropped, *(names if 0 < len(names) <= 3 else ["<names>"])])
        leave = f", or leave columns out with --set drop={drop}" if others else ""
        advice = f"Correct the file{leave}."
        if self.missing:
            counts = join_names([f"{quote(column)} {count}" for column, count in self.missing.most_common()])
            fill = "--set missing=impute fills them in, " * bool(self.missing.keys() - set(self.targets))
            advice = f"Missing values by column: {counts}. {fill}--set missing=drop drops their rows; or correct the file{leave}."
        raise report_faults(self.path.name, listed, advice)


@dataclass(frozen=True, slots=True)
class Cells:
    """The text of a file: the header, the stripped values by column, and the first line of each row."""

    header: tuple[str, ...]
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]


def read_csv(
    path: Path,
    target: str | None,
    kind: Kind,
    *,
    drop: Sequence[str] = (),
    positive: str | None = None,
    missing: Missing = "refuse",
) -> Table:
    """Read a CSV file with a header and a target of some kind of metric; faults are listed by line, the header's is 1, and column.

    Imputed numbers are NaN in the table, with a column that says where; rows without a target are dropped unless missing
    values are refused. The positive class is the last in order when None.
    """
    if target is None:
        raise RequestError(f"Give the column to predict: --set target=<one of {join_names(read_header(path))}>.")
    found = read_columns(path, [target], drop=drop, missing=missing)
    place = f"column {target!r} of {path.name} (lines {found.lines[0]} to {found.lines[-1]})"
    inputs, labels = found.inputs, found.targets[target]
    table = build_table(inputs, found.names, labels, kind, positive=positive, place=place, lines=found.lines)
    return replace(table, used=found.used, left_out=found.left_out)


def read_header(path: Path) -> tuple[str, ...]:
    """Return the names of a file's columns."""
    return _read_cells(path, Faults(path)).header


@dataclass(frozen=True, slots=True)
class ColumnsRead:
    """The columns of the file `file`: inputs (N, F) with names, the N numbers or texts of each target, the line of each row.

    `used` maps a column of the file to how it is used as an input. `left_out` rows lack a value that they need.
    """

    file: str
    inputs: NDArray[np.float64]
    names: tuple[str, ...]
    targets: Mapping[str, list[float] | list[str]]
    lines: Sequence[int]
    used: Mapping[str, str]
    left_out: int


def read_columns(path: Path, targets: Sequence[str], *, drop: Sequence[str], missing: Missing) -> ColumnsRead:
    """Read a CSV file with a header; all columns but the targets and the dropped ones are inputs."""
    faults = Faults(path, targets, drop)
    cells = _read_cells(path, faults)
    left_out = dict.fromkeys((*targets, *drop))
    if both := sorted({*targets} & {*drop}):
        raise RequestError(
            f"The column {both[0]!r} of {path.name} has a use, and is to be dropped. Remove it from drop."
        )
    for name in left_out:
        if name not in cells.columns:
            error = unknown(f"column in {path.name}", name, cells.header)
            if any(parse_number(known) is not None for known in cells.header):
                error = RequestError(f"{error} The first line must hold the names of the columns.")
            raise error
    names = [name for name in cells.header if name not in left_out]
    if not names:
        raise RequestError(f"{path.name} has no input column besides {' and '.join(map(repr, targets))}.")
    rows = len(cells.lines)
    if missing != "refuse":
        cells = _drop_rows(path, cells, [*targets] if missing == "impute" else [*targets, *names])
    encoded = {name: _encode_column(name, cells, faults, impute=missing == "impute") for name in names}
    # A column may have the name that a category of another one gets.
    inputs = [(name, column) for columns in encoded.values() for name, column in columns.items()]
    used = {name: _describe_use(name, columns, cells.columns[name], drop) for name, columns in encoded.items()}
    found = {name: _parse_column(name, cells, faults) for name in targets}
    faults.check()
    columns, lacking = np.array([column for _, column in inputs]).T, rows - len(cells.lines)
    return ColumnsRead(path.name, columns, tuple(name for name, _ in inputs), found, cells.lines, used, lacking)


def _describe_use(
    name: str, columns: Mapping[str, Sequence[float]], texts: Sequence[str], dropped: Sequence[str]
) -> str:
    # Numbers of many digits differ as texts only.
    kinds = len(set(texts))
    if kinds == 1:
        return "the same in each row"
    if name in columns:
        are_whole = all(value.is_integer() for value in columns[name])
        advice = f", different in each row; if it is an identifier: --set drop={','.join([*dropped, name])}"
        return "number" + advice * (are_whole and LEAST_IDENTIFIERS <= kinds == len(texts))
    return "date" if f"{name}: day" in columns else f"{len(columns)} categories"


def _read_cells(path: Path, faults: Faults) -> Cells:
    rows = _read_records(path)
    if not rows:
        raise RequestError(f"{path.name} is empty; expected a header with column names and then one row per line.")
    header = _read_header(path, rows[0], faults)
    if len(rows) == 1:
        raise RequestError(f"{path.name} holds no rows after its header in line {rows[0][0]}. Add rows.")
    kept = [(line, row) for line, row in rows[1:] if len(row) == len(header)]
    for line, row in rows[1:]:
        if len(row) != len(header):
            faults.add(line, None, f"{len(row)} values where the header has {len(header)} columns")
    columns = {name: [row[index] for _, row in kept] for index, name in enumerate(header)}
    return Cells(header, columns, [line for line, _ in kept])


def _read_records(path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows that are not blank, with stripped cells, each with its first line."""
    text = _read_text(path)
    # Names may hold commas and line breaks; they are then quoted.
    first = re.match(r'(?:"[^"]*"|[^"\n])*', text.lstrip("\r\n"))
    delimiter = max(",;\t", key=re.sub(r'"[^"]*"', "", first[0] if first else "").count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True, skipinitialspace=True)
    rows: list[tuple[int, list[str]]] = []
    line = 1
    try:
        for row in reader:
            if len(row) > 1 or "".join(row).strip():
                rows.append((line, [cell.strip() for cell in row]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise RequestError(f"{path.name}, line {line}: {error}. Check the quotes from there on.") from None
    return rows


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}. Give the path of a CSV file.") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        found = f", line {line}: byte 0x{raw[error.start]:02x} is not UTF-8"
        # The first bytes of a zip file, which Excel's and LibreOffice's workbooks are, and of gzip.
        found = {b"PK": " is a workbook or an archive", b"\x1f\x8b": " is compressed"}.get(raw[:2], found)
        raise RequestError(f"{path.name}{found}. Save the table as CSV in UTF-8.") from None


def _read_header(path: Path, row: tuple[int, list[str]], faults: Faults) -> tuple[str, ...]:
    line, given = row
    if all(parse_number(name) is not None for name in given):
        raise RequestError(f"{path.name}, line {line}: only numbers; expected a header with the names of the columns.")
    first: dict[str, int] = {}
    # One without a name, such as the index that pandas writes, has a name by which it can be left out.
    names = [name or f"column_{index}" for index, name in enumerate(given, start=1)]
    for index, name in enumerate(names):
        what = "" if given[index] else "the header gives it no name"
        if first.setdefault(name, index) != index:
            what = f"the same name is used by columns {first[name] + 1} and {index + 1}"
        if what and name not in faults.dropped:
            faults.add(line, name, what)
    return tuple(names)


def _drop_rows(path: Path, cells: Cells, names: Sequence[str]) -> Cells:
    """Return the rows that have a value in each of the columns."""
    absent = {name: [_is_missing(text) for text in cells.columns[name]] for name in names}
    kept = [row for row in range(len(cells.lines)) if not any(column[row] for column in absent.values())]
    if not kept:
        counts = join_names([f"{quote(name)} {sum(column)}" for name, column in absent.items() if any(column)])
        raise RequestError(
            f"Every row of {path.name} lacks a value; missing values by column: {counts} of {len(cells.lines)}. Use "
            "--set missing=impute, or leave these columns out with --set drop=<names>."
        )
    columns = {name: [column[row] for row in kept] for name, column in cells.columns.items()}
    return Cells(cells.header, columns, [cells.lines[row] for row in kept])


def _is_missing(text: str) -> bool:
    return text.lower() in MISSING


def _parse_column(name: str, cells: Cells, faults: Faults) -> list[float] | list[str]:
    """Return a column as numbers if nearly all of its values are, else as text; missing and other values are faults."""
    present = _list_present(name, cells, faults)
    numbers = [parse_number(text) for _, text in present]
    if sum(number is not None for number in numbers) < NUMERIC_SHARE * len(numbers):
        return [text for _, text in present]
    _add_strange(name, present, numbers, "a finite number", faults)
    # Classes may be whole numbers of more digits than a float holds.
    return [
        int(text) if abs(number) >= EXACT and text.lstrip("+-").isdecimal() else number
        for (_, text), number in zip(present, numbers, strict=True)
        if number is not None
    ]


def _list_present(name: str, cells: Cells, faults: Faults | None) -> list[tuple[int, str]]:
    """Return the values of a column that are there, each with its line; the first missing one is a fault of the column."""
    present: list[tuple[int, str]] = []
    for line, text in zip(cells.lines, cells.columns[name], strict=True):
        if not _is_missing(text):
            present.append((line, text))
        elif faults is not None:
            faults.missing[name] += 1
            if faults.missing[name] == 1:
                faults.add(line, name, f"the value is missing ({quote(text)})" if text else "the value is missing")
    return present


def _add_strange(
    name: str, present: Sequence[tuple[int, str]], found: Sequence[float | None], expected: str, faults: Faults
) -> None:
    for (line, text), value in zip(present, found, strict=True):
        if value is None:
            faults.add(line, name, f"{quote(text)} is not {expected}, as the column's other values are")


def _encode_column(name: str, cells: Cells, faults: Faults, impute: bool) -> dict[str, list[float]]:
    """Return the inputs of a column by name: itself, the parts of a date, or one column of 0 and 1 for each distinct text.

    To impute, missing numbers and dates are NaN and a column says where; a missing text is a category of its own.
    """
    present = _list_present(name, cells, None if impute else faults)
    absent = [_is_missing(text) for text in cells.columns[name]] if impute else []
    values = [parse_number(text) for _, text in present]
    expected, columns = "a finite number", {}
    if sum(value is not None for value in values) < NUMERIC_SHARE * len(values) or not present:
        notations = find_notations([text for _, text in present], NUMERIC_SHARE)
        if not notations:
            return _encode_texts(name, [text for _, text in present], absent, faults)
        if len(notations) > 1:
            faults.add(1, name, f"dates are ambiguous ({' or '.join(notations)}); write them as 2026-01-31")
        values = [parse_date(text, notations[0]) for _, text in present]
        expected = f"a date such as {notations[0]}"
    _add_strange(name, present, values, expected, faults)
    known = iter([0.0 if value is None else value for value in values])
    filled = [math.nan if gone else next(known) for gone in absent] if impute else list(known)
    columns = {name: filled} if expected == "a finite number" else encode_dates(name, filled)
    return columns | ({f"{name}: missing": [float(gone) for gone in absent]} if any(absent) else {})


def _encode_texts(name: str, present: Sequence[str], absent: Sequence[bool], faults: Faults) -> dict[str, list[float]]:
    texts = sorted(set(present))
    decimal = 0 < NUMERIC_SHARE * len(texts) <= sum(parse_number(text.replace(",", ".")) is not None for text in texts)
    if decimal or len(texts) > DISTINCT_TEXTS:
        odd = next((text for text in texts if parse_number(text) is None), texts[0])
        rule = "write numbers with a decimal point, and leave a missing one empty"
        advice = rule if decimal else f"categories have at most {DISTINCT_TEXTS}"
        faults.add(1, name, f"{len(texts)} different texts, such as {quote(odd)}; {advice}")
        return {}
    known = iter(present)
    values = [None if gone else next(known) for gone in absent] if absent else list(present)
    columns = {f"{name}={text}": [float(value == text) for value in values] for text in texts}
    return columns | ({f"{name}: missing": [float(gone) for gone in absent]} if any(absent) else {})


def parse_number(text: str) -> float | None:
    """Return the finite number that a cell holds; None if it holds none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < LARGEST and "_" not in text else None
