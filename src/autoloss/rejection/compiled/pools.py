# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1's max_pool and its derivative in compiled loops, in one-dimensional passes: along rows, across them, through planes.

The first maximum of a 3×3 window in reading order lies in the first row that contains the maximum, at the first such column of
that row; so value and gradient are both separable. Planes are stored in tiles of whole rows (see `layout.Layout`). A pass runs
over a copy of a whole plane at once, since loops over single rows are too short for vectors. At a border the number itself
stands for the missing neighbour, which changes no maximum; a window that chose it has chosen the number.
"""

from __future__ import annotations

from numba import njit

from autoloss.rejection.compiled.functions import INLINED, OPTIONS, constant
from autoloss.rejection.compiled.kernels import U, fill

PLANES = 6
"""Planes with a border that a pool needs as scratch memory; the volumes follow them."""


@njit(**INLINED)
def _replaces(x, most):
    """Check whether x replaces the maximum so far: when it is larger, or NaN."""
    # Not `or`: a branch would keep the loops around it from being vectorised.
    return (x > most) | (x != x)


@njit(**INLINED)
def _first_largest(x, y, z):
    """Return the first maximum of three numbers, NaN counting as largest, and whether the second and the third replaced it."""
    second = _replaces(y, x)
    most = y if second else x
    third = _replaces(z, most)
    return z if third else most, second, third


@njit(**OPTIONS)
def _locate_rows(base, row, end, channel, shape):
    """Return the offset of a row of a channel, and how many rows before `end` follow it in its tile, itself included.

    The division costs as much as many additions, so callers ask once for each tile.
    """
    channels, rows, _, _, width, rows_per_tile = shape
    first = row // rows_per_tile * rows_per_tile
    held = min(rows_per_tile, rows - first)
    return base + (first * channels + channel * held + (row - first)) * width, min(first + held, end) - row


@njit(**OPTIONS)
def _read_plane(workspace, to, a, first, channel, shape, factor):
    """Copy a plane of factor · a to contiguous memory."""
    height, width = shape[3], shape[4]
    row, end = first, first + height
    while row < end:
        source, there = _locate_rows(a, row, end, channel, shape)
        for i in range(there * width):
            workspace[to + i] = factor * workspace[source + i]
        to += there * width
        row += there


@njit(**OPTIONS)
def _mark_edges(workspace, edges, height, width):
    """Write 1 in the first column of a plane, 2 in the last, their sum where these are one, else 0."""
    fill(workspace, edges, height * width, constant(workspace[edges], 0))
    for h in range(height):
        workspace[edges + h * width] += constant(workspace[edges], 1)
        workspace[edges + h * width + width - U(1)] += constant(workspace[edges], 2)


@njit(**INLINED)
def _look_along(workspace, a, edges):
    """Return `_first_largest` of a number and its neighbours in its row, and whether it is the first or last of the row."""
    x, edge = workspace[a], workspace[edges]
    first, last = (edge == constant(x, 1)) | (edge == constant(x, 3)), edge >= constant(x, 2)
    most, second, third = _first_largest(x if first else workspace[a - U(1)], x, x if last else workspace[a + U(1)])
    return most, second | first, third & (not last)


@njit(**OPTIONS)
def _pool_rows(workspace, to, a, edges, count):
    """Write the maximum of each number and its neighbours in its row."""
    for i in range(count):
        workspace[to + i] = _look_along(workspace, a + i, edges + i)[0]


@njit(**OPTIONS)
def _pool_rows_choosing(workspace, to, choice, a, edges, count):
    """Do the same, and write which of the three is the first maximum: −1, 0 or 1."""
    one, none = constant(workspace[a], 1), constant(workspace[a], 0)
    for i in range(count):
        most, second, third = _look_along(workspace, a + i, edges + i)
        earlier = none if second else -one
        workspace[to + i] = most
        workspace[choice + i] = one if third else earlier
    workspace[choice - U(1)] = workspace[choice + count] = none


@njit(**OPTIONS)
def _repeat_ends(workspace, a, height, width):
    """Write the first row of a plane once more before it, and the last after it."""
    for i in range(width):
        workspace[a - width + i] = workspace[a + i]
        workspace[a + height * width + i] = workspace[a + (height - U(1)) * width + i]


@njit(**OPTIONS)
def _pool_columns(workspace, to, a, width, count):
    """Write the maximum of each number and those above and below it."""
    for i in range(count):
        workspace[to + i] = _first_largest(workspace[a + i - width], workspace[a + i], workspace[a + i + width])[0]


@njit(**OPTIONS)
def _pool_plane(workspace, a, first, channel, scratch, shape, factor):
    """Prepare the maxima of a plane of factor · a: those along its rows; returns their place."""
    height, width = shape[3], shape[4]
    plane = (height + U(2)) * (width + U(2))
    source = scratch + width + U(1)
    along = source + plane
    _read_plane(workspace, source, a, first, channel, shape, factor)
    _pool_rows(workspace, along, source, scratch + U(5) * plane, height * width)
    _repeat_ends(workspace, along, height, width)
    return along


@njit(**OPTIONS)
def _pool_volume(workspace, to, a, first, channel, scratch, shape, factor):
    """Write the maxima within each plane of a volume of factor · a, one plane after the other."""
    depth, height, width = shape[2], shape[3], shape[4]
    area = height * width
    for d in range(depth):
        along = _pool_plane(workspace, a, first + d * height, channel, scratch, shape, factor)
        _pool_columns(workspace, to + d * area, along, width, area)


@njit(**OPTIONS)
def pool(workspace, to, a, scratch, shape, factor):
    """Write max_pool of factor · a; `scratch` holds `PLANES` bordered planes, and a volume after them if there are volumes.

    Args:
        shape: Channels, rows of all planes of the sample N·D·H, depth, height, width, rows per tile.
    """
    channels, rows, depth, height, width, _ = shape
    area, plane = height * width, (height + U(2)) * (width + U(2))
    volume = scratch + U(PLANES) * plane
    _mark_edges(workspace, scratch + U(5) * plane, height, width)
    for c in range(channels):
        for first in range(U(0), rows, depth * height):
            row, end = first, first + depth * height
            if depth == U(1):
                at = _pool_plane(workspace, a, first, c, scratch, shape, factor)
                while row < end:
                    out, there = _locate_rows(to, row, end, c, shape)
                    _pool_columns(workspace, out, at, width, there * width)
                    at += there * width
                    row += there
                continue
            _pool_volume(workspace, volume, a, first, c, scratch, shape, factor)
            for row in range(depth * height):
                out, _ = _locate_rows(to, first + row, end, c, shape)
                at = volume + row * width
                before = at - area if row >= height else at
                after = at + area if row < (depth - U(1)) * height else at
                for i in range(width):
                    workspace[out + i] = _first_largest(workspace[before + i], workspace[at + i], workspace[after + i])[
                        0
                    ]


@njit(**OPTIONS)
def _choose_rows(workspace, to, a, height, width):
    """Write which of each number and those above and below it is the first maximum: −1, 0 or 1."""
    one, none = constant(workspace[a], 1), constant(workspace[a], 0)
    count = height * width
    for i in range(count):
        _, second, third = _first_largest(workspace[a + i - width], workspace[a + i], workspace[a + i + width])
        earlier = none if second else -one
        workspace[to + i] = one if third else earlier
    last = to + count - width
    for i in range(width):
        workspace[to + i] = none if workspace[to + i] == -one else workspace[to + i]
        workspace[last + i] = none if workspace[last + i] == one else workspace[last + i]
        workspace[to - width + i] = workspace[to + count + i] = none


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
def _pass_through_planes(workspace, to, volume, slope, first, channel, shape):
    """Write the sums of the derivatives of the windows that chose each plane's maximum; `volume` holds these maxima."""
    _, rows, depth, height, width, _ = shape
    area = height * width
    fill(workspace, to, depth * area, constant(workspace[slope], 0))
    for row in range(depth * height):
        incoming, _ = _locate_rows(slope, first + row, rows, channel, shape)
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

    Each derivative is first assigned to its plane, then to its row, then, within the row, to its column. `scratch` holds
    `PLANES` bordered planes, and two volumes if there are volumes.
    """
    channels, rows, depth, height, width, _ = shape
    area, plane = height * width, (height + U(2)) * (width + U(2))
    source = passed = scratch + width + U(1)
    along, choice, across, given = source + plane, source + U(2) * plane, source + U(3) * plane, source + U(4) * plane
    edges, volume = scratch + U(5) * plane, scratch + U(PLANES) * plane
    assigned = volume + depth * area
    _mark_edges(workspace, edges, height, width)
    for c in range(channels):
        for first in range(U(0), rows, height):
            within = first % (depth * height)
            if depth > U(1) and within == U(0):
                _pool_volume(workspace, volume, a, first, c, scratch, shape, factor)
                _pass_through_planes(workspace, assigned, volume, slope, first, c, shape)
            _read_plane(workspace, source, a, first, c, shape, factor)
            _pool_rows_choosing(workspace, along, across, source, edges, area)
            _repeat_ends(workspace, along, height, width)
            _choose_rows(workspace, choice, along, height, width)
            if depth == U(1):
                _read_plane(workspace, given, slope, first, c, shape, constant(factor, 1))
            incoming = given if depth == U(1) else assigned + within * width
            _collect(workspace, passed, incoming, choice, width, area)
            row, end, at = first, first + height, U(0)
            while row < end:
                out, there = _locate_rows(to, row, end, c, shape)
                _collect(workspace, out, passed + at, across + at, U(1), there * width)
                at += there * width
                row += there
