"""What is wrong with a file of a data set: what was found, what was expected, what to do, up to twenty at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoloss.errors import RequestError

FAULTS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One file that cannot be used."""

    file: Path
    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.found}; expected {self.expected}. {self.remedy}"


class FaultyFile(RequestError):
    """A file that cannot be used, met while it was read."""

    def __init__(self, fault: Fault) -> None:
        # The fault alone is the argument, so that the error survives pickling between processes.
        super().__init__(fault)
        self.fault = fault


def report_faults(name: str, faults: Sequence[Fault], looked: str = "") -> RequestError:
    """Build the one error that lists the faults of a data set, the first twenty of them.

    Args:
        looked: How much of the data set was looked at, where it was not all of it.
    """
    lines = [f"\n  {fault}" for fault in faults[:FAULTS_SHOWN]]
    if len(faults) > FAULTS_SHOWN:
        lines.append(f"\n  and {len(faults) - FAULTS_SHOWN} more")
    return RequestError(f"{name} cannot be used as it is:{''.join(lines)}{looked and chr(10)}{looked}")


def missing_file(file: Path, expected: str) -> Fault:
    return Fault(file, "there is no such file", expected, "Put it there, or take its name out of the split's list.")


def undecodable_file(file: Path, error: Exception, expected: str) -> Fault:
    reason = " ".join(str(error).split()) or type(error).__name__
    # Pillow names the path again.
    reason = reason.replace(f" {str(file)!r}", "")
    return Fault(file, f"cannot be decoded ({reason})", expected, "Copy it again from its source, or leave it out.")
