"""What a branch can be set to, by name, and the check of it; no torch."""

from __future__ import annotations

from typing import Literal

from autoloss.errors import unknown

Activation = Literal["softmax", "sigmoid", "none", "box"]
Encoding = Literal["one_hot", "edge", "band"]
Divisor = Literal["all", "valid"]

ACTIVATIONS = ("softmax", "sigmoid", "none")
"""Those of an `ActivatedBranch`; branches of boxes have their own."""
ENCODINGS = ("one_hot", "edge", "band")
DIVISORS = ("all", "valid")


def check_options(activation: str, encoding: str, divide_by: str) -> None:
    """Refuse what an `ActivatedBranch` cannot be set to.

    Raises:
        RequestError: An unknown activation, encoding or divisor.
    """
    for kind, found, known in (
        ("activation", activation, ACTIVATIONS),
        ("target encoding", encoding, ENCODINGS),
        ("divisor", divide_by, DIVISORS),
    ):
        if found not in known:
            raise unknown(kind, str(found), known)
