# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1's max_pool and its slope in compiled loops, in two one-dimensional passes: along rows, then across them.

The first largest of a 3×3 window in reading order is the first row that holds the largest number, and in that row the first
column that does: so both the value and the gradient split in two. Planes lie in tiles of whole rows (see `tape.Layout`).
"""

from __future__ import annotations

from numba import njit

from autoloss.rejection.compiled.functions import INLINED, OPTIONS, constant
from autoloss.rejection.compiled.kernels import U, fill


@njit(**INLINED)
def _beats(x, most):
    """Say whether x takes the place of the largest number before it: when it is larger, or NaN."""
    # Not `or`: a branch would keep the loops around it from being vectorised.
    return (x > most) | (x != x)


@njit(**OPTIONS)
def _place(base, row, channel, channels, width, rows_per_tile, rows):
    """Return where a row of a channel begins."""
    tile = row // rows_per_tile
    first = tile * rows_per_tile
    held = min(rows_per_tile, rows - first)
    return base + (first * channels + channel * held + (row - first)) * width


@njit(**INLINED)
def _first_largest(x, y, z):
    """Return the largest of three in order, a NaN before all, and whether the second and the third took its place."""
    second = _beats(y, x)
    most = y if second else x
    third = _beats(z, most)
    return z if third else most, second, third


@njit(**OPTIONS)
def _bordered(workspace, to, a, first, channel, shape, factor):
    """Copy factor · a's plane with its outermost numbers once more on each side: what no number there can beat.

    Their share of the slope is given back to the numbers that they repeat. Loops over whole bordered planes, at shifted
    places, then need no borders.
    """
    channels, rows, height, width, rows_per_tile = shape
    line = width + U(2)
    for h in range(height):
        source = _place(a, first + h, channel, channels, width, rows_per_tile, rows)
        out = to + (h + U(1)) * line
        for i in range(width):
            workspace[out + U(1) + i] = factor * workspace[source + i]
        workspace[out] = workspace[out + U(1)]
        workspace[out + width + U(1)] = workspace[out + width]
    for i in range(line):
        workspace[to + i] = workspace[to + line + i]
        workspace[to + (height + U(1)) * line + i] = workspace[to + height * line + i]


@njit(**OPTIONS)
def _along_rows(workspace, to, a, count):
    """Write the largest of each number and its neighbours to the left and right."""
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
            _bordered(workspace, source, a, first, c, shape, factor)
            _along_rows(workspace, along, source, plane)
            for h in range(height):
                out = _place(to, first + h, c, channels, width, rows_per_tile, rows)
                at = along + h * line + U(1)
                for i in range(width):
                    workspace[out + i] = _first_largest(
                        workspace[at + i], workspace[at + line + i], workspace[at + line + line + i]
                    )[0]


@njit(**OPTIONS)
def _chosen(workspace, to, a, apart, count):
    """Write which of three numbers, `apart` from each other, is the largest: −1, 0 or 1."""
    one, none = constant(workspace[a], 1), constant(workspace[a], 0)
    for i in range(count):
        _, second, third = _first_largest(workspace[a + i - apart], workspace[a + i], workspace[a + i + apart])
        earlier = none if second else -one
        workspace[to + i] = one if third else earlier


@njit(**OPTIONS)
def _collected(workspace, to, slope, choice, apart, count):
    """Add up the slopes of the windows that chose each number."""
    one, none = constant(workspace[slope], 1), constant(workspace[slope], 0)
    for i in range(count):
        after = workspace[slope + i + apart] if workspace[choice + i + apart] == -one else none
        here = workspace[slope + i] if workspace[choice + i] == none else none
        before = workspace[slope + i - apart] if workspace[choice + i - apart] == one else none
        workspace[to + i] = after + here + before


@njit(**OPTIONS)
def _given_back(workspace, to, slope, choice, towards, count):
    """Add the slopes whose windows chose a repeated number beyond the border to the number that it repeats."""
    none = constant(workspace[slope], 0)
    for i in range(count):
        workspace[to + i] += workspace[slope + i] if workspace[choice + i] == towards else none


@njit(**OPTIONS)
def pool_slope(workspace, to, a, slope, scratch, shape, factor):
    """Write the slope of max_pool of factor · a, without the factor; `scratch` holds six bordered planes.

    First each slope finds its row, then, in that row, its column.
    """
    channels, rows, height, width, rows_per_tile = shape
    one, line = constant(factor, 1), width + U(2)
    plane = (height + U(2)) * line
    source, along = scratch, scratch + plane
    choice, given, passed = scratch + U(2) * plane, scratch + U(3) * plane, scratch + U(4) * plane
    fill(workspace, choice, U(3) * plane, constant(factor, 0))
    for c in range(channels):
        for first in range(U(0), rows, height):
            _bordered(workspace, source, a, first, c, shape, factor)
            _along_rows(workspace, along, source, plane)
            for h in range(height):
                incoming = _place(slope, first + h, c, channels, width, rows_per_tile, rows)
                out = given + (h + U(1)) * line + U(1)
                for i in range(width):
                    workspace[out + i] = workspace[incoming + i]
            _chosen(workspace, choice + line, along + line, line, height * line)
            _collected(workspace, passed + line, given + line, choice + line, line, height * line)
            _given_back(workspace, passed + line, given + line, choice + line, -one, line)
            bottom = height * line
            _given_back(workspace, passed + bottom, given + bottom, choice + bottom, one, line)
            _chosen(workspace, choice + line, source + line, U(1), height * line)
            for h in range(height):
                out = _place(to, first + h, c, channels, width, rows_per_tile, rows)
                at = (h + U(1)) * line + U(1)
                _collected(workspace, out, passed + at, choice + at, U(1), width)
                right = at + width - U(1)
                _given_back(workspace, out, passed + at, choice + at, -one, U(1))
                _given_back(workspace, out + width - U(1), passed + right, choice + right, one, U(1))
