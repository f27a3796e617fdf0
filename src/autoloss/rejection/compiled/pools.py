# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1's max_pool and its derivative in compiled loops, in one-dimensional passes: along rows, across them, through planes.

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
    channels, rows, _, height, width, rows_per_tile = shape
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
def _pool_columns(workspace, to, along, line, width):
    """Write the maxima of a row of a plane: of those along it and its two neighbours."""
    for i in range(width):
        workspace[to + i] = _first_largest(
            workspace[along + i], workspace[along + line + i], workspace[along + line + line + i]
        )[0]


@njit(**OPTIONS)
def _pool_volume(workspace, to, a, first, channel, scratch, shape, factor):
    """Write the maxima within each plane of a volume of factor · a, one plane after the other."""
    _, _, depth, height, width, _ = shape
    line = width + U(2)
    plane = (height + U(2)) * line
    for d in range(depth):
        _copy_bordered(workspace, scratch, a, first + d * height, channel, shape, factor)
        _pool_rows(workspace, scratch + plane, scratch, plane)
        for h in range(height):
            at = scratch + plane + h * line + U(1)
            _pool_columns(workspace, to + (d * height + h) * width, at, line, width)


@njit(**OPTIONS)
def pool(workspace, to, a, scratch, shape, factor):
    """Write max_pool of factor · a; `scratch` holds two bordered planes, and a volume after six of them if there are volumes.

    Args:
        shape: Channels, rows of all planes of the sample N·D·H, depth, height, width, rows per tile.
    """
    channels, rows, depth, height, width, rows_per_tile = shape
    line, area = width + U(2), height * width
    plane = (height + U(2)) * line
    source, along, volume = scratch, scratch + plane, scratch + U(6) * plane
    for c in range(channels):
        for first in range(U(0), rows, depth * height):
            if depth == U(1):
                _copy_bordered(workspace, source, a, first, c, shape, factor)
                _pool_rows(workspace, along, source, plane)
                for h in range(height):
                    out = _locate_row(to, first + h, c, channels, width, rows_per_tile, rows)
                    _pool_columns(workspace, out, along + h * line + U(1), line, width)
                continue
            _pool_volume(workspace, volume, a, first, c, scratch, shape, factor)
            for row in range(depth * height):
                out = _locate_row(to, first + row, c, channels, width, rows_per_tile, rows)
                at = volume + row * width
                # At the ends the row itself stands for the missing neighbour, which changes no maximum.
                before = at - area if row >= height else at
                after = at + area if row < (depth - U(1)) * height else at
                for i in range(width):
                    workspace[out + i] = _first_largest(workspace[before + i], workspace[at + i], workspace[after + i])[
                        0
                    ]


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
def _pass_through_planes(workspace, to, volume, slope, first, channel, shape):
    """Write the sums of the derivatives of the windows that chose each plane's maximum; `volume` holds these maxima."""
    channels, rows, depth, height, width, rows_per_tile = shape
    area = height * width
    fill(workspace, to, depth * area, constant(workspace[slope], 0))
    for row in range(depth * height):
        incoming = _locate_row(slope, first + row, channel, channels, width, rows_per_tile, rows)
        before = U(0) if row < height else area
        after = area if row < (depth - U(1)) * height else U(0)
        for i in range(width):
            at = row * width + i
            _, second, third = _first_largest(
                workspace[volume + at - before], workspace[volume + at], workspace[volume + at + after]
            )
            chosen = at + after if third else (at if second else at - before)
            workspace[to + chosen] += workspace[incoming + i]


@njit(**OPTIONS)
def pool_slope(workspace, to, a, slope, scratch, shape, factor):
    """Write the derivative of max_pool of factor · a, without the factor.

    Each derivative is first assigned to its plane, then to its row, then, within the row, to its column. `scratch` holds six
    bordered planes, and two volumes if there are volumes.
    """
    channels, rows, depth, height, width, rows_per_tile = shape
    one, line = constant(factor, 1), width + U(2)
    plane, area = (height + U(2)) * line, height * width
    source, along = scratch, scratch + plane
    choice, given, passed = scratch + U(2) * plane, scratch + U(3) * plane, scratch + U(4) * plane
    volume = scratch + U(6) * plane
    assigned = volume + depth * area
    fill(workspace, choice, U(3) * plane, constant(factor, 0))
    for c in range(channels):
        for first in range(U(0), rows, height):
            within = first % (depth * height)
            if depth > U(1) and within == U(0):
                _pool_volume(workspace, volume, a, first, c, scratch, shape, factor)
                _pass_through_planes(workspace, assigned, volume, slope, first, c, shape)
            _copy_bordered(workspace, source, a, first, c, shape, factor)
            _pool_rows(workspace, along, source, plane)
            for h in range(height):
                incoming = _locate_row(slope, first + h, c, channels, width, rows_per_tile, rows)
                if depth > U(1):
                    incoming = assigned + (within + h) * width
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
