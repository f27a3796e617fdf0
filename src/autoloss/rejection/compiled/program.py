"""A tape with memory assigned to its registers: the arrays that compiled code runs on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoloss.rejection.compiled.layout import MASK, Layout, P, Y, Z, pad_size
from autoloss.rejection.compiled.tape import (
    AREA_REGISTERS,
    CHANNEL,
    MASK_REGISTER,
    P_REGISTER,
    POSITION,
    Y_REGISTER,
    Instruction,
    Op,
    Tape,
)

OP, VARIES, TO, TO_STRIDE, A, A_STRIDE, B, B_STRIDE = range(8)
"""Columns of `Program.code`; the offset of a register is its place plus the number of the tile times its stride.

SPREAD has no second operand; its B holds the dimensions of the first one.
"""

TILED, BEGIN, END = range(3)
"""Columns of `Program.blocks`."""


Compiled = tuple[NDArray[np.uint64], NDArray[Any], NDArray[np.uint64], int, NDArray[np.uint64], NDArray[Any]]
"""What compiled code runs, in one precision:

- code: one row per instruction, with columns as named above;
- factor and second constant of each instruction;
- blocks: rows of the code that run together, tile by tile or at once;
- how many of the blocks run once, before the steps;
- places and strides of the derivative by p, or of those by i, u and e; always three rows;
- factors of these derivatives.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """One tree in the form that the interpreter runs, in single and in double precision.

    Args:
        size: Elements of the workspace.
    """

    single: Compiled
    double: Compiled
    size: int


def assemble(tape: Tape, layout: Layout, plain: bool) -> Program:
    """Assign memory to the registers of a tape.

    Args:
        plain: The prediction is p itself; nothing is activated.
    """
    instructions = sorted(tape.instructions, key=lambda one: one[:2])
    places = _assign_places(instructions, tape, layout, plain)
    code = np.zeros((len(instructions), 8), np.uint64)
    for row, one in zip(code, instructions, strict=True):
        row[OP], row[VARIES] = one.op, one.varies
        for column, register in ((TO, one.to), (A, one.a), (B, one.b)):
            row[column : column + 2] = places.get(register, (0, 0))
        if one.op is Op.SPREAD and one.a is not None:
            row[B] = tape.varies[one.a]
    factors = [(one.factor, one.second) for one in instructions]
    blocks, once = _cut_blocks(instructions, tape.end)
    slopes = [*tape.slopes, *[tape.slopes[0]] * (len(AREA_REGISTERS) - len(tape.slopes))]
    offsets = np.array([places[slope.register] for slope in slopes], np.uint64)

    def compile_in(precision: type[np.floating[Any]], name: str) -> Compiled:
        constants = [[getattr(factor, name) for factor in pair] for pair in factors]
        by_leaf = np.array([getattr(slope, name) for slope in slopes], precision)
        return code, np.array(constants, precision).reshape(-1, 2), blocks, once, offsets, by_leaf

    size = max(layout.head, *(place for place, _ in places.values())) + layout.area
    return Program(compile_in(np.float32, "single"), compile_in(np.float64, "double"), size)


def _cut_blocks(instructions: list[Instruction], end: int) -> tuple[NDArray[np.uint64], int]:
    """Split the instructions where their time changes; the block at `end`, with the optimisation step, always exists."""
    times = [one[:2] for one in instructions]
    starts = sorted({*times, (1, end)})
    rows = [(start[1] % 2 == 0, bisect_left(times, start), bisect_right(times, start)) for start in starts]
    return np.array(rows, np.uint64), sum(stage == 0 for stage, _ in starts)


def _assign_places(
    instructions: list[Instruction], tape: Tape, layout: Layout, plain: bool
) -> dict[int | None, tuple[int, int]]:
    """Assign a place and a stride to each register: per tile where one block writes and reads it, else per sample."""
    stride = layout.channels * layout.tile
    places: dict[int | None, tuple[int, int]] = {
        P_REGISTER: ((Z if plain else P) * layout.area, stride),
        Y_REGISTER: (Y * layout.area, stride),
        MASK_REGISTER: (MASK * layout.area, stride),
    }
    # One after the other in place of p; each is one channel.
    for number, register in enumerate(AREA_REGISTERS):
        places[register] = (P * layout.area + number * layout.positions, layout.tile)
    last, shared = _find_lifetimes(instructions, tape)
    free: dict[tuple[bool, int], list[tuple[int, int]]] = {}
    size = layout.head
    for index, one in enumerate(instructions):
        kind = (one.to in shared, tape.varies[one.to])
        if one.op not in (Op.TOTAL, Op.MASKED_TOTAL):
            if free.get(kind):
                places[one.to] = free[kind].pop()
            else:
                whole, varies = kind
                channels = layout.channels if varies & CHANNEL else 1
                positions = (layout.positions if whole else layout.tile) if varies & POSITION else 1
                places[one.to] = (size, channels * layout.tile if whole and varies & POSITION else 0)
                size += pad_size(channels * positions)
        for register in {register for register in (one.a, one.b) if register is not None}:
            if last.get(register) == index and tape.varies[register] & POSITION:
                free.setdefault((register in shared, tape.varies[register]), []).append(places[register])
    return places


def _find_lifetimes(instructions: list[Instruction], tape: Tape) -> tuple[dict[int, int], set[int]]:
    """Return the last use of each register, and the registers needed for the whole sample: by a pool, or in another block.

    What is computed once and used in the steps is needed to the end.
    """
    made = {one.to: one[:2] for one in instructions}
    uses = [(one.a, one[:2], index) for index, one in enumerate(instructions)]
    uses += [(one.b, one[:2], index) for index, one in enumerate(instructions)]
    uses += [(slope.register, (1, tape.end), len(instructions)) for slope in tape.slopes]
    last: dict[int, int] = {}
    shared: set[int] = set()
    for register, when, index in uses:
        if register is None or register not in made:
            continue
        if made[register] != when or when[1] % 2:
            shared.add(register)
        outlives = made[register][0] != when[0]
        last[register] = max(last.get(register, 0), len(instructions) if outlives else index)
    return last, shared
