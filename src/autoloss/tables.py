"""Tables of facts that are declared as text, such as the catalogue of tasks and the losses of the zoo."""

from __future__ import annotations

from collections.abc import Iterator


def read_rows(table: str, lines: int) -> Iterator[list[str]]:
    """Yield the rows of a table of text.

    Args:
        lines: Of each row. The first holds values between bars, each of the others is one value.
    """
    texts = [line.strip() for line in table.strip().split("\n")]
    for first, *others in zip(*(texts[place::lines] for place in range(lines)), strict=True):
        yield [*map(str.strip, first.split("|")), *others]
