"""The report as a file, of one run or of several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from autoloss.errors import RequestError
from autoloss.files import write_text
from autoloss.report.page.contents import gather_contents, gather_runs
from autoloss.report.page.rendering import GENERATOR, page
from autoloss.report.page.scenes import make_scenes
from autoloss.run.results import Search
from autoloss.store.read import Reader

FILE, COMPARISON_FILE = "report.html", "comparison.html"


def write_report(
    directory: Path,
    out: Path | None = None,
    *,
    scenes: bool = False,
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[Path, list[str]]:
    """Write the report of a run, which may still be in progress.

    Args:
        out: The file; `report.html` in the run's folder if omitted. An earlier report is replaced, any other file is not.
        scenes: Train two networks to draw test images, unless the scenes are stored already.
        trust: Run the files that the run names, for the scenes, even if another user started it.
        say: Called with a line before each training.

    Returns:
        The file, and descriptions of the damaged parts of the run.
    """
    path = directory / FILE if out is None else out
    _refuse_other(path)
    reader = Reader(directory)
    contents = gather_contents(reader)
    if scenes and contents.scenes is None:
        contents.scenes = make_scenes(Search(reader, trust=trust), say)
    write_text(path, page(contents))
    return path, list(reader.damaged)


def write_comparison(directories: Sequence[Path], out: Path | None = None) -> tuple[Path, list[str]]:
    """Write the comparison of several runs as one HTML file.

    Args:
        out: The file; `comparison.html` in the current folder if omitted. An earlier report is replaced, any other file is not.

    Returns:
        The file, and descriptions of the damaged parts of the runs.
    """
    if len({directory.resolve() for directory in directories}) < len(directories):
        raise RequestError(f"Found {', '.join(map(str, directories))}; a comparison needs different runs.")
    path = Path(COMPARISON_FILE) if out is None else out
    _refuse_other(path)
    readers = [Reader(directory) for directory in directories]
    write_text(path, page(gather_runs([Search(reader) for reader in readers])))
    return path, [problem for reader in readers for problem in reader.damaged]


def _refuse_other(path: Path) -> None:
    """Raise if a file exists that is not a report."""
    if path.is_dir():
        raise RequestError(f"{path} is a folder; name a file.", argument="out")
    if path.exists() and GENERATOR not in path.read_bytes()[:4000]:
        problem = f"{path} exists already and is not a report, so it is not replaced. Name another file."
        raise RequestError(problem, argument="out")
