"""The pages that people read, taken apart: commands, Python, files to write, and output that is shown below a command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
SHELL = ("sh", "bash", "console")
PLAIN = "text"
"""What is not run: output, layouts of folders, diagrams."""

_PART = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>[^\n]*)\n(?P<fenced>.*?)^```$|(?:^\n)(?P<indented>(?:^ {4}[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
_NAME = re.compile(r"^# ([\w-]+\.\w+)$")


@dataclass(frozen=True)
class Block:
    """A block of a page.

    Args:
        page: Path from the root of the repository.
        line: Where it begins.
        language: Of its fence; of an indented block `sh`.
        mark: The comment above it, such as `output` or `example: plain`.
    """

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name of the file that its first line says it is."""
        found = _NAME.match(self.text.partition("\n")[0])
        return found[1] if found else None

    def commands(self) -> list[str]:
        """Return the commands, one on each line; a script is one command."""
        if self.text.startswith("#!"):
            return [self.text]
        joined = self.text.replace("\\\n", " ")
        lines = (shlex.join(shlex.split(line, comments=True)) for line in joined.splitlines())
        return [line for line in lines if line]


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> Iterator[Block]:
    """Give the blocks of a page in order."""
    text = read(page)
    for found in _PART.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if found["indented"] is None:
            yield Block(page, line, found["language"], found["mark"] or "", found["fenced"])
        else:
            yield Block(page, line, "sh", "", re.sub("^ {4}", "", found["indented"], flags=re.MULTILINE))


def commands(page: str) -> list[str]:
    return [command for block in blocks(page) if block.language in SHELL for command in block.commands()]


def mentions(page: str) -> Iterator[list[str]]:
    """Give the words of each command of autoloss that stands within a sentence or a table."""
    prose = _PART.sub("", read(page))
    for text in re.findall(r"`(autoloss [^`]+)`", prose):
        yield shlex.split(text.replace("\\|", "|").replace("\n", " "))
