"""Options that all tasks on files share, and how many images are held out."""

from __future__ import annotations

from pathlib import Path

from autoloss.errors import RequestError
from autoloss.options import Natural, PositiveShare, declare


@declare()
class FileOptions:
    """Options of every task whose data are files."""

    data: str | Path | None = None
    """Folder of the data set."""
    seed: int = 0
    """Seed of the images that are held out for validation, and of those that the proxy trains on."""
    device: str = "auto"
    """Device on which networks are trained; auto is a GPU if there is one."""
    loaders: Natural = 0
    """Worker processes that read images ahead; without them a GPU waits for its data."""

    def find_data(self, name: str, layout: str, origin: str = "") -> Path:
        """Return the folder of the data.

        Args:
            name: What the folder holds, for the message.
            origin: Where the data come from.

        Raises:
            RequestError: No folder was given.
        """
        if self.data is None:
            source = f"\nThey come from {origin}." if origin else ""
            raise RequestError(
                f"The option data is missing: the folder of {name}. Expected\n{layout}{source}", argument="data"
            )
        return Path(self.data)

    def find_device(self) -> str:
        """Return the device's name in torch."""
        import torch

        return ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device


@declare()
class AnnotatedOptions(FileOptions):
    """Options of every task on annotated images, of which some are held out and the proxy trains on a share of the rest."""

    held_out: int | None = None
    """Number of training images held out for validation; the paper's share when None."""
    share: PositiveShare = 1.0
    """Share of the other training images that the proxy trains on."""


def count_held_out(given: int | None, images: int, paper: tuple[int, int]) -> int:
    """Return how many images are held out: the number given, or the paper's share of them, at most as many as in the paper.

    Args:
        paper: Images that the paper holds out, and of how many.
    """
    held, of = paper
    return max(1, min(held, round(images * held / of))) if given is None else given
