"""Mutated formulas in the parser: crashes, and the time of the slowest.

python bench/rejection/hostile.py --out results/hostile.json

Each text is a published formula, a random tree or a hand-written attack, mutated in up to three places: brackets, operators,
digits, look-alikes from other alphabets, control characters, pieces repeated a thousand times. The parser has to accept it or
refuse it with a caret; anything else is a crash, and the script ends with exit code 1.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "shared"))

import string
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from autoloss.proposing.initialization import initial_expression
from autoloss.space.branch import Role
from autoloss.space.expression import Alphabet
from autoloss.space.loss import Loss
from autoloss.space.operators import OPERATORS
from autoloss.space.parsing import MAXIMUM_NODES, FormulaError
from autoloss.zoo import ENTRIES
from output import Figure, emit, make_parser, parse_arguments

LIMIT_MILLISECONDS = 50.0
FIGURES = {
    "mutated formulas": Figure(("texts",)),
    "crashes": Figure(("crashes",)),
    "milliseconds of the slowest": Figure(("slowest_milliseconds",), digits=0),
}
ALPHABET = Alphabet({"y": Role.TARGET, "p": Role.PREDICTION})
MADE_TO_HURT = (
    "(" * 79 + "p" + ")" * 79,
    "-" * 79 + "p",
    "((((p**63)**63)**63)**63)**63",
    "+".join("p" * 400),
    "*".join(["(p+y)"] * 160),
    "+".join(["999983"] * 8),
    "1/" + "9" * 90,
    "p" * 9_000,
    " " * 9_900 + "p",
    "log(" * 70 + "1" + ")" * 70,
    "__import__('os').system('ls')",
    "main: p; main: y;" * 500,
    ";".join(f"b{number}: p" for number in range(1_200)),
    "\x00\x1b[2J\u202e\ud800",
    "a" * 1_000_000,
    "(" * 1_000_000,
)
ODD = string.printable + "**((--//00ypiéе∞１\x00\x1b\u2028\u202e\ud800" + "1" * 5
"""Among them a Cyrillic e and a full-width 1."""
TOKENS = (*OPERATORS, "**", "63", "1/3", "((", "--", ";", "main:", "9" * 99)


def main(argv: Sequence[str] | None = None) -> None:
    asked = make_parser(__doc__)
    asked.add_argument("--texts", type=int, default=100_000, help="mutated formulas")
    asked.add_argument("--seed", type=int, default=0)
    arguments = parse_arguments(asked, argv, texts=5_000)
    result = {"limit_milliseconds": LIMIT_MILLISECONDS, **attacked(arguments.texts, arguments.seed)}
    emit(result, arguments, _print)
    if result["crashes"]:
        raise SystemExit(1)


def attacked(texts: int, seed: int) -> dict[str, Any]:
    """Parse so many texts; a time is the processor's, and the shortest of up to three."""
    rng = Random(seed)
    seeds = _seeds(rng)
    counts: Counter[str] = Counter()
    crashes: list[str] = []
    slowest, slow_text = 0.0, ""
    for number in range(texts):
        text = seeds[number] if number < len(seeds) else mutated(rng.choice(seeds), rng)
        what, seconds = _timed(lambda text=text: _read(text))
        counts[what] += 1
        if what not in ("read", "refused"):
            crashes.append(f"{what}: {text[:200]!r}")
        for _ in range(2):
            if seconds > slowest:
                seconds = min(seconds, _timed(lambda text=text: _read(text))[1])
        if seconds > slowest:
            slowest, slow_text = seconds, text
    return {
        "texts": texts,
        **counts,
        "crashes": crashes[:20],
        "slowest_milliseconds": 1000 * slowest,
        "slowest": f"{len(slow_text)} characters: {slow_text[:100]!r}",
    }


def _seeds(rng: Random) -> list[str]:
    published = [text for entry in ENTRIES.values() for text in entry.formulas.values()]
    drawn = [str(initial_expression(ALPHABET, depth, rng)) for depth in (1, 2, 3, 4, 5) for _ in range(20)]
    return [*published, *drawn, *MADE_TO_HURT]


def mutated(text: str, rng: Random) -> str:
    """Damage a text in up to three places."""
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(text) + 1)
        match rng.randrange(5):
            case 0:
                text = text[:place] + rng.choice(ODD) + text[place:]
            case 1:
                text = text[: max(0, place - 1)] + text[place:]
            case 2:
                piece = text[place : place + rng.randrange(40)]
                text = text[:place] + piece * rng.choice((1, 2, 60, 1000)) + text[place:]
            case 3:
                text = text[:place] + rng.choice(TOKENS) + text[place + 1 :]
            case _:
                text = f"{text[:place]}({text})" + text[place:] if len(text) < 2_000 else text[:place]
    return text


def _read(text: str) -> str:
    try:
        loss = Loss.parse(text)
    except FormulaError as error:
        str(error)
        return "refused"
    except Exception as error:
        return type(error).__name__
    return "read" if all(len(tree.symbols) <= MAXIMUM_NODES for tree in loss.values()) else "too large"


def _timed(call: Callable[[], str]) -> tuple[str, float]:
    # The processor's time: on a busy machine a text may wait as long as it likes.
    began = time.process_time()
    what = call()
    return what, time.process_time() - began


def _print(result: dict[str, Any]) -> None:
    print(f"{result['texts']} texts: {result.get('read', 0)} read, {result.get('refused', 0)} refused")
    print(f"crashes: {len(result['crashes'])}", *result["crashes"], sep="\n  ")
    print(f"slowest: {result['slowest_milliseconds']:.1f} ms (limit {LIMIT_MILLISECONDS:g}), {result['slowest']}")


if __name__ == "__main__":
    main()
