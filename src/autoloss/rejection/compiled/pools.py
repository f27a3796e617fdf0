# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1's max_pool and its derivative in compiled loops, in two one-dimensional passes: along rows, then across them.

The first maximum of a 3×3 window in reading order lies in the first row that contains the maximum, at the first such column of
that row; so value and gradient are both separable. Planes are stored in tiles of whole rows (see `layout.Layout`).
"""

from __future__ import annotations

from numba import njit

from autoloss.rejection.compiled.functions import INLINED, OPTIONS, constant
from autoloss.rejection.compiled.kernels import U, fill


@njit(**INLINED)
def _replaces(x, most):
    """Check whether x replaces the maximum so far: when it is larger, or NaN."""
    # Not `or`: a branch would keep the loops around it from being vectorised.
    return (x > most) | (x != x)


@njit(**OPTIONS)
def _locate_row(base, row, channel, channels, width, rows_per_tile, rows):
    """Return the offset of a row of a channel."""
    tile = row // rows_per_tile
    first = tile * rows_per_tile
    held = min(rows_per_tile, rows - first)
    return base + (first * channels + channel * held + (row - first)) * width


@njit(**INLINED)
def _first_largest(x, y, z):
    """Return the first maximum of three numbers, NaN counting as largest, and whether the second and the third replaced it."""
    second = _replaces(y, x)
    most = y if second else x
    third = _replaces(z, most)
    return z if third else most, second, third


@njit(**OPTIONS)
def _copy_bordered(workspace, to, a, first, channel, shape, factor):
    """Copy a plane of factor · a with its outermost numbers repeated once on each side, which changes no maximum.

    The derivatives of the copies are later added to the numbers that they repeat. Loops over bordered planes then need no
    special case at the border.
    """
    channels, rows, height, width, rows_per_tile = shape
    line = width + U(2)
    for h in range(height):
        source = _locate_row(a, first + h, channel, channels, width, rows_per_tile, rows)
        out = to + (h + U(1)) * line
        for i in range(width):
            workspace[out + U(1) + i] = factor * workspace[source + i]
        workspace[out] = workspace[out + U(1)]
        workspace[out + width + U(1)] = workspace[out + width]
    for i in range(line):
        workspace[to + i] = workspace[to + line + i]
        workspace[to + (height + U(1)) * line + i] = workspace[to + height * line + i]


@njit(**OPTIONS)
def _pool_rows(workspace, to, a, count):
    """Write the maximum of each number and its neighbours to the left and right."""
    for i in range(U(1), count - U(1)):
        workspace[to + i] = _first_largest(workspace[a + i - U(1)], workspace[a + i], workspace[a + i + U(1)])[0]


@njit(**OPTIONS)
def pool(workspace, to, a, scratch, shape, factor):
    """Write max_pool of factor · a; `scratch` holds two bordered planes.

    Args:
        shape: Channels, rows of all planes of the sample N·H, height, width, rows per tile.
    """
    channels, rows, height, width, rows_per_tile = shape
    line = width + U(2)
    plane = (height + U(2)) * line
    source, along = scratch, scratch + plane
    for c in range(channels):
        for first in range(U(0), rows, height):
            _copy_bordered(workspace, source, a, first, c, shape, factor)
            _pool_rows(workspace, along, source, plane)
            for h in range(height):
                out = _locate_row(to, first + h, c, channels, width, rows_per_tile, rows)
                at = along + h * line + U(1)
                for i in range(width):
                    workspace[out + i] = _first_largest(
                        workspace[at + i], workspace[at + line + i], workspace[at + line + line + i]
                    )[0]


@njit(**OPTIONS)
def _choose(workspace, to, a, apart, count):
    """Write which of three numbers at the distance `apart` is the first maximum: −1, 0 or 1."""
    one, none = constant(workspace[a], 1), constant(workspace[a], 0)
    for i in range(count):
        _, second, third = _first_largest(workspace[a + i - apart], workspace[a + i], workspace[a + i + apart])
        earlier = none if second else -one
        workspace[to + i] = one if third else earlier


@njit(**OPTIONS)
def _collect(workspace, to, slope, choice, apart, count):
    """Sum the derivatives of the windows that chose each number."""
    one, none = constant(workspace[slope], 1), constant(workspace[slope], 0)
    for i in range(count):
        after = workspace[slope + i + apart] if workspace[choice + i + apart] == -one else none
        here = workspace[slope + i] if workspace[choice + i] == none else none
        before = workspace[slope + i - apart] if workspace[choice + i - apart] == one else none
        workspace[to + i] = after + here + before


@njit(**OPTIONS)
def _give_back(workspace, to, slope, choice, direction, count):
    """Add the derivatives of the windows that chose a repeated number at the border to the number that it repeats."""
    none = constant(workspace[slope], 0)
    for i in range(count):
        workspace[to + i] += workspace[slope + i] if workspace[choice + i] == direction else none


@njit(**OPTIONS)
def pool_slope(workspace, to, a, slope, scratch, shape, factor):
    """Write the derivative of max_pool of factor · a, without the factor; `scratch` holds six bordered planes.

    Each derivative is first assigned to its row, then, within the row, to its column.
    """
    channels, rows, height, width, rows_per_tile = shape
    one, line = constant(factor, 1), width + U(2)
    plane = (height + U(2)) * line
    source, along = scratch, scratch + plane
    choice, given, passed = scratch + U(2) * plane, scratch + U(3) * plane, scratch + U(4) * plane
    fill(workspace, choice, U(3) * plane, constant(factor, 0))
    for c in range(channels):
        for first in range(U(0), rows, height):
            _copy_bordered(workspace, source, a, first, c, shape, factor)
            _pool_rows(workspace, along, source, plane)
            for h in range(height):
                incoming = _locate_row(slope, first + h, c, channels, width, rows_per_tile, rows)
                out = given + (h + U(1)) * line + U(1)
                for i in range(width):
                    workspace[out + i] = workspace[incoming + i]
            _choose(workspace, choice + line, along + line, line, height * line)
            _collect(workspace, passed + line, given + line, choice + line, line, height * line)
            _give_back(workspace, passed + line, given + line, choice + line, -one, line)
            bottom = height * line
            _give_back(workspace, passed + bottom, given + bottom, choice + bottom, one, line)
            _choose(workspace, choice + line, source + line, U(1), height * line)
            for h in range(height):
                out = _locate_row(to, first + h, c, channels, width, rows_per_tile, rows)
                at = (h + U(1)) * line + U(1)
                _collect(workspace, out, passed + at, choice + at, U(1), width)
                right = at + width - U(1)
                _give_back(workspace, out, passed + at, choice + at, -one, U(1))
                _give_back(workspace, out + width - U(1), passed + right, choice + right, one, U(1))
