"""The report as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from autoloss.atomic_files import write_text
from autoloss.errors import RequestError
from autoloss.report.page import scenes as scene_files
from autoloss.report.page.contents import gathered
from autoloss.report.page.rendering import GENERATOR, page
from autoloss.run.results import Search
from autoloss.store.read import Reader

FILE = "report.html"


def write_report(
    directory: Path, out: Path | None = None, *, scenes: bool = False, say: Callable[[str], None] = lambda text: None
) -> tuple[Path, list[str]]:
    """Write the report of a run, which may still be in progress.

    Args:
        out: The file; `report.html` in the run's folder when left out. An earlier report is replaced, any other file is not.
        scenes: Train twice to draw test images, unless that was done before.
        say: Told what takes time.

    Returns:
        The file, and what of the run could not be read.

    Raises:
        RequestError: There is no run, the file is another one's or cannot be written, or no scenes can be drawn.
        StoreError: The run cannot be read at all.
    """
    path = directory / FILE if out is None else out
    refuse_other(path)
    reader = Reader(directory)
    contents = gathered(reader)
    if scenes:
        if contents.best is None:
            raise RequestError(
                f"No loss of the run in {directory} has a score yet, so there are no scenes. Leave them out.",
                argument="scenes",
            )
        if contents.scenes is None:
            scene_files.made(Search(reader), contents.best.formula.found, say)
            contents = gathered(reader)
    write_text(path, page(contents))
    return path, list(reader.damaged)


def refuse_other(path: Path) -> None:
    """Refuse to replace a file that is no report.

    Raises:
        RequestError: It is a folder or another file.
    """
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file.", argument="out")
    if path.exists() and GENERATOR not in path.read_bytes()[:4000]:
        raise RequestError(
            f"{path} exists already and is no report, so it is not replaced. Name another file.", argument="out"
        )
