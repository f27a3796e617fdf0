"""A tree and its gradient as one straight list of instructions: what the compiled engine runs instead of autograd.

Three things make it short. What does not depend on the prediction is computed once. What is equal over channels or over
positions, as after a mean, is kept as few numbers. Signs and other constant factors are carried along, not computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

CHANNEL, POSITION = 1, 2
"""What a register varies over, as a sum of these: nothing, channels, positions, or both."""
FULL = CHANNEL + POSITION

P_REGISTER, Y_REGISTER, MASK_REGISTER, I_REGISTER, U_REGISTER, E_REGISTER = range(6)
AREA_REGISTERS = (I_REGISTER, U_REGISTER, E_REGISTER)
LEAF_REGISTERS = 6


class Op(IntEnum):
    """What one instruction does; a unary one takes its operand times a factor."""

    ABS = 0
    INV = 1
    LOG = 2
    EXP = 3
    TANH = 4
    SQRT = 5
    SIGN = 6
    """The derivative of abs."""
    LOG_SLOPE = 7
    TANH_SLOPE = 8
    """From the value of tanh, not from its argument."""
    SQRT_SLOPE = 9
    """From the value of sqrt, not from its argument."""
    MULTIPLY = 10
    COMBINE = 11
    """factor · a + second · b."""
    SHIFT = 12
    """factor · a + second."""
    FILL = 13
    """The constant `second`."""
    SPREAD = 14
    """Repeat what is equal over channels or positions."""
    SUM_CHANNELS = 15
    SUM_POSITIONS = 16
    TOTAL = 17
    """Add factor · the plain sum of a to the loss."""
    MASKED_TOTAL = 18
    POOL = 19
    """max_pool of factor · a."""
    POOL_SLOPE = 20
    """Give each of b, an output's slope, to the first largest of its window in factor · a."""


class Scaled(NamedTuple):
    """A register times a constant, or without a register the constant itself; in single and in double precision."""

    register: int | None
    single: float
    double: float


class Instruction(NamedTuple):
    """One instruction; stage 0 is run once, stage 1 in every step; even times go tile by tile, odd ones over the sample."""

    stage: int
    time: int
    op: Op
    varies: int
    to: int
    a: int | None
    b: int | None
    factor: Scaled
    second: Scaled


@dataclass(frozen=True, slots=True)
class Tape:
    """Instructions in order, what their registers vary over, and the derivatives they end with.

    Args:
        end: The time at which the prediction takes its step.
        slopes: The derivatives of the plain sum by p, or by i, u and e; registers that vary over everything.
    """

    instructions: tuple[Instruction, ...]
    varies: tuple[int, ...]
    end: int
    slopes: tuple[Scaled, ...]


ONE = Scaled(None, 1.0, 1.0)


def constant(value: float) -> Scaled:
    return Scaled(None, single(value), value)


def whole(register: int) -> Scaled:
    """Return a register as it is."""
    return Scaled(register, 1.0, 1.0)


def single(value: float) -> float:
    """Round to single precision."""
    return float(np.float32(value))
