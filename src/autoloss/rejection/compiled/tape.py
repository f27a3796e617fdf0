"""A tree and its gradient as a linear list of instructions, which the compiled engine runs instead of autograd.

Three things keep it short. What does not depend on the prediction is computed once. What is constant over channels or over
positions, as after a mean, is stored once. Signs and other constant factors are tracked as factors, not computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

CHANNEL, POSITION = 1, 2
"""The dimensions over which a register varies, as a sum of these: none, channels, positions, or both."""
FULL = CHANNEL + POSITION

P_REGISTER, Y_REGISTER, MASK_REGISTER, I_REGISTER, U_REGISTER, E_REGISTER = range(6)
AREA_REGISTERS = (I_REGISTER, U_REGISTER, E_REGISTER)
LEAF_REGISTERS = 6


class Op(IntEnum):
    """The operation of an instruction; a unary one is applied to its operand times a factor."""

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
    """Broadcast over channels or positions."""
    SUM_CHANNELS = 15
    SUM_POSITIONS = 16
    TOTAL = 17
    """Add factor · the plain sum of a to the loss."""
    MASKED_TOTAL = 18
    POOL = 19
    """max_pool of factor · a."""
    POOL_SLOPE = 20
    """Add each derivative in b to the first maximum of its window in factor · a."""


class Scaled(NamedTuple):
    """A register times a constant, or without a register the constant itself; in single and in double precision."""

    register: int | None
    single: float
    double: float


class Instruction(NamedTuple):
    """One instruction. Stage 0 runs once, stage 1 in every step; even times run tile by tile, odd times on the whole sample."""

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
    """Instructions in order, the dimensions of their registers, and the resulting derivatives.

    Args:
        end: The time of the optimisation step.
        slopes: The derivatives of the plain sum by p, or by i, u and e; registers that vary over everything.
    """

    instructions: tuple[Instruction, ...]
    varies: tuple[int, ...]
    end: int
    slopes: tuple[Scaled, ...]


ONE = Scaled(None, 1.0, 1.0)


def constant(value: float) -> Scaled:
    """Return a number as a value without a register."""
    return Scaled(None, round_to_single(value), value)


def unscaled(register: int) -> Scaled:
    """Return a register with the factor 1."""
    return Scaled(register, 1.0, 1.0)


def round_to_single(value: float) -> float:
    """Round to single precision."""
    return float(np.float32(value))
