"""Records a tree forward and backward: the instructions of each operator, then the derivatives of the plain sum by its leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce

import numpy as np

from autoloss.rejection.compiled.bounds import is_bounded
from autoloss.rejection.compiled.tape import (
    AREA_REGISTERS,
    CHANNEL,
    FULL,
    I_REGISTER,
    MASK_REGISTER,
    ONE,
    P_REGISTER,
    POSITION,
    Instruction,
    Op,
    Scaled,
    Tape,
    Writer,
    constant,
    unscaled,
)
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.ranges import Range


def record(
    expression: Expression,
    registers: Mapping[str, int],
    size: tuple[int, int],
    flat: bool,
    masked: bool,
    leaves: Mapping[int, Range] | None = None,
) -> Tape | None:
    """Record a tree and the derivative of its plain sum by p, or those by i, u and e.

    Args:
        registers: Leaf → its register.
        size: Channels, and positions N·H·W.
        flat: Whether a plane has one position only, so that pools change nothing.
        masked: Whether some elements do not count.
        leaves: Bounds of p and y, with which a sum that is finite whatever happens is left out; None where p has none.

    Returns:
        None where the tree does not depend on the prediction.
    """
    recorder = _Recorder(writer := Writer(*size, flat))
    with np.errstate(all="ignore"):
        root = expression.fold(
            lambda name: ONE if name == CONSTANT else unscaled(registers[name]),
            lambda operator, parts: FORWARD[operator.name](writer, *parts),
        )
        if root.register is None or not writer.active[root.register]:
            return None
        forward = tuple(writer.instructions)
        recorder.add_total(root, masked)
        elements = writer.count[CHANNEL] * writer.count[POSITION]
        needs_total = leaves is None or not is_bounded(writer.instructions, leaves, elements)
        for instruction in reversed(forward):
            recorder.backward(instruction)
        return recorder.finish(AREA_REGISTERS if I_REGISTER in registers.values() else (P_REGISTER,), needs_total)


def _negate(writer: Writer, x: Scaled) -> Scaled:
    return writer.scale(x, constant(-1.0))


def _square(writer: Writer, x: Scaled) -> Scaled:
    return writer.multiply(x, x)


def _min_pool(writer: Writer, x: Scaled) -> Scaled:
    return _negate(writer, writer.pool(_negate(writer, x)))


FORWARD: dict[str, Callable[..., Scaled]] = {
    "add": Writer.add,
    "mul": Writer.multiply,
    "neg": _negate,
    "abs": partial(Writer.unary, op=Op.ABS),
    "inv": partial(Writer.unary, op=Op.INV),
    "log": partial(Writer.unary, op=Op.LOG),
    "exp": partial(Writer.unary, op=Op.EXP),
    "tanh": partial(Writer.unary, op=Op.TANH),
    "square": _square,
    "sqrt": partial(Writer.unary, op=Op.SQRT),
    "mean_nhw": partial(Writer.mean, over=POSITION),
    "mean_c": partial(Writer.mean, over=CHANNEL),
    "max_pool": Writer.pool,
    "min_pool": _min_pool,
}
"""The operators of Table 1 that compiled code supports; a tree with any other operator runs in the reference."""


class _Recorder:
    """Records one tree backward, whose instructions are written."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.slopes: dict[int, list[Scaled]] = {}

    def add_total(self, root: Scaled, masked: bool) -> None:
        """Sum the output, and start the backward pass with the derivative of the sum."""
        register = root.register
        assert register is not None
        if masked:
            self.writer.emit(Op.MASKED_TOTAL, FULL, unscaled(register), unscaled(MASK_REGISTER), factor=root)
            self.give(register, self.writer.scale(unscaled(MASK_REGISTER), root), FULL)
            return
        every = self.writer.fit(Scaled(None, root.single, root.double), FULL, self.writer.varies[register])
        self.writer.emit(Op.TOTAL, self.writer.varies[register], unscaled(register), factor=every)
        self.give(register, every, self.writer.varies[register])

    def backward(self, instruction: Instruction) -> None:
        """Propagate the derivative of an instruction's result to its operands."""
        writer = self.writer
        if not writer.active[instruction.to] or instruction.op is Op.SPREAD:
            return
        slope, varies = self.slope_of(instruction.to), writer.varies[instruction.to]
        a, b = (Scaled(writer.source.get(one, one), 1.0, 1.0) for one in (instruction.a, instruction.b))
        assert a.register is not None
        match instruction.op:
            case Op.SUM_CHANNELS | Op.SUM_POSITIONS:
                self.give(a.register, slope, writer.varies[a.register])
            case Op.MULTIPLY if a == b:
                self.give(a.register, writer.scale(writer.multiply(slope, a), constant(2.0)), varies)
            case Op.MULTIPLY:
                for one, other in ((a, b), (b, a)):
                    if one.register is not None and writer.active[one.register]:
                        self.give(one.register, writer.multiply(slope, other), varies)
            case Op.COMBINE:
                assert b.register is not None
                self.give(a.register, writer.scale(slope, instruction.factor), varies)
                self.give(b.register, writer.scale(slope, instruction.second), varies)
            case Op.SHIFT:
                self.give(a.register, writer.scale(slope, instruction.factor), varies)
            case Op.POOL:
                found = writer.emit(Op.POOL_SLOPE, varies, a, writer.fill(slope, varies), factor=instruction.factor)
                self.give(a.register, writer.scale(found, instruction.factor), varies)
            case _:
                argument = Scaled(a.register, *instruction.factor[1:])
                derivative = self.derivative(instruction.op, argument, unscaled(instruction.to))
                self.give(a.register, writer.scale(writer.multiply(slope, derivative), instruction.factor), varies)

    def slope_of(self, register: int) -> Scaled:
        first, *others = self.slopes[register]
        return reduce(self.writer.add, others, first)

    def derivative(self, op: Op, argument: Scaled, result: Scaled) -> Scaled:
        """Return a unary operator's derivative by its argument."""
        match op:
            case Op.EXP:
                return result
            case Op.INV:
                return self.writer.scale(self.writer.multiply(result, result), constant(-1.0))
            case Op.ABS:
                return self.writer.unary(argument, Op.SIGN)
            case Op.LOG:
                return self.writer.unary(argument, Op.LOG_SLOPE)
            case Op.TANH:
                return self.writer.unary(result, Op.TANH_SLOPE)
            case _:
                return self.writer.unary(result, Op.SQRT_SLOPE)

    def finish(self, leaves: tuple[int, ...], needs_total: bool) -> Tape:
        slopes = [self.slope_of(leaf) if leaf in self.slopes else constant(0.0) for leaf in leaves]
        held = [self.writer.fill(slope, FULL) if slope.register is None else slope for slope in slopes]
        end = max([0, *(one.time for one in self.keep_needed(held, needs_total) if one.stage)])
        end += end % 2
        wide = tuple(self.writer.widen(slope, FULL, (1, end)) for slope in held)
        return Tape(self.keep_needed(wide, needs_total), tuple(self.writer.varies), end, wide)

    def keep_needed(self, slopes: Sequence[Scaled], needs_total: bool) -> tuple[Instruction, ...]:
        """Return the instructions whose result is needed, in order."""
        needed = {slope.register for slope in slopes}
        kept: list[Instruction] = []
        for one in reversed(self.writer.instructions):
            if one.to in needed or (needs_total and one.op in (Op.TOTAL, Op.MASKED_TOTAL)):
                needed |= {one.a, one.b}
                kept.append(one)
        return tuple(reversed(kept))

    def give(self, register: int, slope: Scaled, given: int) -> None:
        """Add a term to a register's derivative; the term is repeated over the dimensions `given`."""
        if self.writer.active[register]:
            self.slopes.setdefault(register, []).append(self.writer.fit(slope, given, self.writer.varies[register]))
