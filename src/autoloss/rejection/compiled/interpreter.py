# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""The compiled loops: run a program's blocks, and take the steps of SGD on the raw prediction or measure the gradient for keys.

Other modules call `compile_descent()`, whose function runs in single precision, and `compile_gradient()`, in double.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numba import njit

from autoloss.rejection.compiled import kernels as k
from autoloss.rejection.compiled.derived_leaves import (
    GIVEN,
    collect_slopes,
    descend_boxes,
    measure_boxes,
    measure_pairs,
)
from autoloss.rejection.compiled.functions import OPTIONS, constant
from autoloss.rejection.compiled.kernels import U
from autoloss.rejection.compiled.pools import pool, pool_slope
from autoloss.rejection.compiled.program import A_STRIDE, B_STRIDE, BEGIN, END, OP, TILED, TO, TO_STRIDE, VARIES, A, B
from autoloss.rejection.compiled.tape import CHANNEL, POSITION, Op

DONE, NOT_FINITE, NO_GRADIENT = range(3)
"""How a descent ends."""

PATIENCE_SECONDS = 120.0
"""For so long a process waits for another one to compile a function, which takes a quarter of a minute."""

LOOKS = 16
"""Steps from one look at whether the predictions still move to the next."""

SOFTMAX, ONE_LOGIT, SIGMOID, PLAIN, BOX, PAIR, DIFFERENCE = range(7)
"""The function from the raw prediction to p. One logit z is the two-channel softmax of (0, z). For boxes the deltas are raw, and
the areas i, u and e are stored in place of p. For pairs the scores of items are raw, and each position is a pair of them."""

(ABS, INV, LOG, EXP, TANH, SQRT, SIGN, LOG_SLOPE, TANH_SLOPE, SQRT_SLOPE, MULTIPLY, COMBINE, SHIFT, FILL, SPREAD) = (
    int(op) for op in list(Op)[:15]
)
SUM_CHANNELS, SUM_POSITIONS, TOTAL, MASKED_TOTAL, POOL, POOL_SLOPE = (int(op) for op in list(Op)[15:])


@njit(**OPTIONS)
def _run(w, code, factors, begin, end, tile, shape, positions):
    """Run instructions on one tile or, at odd times, on the whole sample; return their contribution to the loss."""
    channels, rows, height, width, rows_per_tile, scratch, _, depth, _ = shape
    loss = 0.0
    for row in range(begin, end):
        op, varies = code[row, OP], code[row, VARIES]
        to = code[row, TO] + tile * code[row, TO_STRIDE]
        a = code[row, A] + tile * code[row, A_STRIDE]
        b = code[row, B] + tile * code[row, B_STRIDE]
        factor, second = factors[row, 0], factors[row, 1]
        across = channels if varies & CHANNEL else U(1)
        along = positions if varies & POSITION else U(1)
        count = across * along
        if op == ABS:
            k.absolute(w, to, a, count, factor)
        elif op == INV:
            k.inverse(w, to, a, count, factor)
        elif op == LOG:
            k.signed_log(w, to, a, count, factor)
        elif op == EXP:
            k.exp(w, to, a, count, factor)
        elif op == TANH:
            k.tanh(w, to, a, count, factor)
        elif op == SQRT:
            k.signed_sqrt(w, to, a, count, factor)
        elif op == SIGN:
            k.sign(w, to, a, count, factor)
        elif op == LOG_SLOPE:
            k.log_slope(w, to, a, count, factor)
        elif op == TANH_SLOPE:
            k.tanh_slope(w, to, a, count, factor)
        elif op == SQRT_SLOPE:
            k.sqrt_slope(w, to, a, count, factor)
        elif op == MULTIPLY:
            k.multiply(w, to, a, b, count)
        elif op == COMBINE:
            k.combine(w, to, a, b, count, factor, second)
        elif op == SHIFT:
            k.shift(w, to, a, count, factor, second)
        elif op == FILL:
            k.fill(w, to, count, second)
        elif op == SPREAD:
            k.spread(w, to, a, across, along, b & U(CHANNEL), b & U(POSITION))
        elif op == SUM_CHANNELS:
            k.sum_channels(w, to, a, across, along)
        elif op == SUM_POSITIONS:
            k.sum_positions(w, to, a, across, along, tile == 0)
        elif op == TOTAL:
            loss += factor * k.sum_of(w, a, count)
        elif op == MASKED_TOTAL:
            loss += factor * k.masked_sum_of(w, a, b, count)
        elif op == POOL:
            pool(w, to, a, scratch, (across, rows, depth, height, width, rows_per_tile), factor)
        elif op == POOL_SLOPE:
            pool_slope(w, to, a, b, scratch, (across, rows, depth, height, width, rows_per_tile), factor)
    return loss


@njit(**OPTIONS, inline="always")
def _activate(w, activation, places, shape, positions, items, first):
    channels, scratch = shape[0], shape[5]
    z, _, p, given = places
    if activation >= PAIR:
        measure_pairs(w, z, p, items, first, positions, activation == PAIR)
    elif activation == BOX:
        whole = shape[1] * shape[3]
        measure_boxes(w, z, p, p + whole, p + whole + whole, given, positions)
    elif activation == SIGMOID:
        k.sigmoid(w, p, z, channels * positions)
    elif activation != PLAIN:
        k.softmax(w, p, z, scratch, channels, positions)


@njit(**OPTIONS, inline="always")
def _step(w, activation, places, slopes, factors, tile, shape, positions, momentum, rate):
    """Take one step of SGD on one tile; return whether the gradient was not finite. Or do the other things of `kernels.step`."""
    channels, scratch = shape[0], shape[5]
    z, velocity, p, given = places
    count = channels * positions
    slope, factor = slopes[0, 0] + tile * slopes[0, 1], factors[0]
    if activation == BOX:
        by_u, by_e = slopes[1, 0] + tile * slopes[1, 1], slopes[2, 0] + tile * slopes[2, 1]
        bad = descend_boxes(w, z, velocity, given, slope, by_u, by_e, factors, positions, momentum, rate)
    elif activation == SIGMOID:
        bad = k.descend_sigmoid(w, z, velocity, p, slope, factor, count, momentum, rate)
    elif activation == PLAIN:
        bad = k.descend_plain(w, z, velocity, slope, factor, count, momentum, rate)
    else:
        first = U(1) if activation == ONE_LOGIT else U(0)
        bad = k.descend_softmax(w, z, velocity, p, slope, factor, scratch, channels, positions, first, momentum, rate)
    return bad


@njit(**OPTIONS, inline="always")
def _locate_tile(areas, shape, first):
    """Return the offsets of raw prediction, velocity, p and fixed inputs of the tile whose first position is `first`.

    The scores of items, whose channels of z are counted as none, belong to no tile.
    """
    channels, moving = shape[0], shape[6]
    return (
        areas[0] + first * moving,
        areas[1] + first * moving,
        areas[2] + first * channels,
        areas[3] + first * U(GIVEN),
    )


@njit(**OPTIONS, inline="always")
def _run_block(w, code, factors, block, shape):
    """Run one block over the whole sample."""
    whole, tile = shape[1] * shape[3], shape[3] * shape[4]
    tiled = block[TILED] > U(0)
    loss = 0.0
    for first in range(U(0), whole if tiled else U(1), tile):
        positions = min(tile, whole - first) if tiled else U(1)
        loss += _run(w, code, factors, block[BEGIN], block[END], first // tile, shape, positions)
    return loss


@njit(**OPTIONS, inline="always")
def _activate_all(w, activation, areas, shape, items):
    whole, tile = shape[1] * shape[3], shape[3] * shape[4]
    for first in range(U(0), whole, tile):
        _activate(w, activation, _locate_tile(areas, shape, first), shape, min(tile, whole - first), items, first)


@njit(**OPTIONS, inline="always")
def _collect(w, program, areas, activation, shape, items):
    """Run the last block on all pairs, and collect the derivatives by the scores in scratch memory; return the loss."""
    code, factors, blocks, _, slopes, slope_factors = program
    whole, tile, last = shape[1] * shape[3], shape[3] * shape[4], blocks[len(blocks) - 1]
    loss = 0.0
    for i in range(shape[8]):
        w[shape[5] + i] = 0
    for first in range(U(0), whole, tile):
        number, positions = first // tile, min(tile, whole - first)
        loss += _run(w, code, factors, last[BEGIN], last[END], number, shape, positions)
        p, slope = areas[2] + first, slopes[0, 0] + number * slopes[0, 1]
        collect_slopes(w, shape[5], p, slope, slope_factors[0], items, first, positions, activation == PAIR)
    return loss


@njit(**OPTIONS, inline="always")
def _descend(w, program, areas, activation, shape, items, portion, steps, momentum, rate, losses):
    """Run all steps on a portion of the positions; return how they ended.

    A portion may be less than the whole sample only where no position depends on another.
    """
    code, factors, blocks, once, slopes, slope_factors = program
    moving, tile = shape[6], shape[3] * shape[4]
    last = blocks[len(blocks) - 1]
    for step in range(steps[0], steps[1]):
        loss, bad, moved = 0.0, False, step > 0
        settled = step % LOOKS == LOOKS - 1 and 0 <= momentum < 1
        for row in range(once, len(blocks) - 1):
            loss += _run_block(w, code, factors, blocks[row], shape)
        if activation >= PAIR:
            loss += _collect(w, program, areas, activation, shape, items)
            places = (areas[0], areas[1], shape[5], constant(w[0], 1), shape[8])
            bad |= k.descend_plain(w, *places, momentum, rate)
            moved = moved or not k.is_zero(w, areas[1], shape[8])
            if settled:
                settled = not k.descend_plain(w, *places, None, rate)
            if step + 1 < steps[1]:
                _activate_all(w, activation, areas, shape, items)
        for first in range(portion[0], portion[1] if activation < PAIR else portion[0], tile):
            number, positions = first // tile, min(tile, portion[1] - first)
            places = _locate_tile(areas, shape, first)
            loss += _run(w, code, factors, last[BEGIN], last[END], number, shape, positions)
            bad |= _step(w, activation, places, slopes, slope_factors, number, shape, positions, momentum, rate)
            moved = moved or not k.is_zero(w, places[1], moving * positions)
            if settled:
                settled = not _step(w, activation, places, slopes, slope_factors, number, shape, positions, None, rate)
            if step + 1 < steps[1]:
                _activate(w, activation, places, shape, positions, items, first)
        losses[step - steps[0]] += loss
        if bad or not abs(loss) < np.inf:
            return NOT_FINITE
        if not moved:
            return NO_GRADIENT
        if settled:
            # All later steps repeat this one, as with a p that is 0 or 1 everywhere.
            losses[step + 1 - steps[0] :] += loss
            break
    return DONE


def _hash_sources() -> str:
    """Hash all compiled sources. Numba itself only checks whether the outermost function's file has changed."""
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


@cache
def compile_descent() -> CachedFunction:
    """Return the compiled descent, from the cache where there is one.

    Its arguments: workspace; a program (`Program.single`); offsets of z, its velocity, p, and the fixed inputs of boxes;
    activation; shape (channels, rows, height, width, rows per tile, offset of scratch, channels of z, depth, scores); the items of
    pairs, (2, P); first and last step; momentum; learning rate; an array of zeros, one per step, for the loss; the largest finite
    value. It returns how it ended.
    """
    stamp = _hash_sources()

    def descend(w, program, areas, activation, shape, items, steps, momentum, rate, losses, limit):
        stamp  # noqa: B018  # What a function encloses is part of its key in the cache.
        code, factors, blocks, once, _, _ = program
        whole, tile = shape[1] * shape[3], shape[3] * shape[4]
        for row in range(once):
            _run_block(w, code, factors, blocks[row], shape)
        _activate_all(w, activation, areas, shape, items)
        # A tile that can run all steps alone stays in the processor cache; pairs share their scores.
        size = tile if len(blocks) == once + 1 and activation < PAIR else whole
        end = NO_GRADIENT
        for first in range(U(0), whole, size):
            portion = (first, min(first + size, whole))
            found = _descend(w, program, areas, activation, shape, items, portion, steps, momentum, rate, losses)
            if found == NOT_FINITE:
                return NOT_FINITE
            if found == DONE:
                end = DONE
        for loss in losses:
            if not abs(loss) <= limit:
                return NOT_FINITE
        return end

    return CachedFunction(descend)


@cache
def compile_gradient() -> CachedFunction:
    """Return the compiled gradient, from the cache where there is one.

    Its arguments are those of the descent, as far as it has them, with the fixed direction, and whether p is to be computed
    first; the workspace keeps p, so that once is enough. The place of the velocity takes one tile of the gradient at a time. It
    returns `DONE` or `NOT_FINITE`, the square of the gradient's norm, and its inner product with the direction.
    """
    stamp = _hash_sources()

    def differentiate(w, program, areas, activation, shape, items, direction, fresh):
        stamp  # noqa: B018  # What a function encloses is part of its key in the cache.
        code, factors, blocks, _, slopes, slope_factors = program
        moving, whole, tile = shape[6], shape[1] * shape[3], shape[3] * shape[4]
        if fresh:
            _activate_all(w, activation, areas, shape, items)
        loss, square, product, bad = 0.0, 0.0, 0.0, False
        for row in range(len(blocks) - 1):
            loss += _run_block(w, code, factors, blocks[row], shape)
        last = blocks[len(blocks) - 1]
        if activation >= PAIR:
            loss += _collect(w, program, areas, activation, shape, items)
            bad |= k.descend_plain(w, areas[0], areas[1], shape[5], constant(w[0], 1), shape[8], None, None)
            square = k.inner_product(w, areas[1], w, areas[1], shape[8])
            product = k.inner_product(w, areas[1], direction, U(0), shape[8])
        for first in range(U(0), whole if activation < PAIR else U(0), tile):
            number, positions = first // tile, min(tile, whole - first)
            loss += _run(w, code, factors, last[BEGIN], last[END], number, shape, positions)
            z, _, p, given = _locate_tile(areas, shape, first)
            places = (z, areas[1], p, given)
            bad |= _step(w, activation, places, slopes, slope_factors, number, shape, positions, None, None)
            # The other channel of one logit does not move: its place holds what is left of a longer tile.
            still = positions if activation == ONE_LOGIT else U(0)
            begin, count = areas[1] + still, moving * positions - still
            square += k.inner_product(w, begin, w, begin, count)
            product += k.inner_product(w, begin, direction, first * moving + still, count)
        return NOT_FINITE if bad or not abs(loss) < np.inf else DONE, square, product

    return CachedFunction(differentiate)


_log = logging.getLogger(__name__)


class CachedFunction:
    """A function that is compiled at its first call and cached on disk; where that is impossible, it warns once and goes on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._called = self._is_sought = self._warned = False
        self._lock: FileLock | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        try:
            self._compiled = njit(**OPTIONS, cache=True)(function)
            self._folder = Path(self._compiled.stats.cache_path)
            self._lock = FileLock(self._folder / f"{function.__name__}.lock")
        except RuntimeError as error:
            self._warn(error)
            self._compiled = njit(**OPTIONS)(function)

    def __call__(self, *arguments: Any) -> Any:
        if self._called:
            return self._call(arguments)
        self._called = True
        try:
            # A process that calls it first loads what another one is compiling. Where no file can be locked, each compiles.
            with suppress(Timeout, OSError), self._lock.acquire(PATIENCE_SECONDS) if self._lock else nullcontext():
                return self._call(arguments)
            return self._call(arguments)
        finally:
            self._end_helper()

    def _call(self, arguments: Sequence[Any]) -> Any:
        try:
            return self._compiled(*arguments)
        except OSError as error:
            # The folder is gone or the disk is full. Saving comes last, so the compiled function is usable.
            self._warn(error)
            return self._compiled(*arguments)

    def compile_elsewhere(self, code: str) -> None:
        """Let a process that runs some code, which calls it, compile it until the first call here; nothing where it is cached."""
        if self._called or self._is_sought:
            return
        self._is_sought = True
        is_cached = self._lock is None or any(self._folder.glob(f"*.{self._compiled.__name__}-*.nbi"))
        if not is_cached and (os.cpu_count() or 1) > 1:
            with suppress(OSError):
                # It holds no pipe of this process open.
                quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                self._helper = subprocess.Popen([sys.executable, "-P", "-c", code], **quiet)
                atexit.register(self._end_helper)

    def _end_helper(self) -> None:
        if self._helper is not None:
            self._helper.kill()
            self._helper.wait()

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            _log.warning(
                "The compiled engine cannot be cached on disk (%s); this process compiles it for itself.", error
            )
        self._warned = True
