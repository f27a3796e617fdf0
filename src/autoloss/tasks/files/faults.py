"""Faults of data files, each with what was found, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError
from autoloss.untrusted_json import parse_json

FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one file."""

    file: Path
    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.found}; expected {self.expected}. {self.remedy}"


class FaultyFile(RequestError):
    """Raised when a faulty file is read."""

    def __init__(self, fault: Fault) -> None:
        # The fault alone is the argument, so that the error survives pickling between processes.
        super().__init__(fault)
        self.fault = fault


def report_faults(name: str, faults: Sequence[Fault], inspected: str = "") -> RequestError:
    """Return the error that lists the first twenty faults of a data set.

    Args:
        inspected: How much of the data set was inspected, if not all of it.
    """
    lines = [f"\n  {fault}" for fault in faults[:FAULTS_SHOWN]]
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"\n  and {len(faults) - FAULTS_SHOWN} more")
    return RequestError(f"{name} cannot be used as it is:{''.join(lines)}{inspected and chr(10)}{inspected}")


def missing_file(file: Path, expected: str) -> Fault:
    """Return the fault of a file that does not exist."""
    return Fault(
        file,
        "there is no such file",
        expected,
        "Add it, correct the path, or remove its name from the list of the split.",
    )


@contextmanager
def report_decoding(file: Path, expected: str) -> Iterator[None]:
    """Turn every error that occurs while a file is read into a `FaultyFile`; a damaged one can make a decoder raise anything.

    Args:
        expected: Expected content, for messages.
    """
    try:
        yield
    except FaultyFile:
        raise
    except (FileNotFoundError, IsADirectoryError):
        raise FaultyFile(missing_file(file, expected)) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        # Pillow repeats the path.
        found = f"cannot be decoded ({reason.replace(f' {str(file)!r}', '')})"
        raise FaultyFile(Fault(file, found, expected, "Copy it again from its source, or leave it out.")) from None


def read_json(file: Path, expected: str) -> Any:
    """Read a JSON file.

    Raises:
        FaultyFile: It is missing or cannot be decoded.
    """
    with report_decoding(file, expected):
        return parse_json(file.read_bytes())


REMEDY = "Correct it in the file, or remove it."


def name_problems(file: Path, place: str, problems: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return the problems of a place in a file, each as (found, expected), as faults."""
    return [Fault(file, f"{place} {found}", expected, REMEDY) for found, expected in problems]
