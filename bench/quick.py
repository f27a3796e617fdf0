"""Runs every script under bench/ with `--quick` and prints its figures next to those of docs/results.md.

python bench/quick.py --out quick.md

A script is a file in one of the folders with a `main`; their names are unique. The right column is the figure of the full run, in
bench/results/, where the section of docs/results.md that names the script repeats it. A quick run takes a smaller sample, so its
figures need not be equal. Exit code 1 when a script fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(path) for path in sorted(Path(__file__).resolve().parent.iterdir()) if path.is_dir()]

import psutil

from autoloss.workers.process_table import find_descendants
from output import NOT_RUN, Figure, NoRowError

BENCH = Path(__file__).resolve().parent
PAGES = [BENCH.parent / "docs" / name for name in ("results.md", "measurements.md")]
LIMIT_SECONDS = 600.0
"""Limit for one script. It takes up to 60 on two idle cores of a usual machine, `proxies` 300 on one without bfloat16."""


@dataclass(frozen=True, slots=True)
class Run:
    """A script that was run: its result, or the reason why it has none."""

    name: str
    seconds: float
    result: Mapping[str, Any] | None = None
    failure: str = ""


def main(argv: Sequence[str] | None = None) -> None:
    scripts = find_scripts()
    names = list(scripts)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="SCRIPT", help="only these scripts")
    parser.add_argument("--limit-seconds", type=float, default=LIMIT_SECONDS, help="of one script")
    arguments = parser.parse_args(argv)
    page, runs = read_pages(), []
    for name in arguments.only:
        runs.append(run_script(scripts[name], arguments.limit_seconds))
        print(f"{name}: {runs[-1].seconds:.0f} s {runs[-1].failure}", file=sys.stderr, flush=True)
    table = format_table(runs, page)
    print(table)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(table + "\n", encoding="utf-8")
    if failed := [run.name for run in runs if run.failure or "FAILED" in "".join(_cells(run, page))]:
        raise SystemExit(f"Failed: {', '.join(failed)}")


def find_scripts() -> dict[str, Path]:
    """Return the file of every script by its name."""
    files = sorted(BENCH.glob("*/*.py"), key=lambda path: path.stem)
    return {path.stem: path for path in files if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")}


def run_script(path: Path, limit_seconds: float, arguments: Sequence[str] = ()) -> Run:
    """Run a script, kill it with its descendants at the limit, and read the JSON document it prints."""
    began = time.monotonic()
    command = [sys.executable, str(path), "--quick", "--json", *arguments]
    with tempfile.TemporaryFile("w+") as errors, tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, start_new_session=True
        )
        try:
            printed, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            # Drivers of a script have process groups of their own.
            for one in [*find_descendants(process.pid), process]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            process.communicate()
            return Run(path.stem, limit_seconds, failure=f"took more than {limit_seconds:g} s")
        errors.seek(0)
        said = errors.read().strip().splitlines()
    seconds = time.monotonic() - began
    try:
        result = json.loads(printed)
    except ValueError:
        result = None
    if process.returncode:
        failure = f"exit code {process.returncode}{': ' + said[-1] if said else ''}"
    else:
        failure = "" if isinstance(result, dict) else "printed no JSON document"
    return Run(path.stem, seconds, result if isinstance(result, dict) else None, failure)


def format_table(runs: Iterable[Run], page: str) -> str:
    """Return a Markdown table of the figures of all runs."""
    head = ["| script | figure | now (quick) | docs/results.md |", "|---|---|---|---|"]
    return "\n".join([*head, *(row for run in runs for row in _cells(run, page))])


def _cells(run: Run, page: str) -> Iterator[str]:
    title = f"{run.name} ({run.seconds:.0f} s)"
    if run.failure or run.result is None:
        yield _line(title, "", f"FAILED: {run.failure}", "")
        return
    if NOT_RUN in run.result:
        yield _line(title, "", f"not run: {run.result[NOT_RUN]}", "")
        return
    for number, (label, figure) in enumerate(read_figures(run.name).items()):
        try:
            now = figure.format(run.result)
        except NoRowError:
            now = "not in the smaller sample"
        except KeyError as missing:
            now = f"FAILED: no {missing} in the result"
        yield _line("" if number else title, label, now, find_claim(run.name, figure, page))


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def read_figures(name: str) -> Mapping[str, Figure]:
    """Return the figures that a script declares, each under a label."""
    return importlib.import_module(name).FIGURES


def read_pages() -> str:
    """Return the text of docs/results.md and of the measurements behind it."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def read_results(name: str) -> Mapping[str, Any]:
    """Return the committed result of a script's full run."""
    return json.loads((BENCH / "results" / f"{name}.json").read_text(encoding="utf-8"))


def find_claim(name: str, figure: Figure, page: str) -> str:
    """Return a figure of the full run, and say so where the page does not repeat it."""
    text = figure.format(read_results(name))
    return text if is_claimed(text, name, page) else f"{text} (only in bench/results/{name}.json)"


def is_claimed(text: str, name: str, page: str) -> bool:
    """Say whether a section of the page that names the script has this number."""
    sections = [section for section in re.split(r"(?m)^(?=## )", page) if re.search(rf"bench/\w+/{name}\.py", section)]
    number = re.compile(rf"(?<![\w.,−]){re.escape(text)}(?!\w|[.,]\d)")
    return any(number.search(section) for section in sections)


if __name__ == "__main__":
    main()
