"""The memory layout of one sample in the engine's flat workspace: tiles of whole rows, channel after channel.

A tile is small enough for everything that one step of SGD touches to stay in the first-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

TILE_POSITIONS = 128
"""Positions of a tile; longer rows are a tile each."""
ALIGNMENT = 16
"""Elements; a cache line of single precision."""

KEPT_REGISTERS = 32
"""Registers of one tile for which a sample's own workspace has room."""

Z, VELOCITY, P, Y, MASK = range(5)
"""Areas at the start of the workspace, each as large as all channels of the leaves."""


@dataclass(frozen=True)
class Layout:
    """The shape of a sample's leaves, (N, C, H, W), and the sizes derived from it, each computed once.

    Args:
        raw: Channels of the raw prediction, where the leaves are not its activation (boxes).
        given: Likewise, rows of fixed inputs.
        depth: Planes of a volume: (N, C, D, H, W) is stored as N·D planes.
        scores: Scores of items, where each position is a pair of them; they are raw then, and belong to no position.
    """

    planes: int
    channels: int
    height: int
    width: int
    raw: int = 0
    given: int = 0
    depth: int = 1
    scores: int = 0

    @cached_property
    def moving(self) -> int:
        """Channels that are optimised; none of pairs, whose scores are."""
        return 0 if self.scores else self.raw or self.channels

    @cached_property
    def rows(self) -> int:
        """Rows of all planes of an image or volume."""
        return self.planes * self.height

    @cached_property
    def positions(self) -> int:
        """Positions of a channel."""
        return self.rows * self.width

    @cached_property
    def flat(self) -> bool:
        """Whether an image or volume has one position only, so that pools change nothing."""
        return self.height == self.width == self.depth == 1

    @cached_property
    def rows_per_tile(self) -> int:
        """Rows of every tile but the last."""
        return min(self.rows, max(1, TILE_POSITIONS // self.width))

    @cached_property
    def tile(self) -> int:
        """Positions of every tile but the last, which may have fewer."""
        return self.rows_per_tile * self.width

    @cached_property
    def area(self) -> int:
        """Elements of the largest array over all channels and positions."""
        return pad_size(max(max(self.channels, self.raw, self.given) * self.positions, self.scores))

    @cached_property
    def scratch(self) -> int:
        """Elements of scratch memory: two tiles for an activation; for a pool, six planes with a border and two volumes; scores."""
        volumes = 2 * self.depth * self.height * self.width if self.depth > 1 else 0
        return pad_size(max(2 * self.tile, 6 * (self.height + 2) * (self.width + 2) + volumes, self.scores))

    @cached_property
    def head(self) -> int:
        """Elements before the registers of the tape: the fixed areas, then scratch."""
        return (MASK + 1) * self.area + self.scratch

    @cached_property
    def kept(self) -> int:
        """Elements of a workspace that a sample keeps: enough for most programs whose registers are those of one tile."""
        return self.head + self.area + KEPT_REGISTERS * pad_size(self.channels * self.tile)

    def pack(self, array: NDArray[np.floating]) -> NDArray[np.floating]:
        """Convert (N, C, H, W) to the order of the workspace, one flat array."""
        flat = array.transpose(1, 0, 2, 3).reshape(array.shape[1], self.positions)
        whole = self.positions - self.positions % self.tile
        tiles = flat[:, :whole].reshape(len(flat), -1, self.tile).transpose(1, 0, 2)
        return np.concatenate([tiles.ravel(), flat[:, whole:].ravel()])

    def unpack(self, packed: NDArray[np.floating]) -> NDArray[np.floating]:
        """Convert one flat array back to (N, C, H, W)."""
        channels = len(packed) // self.positions
        whole = self.positions - self.positions % self.tile
        tiles = packed[: channels * whole].reshape(-1, channels, self.tile).transpose(1, 0, 2)
        rest = packed[channels * whole :].reshape(channels, -1)
        flat = np.concatenate([tiles.reshape(channels, whole), rest], axis=1)
        return flat.reshape(channels, self.planes, self.height, self.width).transpose(1, 0, 2, 3)


def pad_size(count: int) -> int:
    """Return the padded size of `count` elements: aligned, and never a power of two, at which arrays would share cache lines."""
    return (count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT + ALIGNMENT
