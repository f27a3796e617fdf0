# type: ignore  # noqa: PGH003  # numba compiles this file; its types are those of the arguments it meets.
"""Table 1's max_pool and its slope in compiled loops, in two one-dimensional passes: along rows, then across them.

The first largest of a 3×3 window in reading order is the first row that holds the largest number, and in that row the first
column that does: so both the value and the gradient split in two. Planes lie in tiles of whole rows (see `tape.Layout`).
"""

from __future__ import annotations

from numba import njit

from autoloss.algorithm.rejection.functions import OPTIONS, constant
from autoloss.algorithm.rejection.kernels import U, fill


@njit(**OPTIONS)
def _beats(x, most):
    """Say whether x takes the place of the largest number before it: when it is larger, or NaN."""
    return x > most or x != x


@njit(**OPTIONS)
def _place(base, row, channel, channels, width, rows_per_tile, rows):
    """Return where a row of a channel begins."""
    tile = row // rows_per_tile
    first = tile * rows_per_tile
    held = min(rows_per_tile, rows - first)
    return base + (first * channels + channel * held + (row - first)) * width


@njit(**OPTIONS)
def _pool_row(workspace, to, a, width, factor):
    """Take the largest of each number and its neighbours to the left and right."""
    for i in range(width):
        workspace[to + i] = factor * workspace[a + i]
    for i in range(U(1), width):
        left, centre = factor * workspace[a + i - U(1)], factor * workspace[a + i]
        workspace[to + i] = centre if _beats(centre, left) else left
    for i in range(width - U(1)):
        right, most = factor * workspace[a + i + U(1)], workspace[to + i]
        workspace[to + i] = right if _beats(right, most) else most


@njit(**OPTIONS)
def _pool_column(workspace, to, above, centre, below, width):
    """Take the largest of three rows; a row outside the plane is given as the centre itself."""
    for i in range(width):
        high, middle, low = workspace[above + i], workspace[centre + i], workspace[below + i]
        most = middle if _beats(middle, high) else high
        workspace[to + i] = low if _beats(low, most) else most


@njit(**OPTIONS)
def _slope_column(workspace, slope, above, centre, below, to_above, to_centre, to_below, width):
    """Give each slope of a row to the one of three rows whose number it was."""
    for i in range(width):
        high, middle, low = workspace[above + i], workspace[centre + i], workspace[below + i]
        down = _beats(middle, high)
        last = _beats(low, middle if down else high)
        g = workspace[slope + i]
        none = constant(g, 0)
        workspace[to_above + i] += none if down or last else g
        workspace[to_centre + i] += g if down and not last else none
        workspace[to_below + i] += g if last else none


@njit(**OPTIONS)
def _slope_row(workspace, to, a, slope, scratch, width, factor):
    """Give each slope of a row to the one of three neighbours whose number it was; `scratch` holds 2·width + 2."""
    zero, one = constant(factor, 0), constant(factor, 1)
    padded, choice = scratch, scratch + width + U(2)
    last = width - U(1)
    # Beyond the row stands its own outermost number once more, whose share is given back to it below.
    workspace[padded] = factor * workspace[a]
    workspace[padded + width + U(1)] = factor * workspace[a + last]
    for i in range(width):
        workspace[padded + U(1) + i] = factor * workspace[a + i]
    for i in range(width):
        left, centre, right = workspace[padded + i], workspace[padded + i + U(1)], workspace[padded + i + U(2)]
        moved = _beats(centre, left)
        far = _beats(right, centre if moved else left)
        workspace[choice + i] = one if far else (zero if moved else -one)
    for i in range(width):
        workspace[to + i] = workspace[slope + i] if workspace[choice + i] == zero else zero
    for i in range(last):
        workspace[to + i] += workspace[slope + i + U(1)] if workspace[choice + i + U(1)] < zero else zero
    for i in range(last):
        workspace[to + i + U(1)] += workspace[slope + i] if workspace[choice + i] > zero else zero
    workspace[to] += workspace[slope] if workspace[choice] < zero else zero
    workspace[to + last] += workspace[slope + last] if workspace[choice + last] > zero else zero


@njit(**OPTIONS)
def pool(workspace, to, a, scratch, channels, rows, height, width, rows_per_tile, factor):
    """Write max_pool of factor · a; `scratch` holds one plane.

    Args:
        rows: Rows of all planes of the sample, N·H.
    """
    for c in range(channels):
        for first in range(U(0), rows, height):
            for h in range(height):
                source = _place(a, first + h, c, channels, width, rows_per_tile, rows)
                _pool_row(workspace, scratch + h * width, source, width, factor)
            for h in range(height):
                centre = scratch + h * width
                above = centre - width if h > U(0) else centre
                below = centre + width if h + U(1) < height else centre
                out = _place(to, first + h, c, channels, width, rows_per_tile, rows)
                _pool_column(workspace, out, above, centre, below, width)


@njit(**OPTIONS)
def pool_slope(workspace, to, a, slope, scratch, channels, rows, height, width, rows_per_tile, factor):
    """Write the slope of max_pool of factor · a, without the factor; `scratch` holds two planes and two padded rows."""
    plane = height * width
    passed, row = scratch + plane, scratch + plane + plane
    for c in range(channels):
        for first in range(U(0), rows, height):
            fill(workspace, passed, plane, constant(factor, 0))
            for h in range(height):
                source = _place(a, first + h, c, channels, width, rows_per_tile, rows)
                _pool_row(workspace, scratch + h * width, source, width, factor)
            for h in range(height):
                at = h * width
                up = at - width if h > U(0) else at
                down = at + width if h + U(1) < height else at
                given = _place(slope, first + h, c, channels, width, rows_per_tile, rows)
                _slope_column(
                    workspace,
                    given,
                    scratch + up,
                    scratch + at,
                    scratch + down,
                    passed + up,
                    passed + at,
                    passed + down,
                    width,
                )
            for h in range(height):
                source = _place(a, first + h, c, channels, width, rows_per_tile, rows)
                out = _place(to, first + h, c, channels, width, rows_per_tile, rows)
                _slope_row(workspace, out, source, passed + h * width, row, width, factor)
