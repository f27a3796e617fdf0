"""The command line: parse → call → print."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from autoloss.errors import OwnedError, RequestError, RunError

if TYPE_CHECKING:
    from rich.console import Console

    from autoloss.run.results import Search

app = typer.Typer(
    name="autoloss",
    help="Search loss functions from scratch, for any PyTorch task and any evaluation metric.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="A name of `autoloss tasks`, or file.py:name.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]
Metric = Annotated[str | None, typer.Option(help="What the task is judged by; its default when left out.")]
Data = Annotated[str | None, typer.Option(help="A data set's folder or file.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting (group.name) or an option of the task."),
]
Workers = Annotated[int, typer.Option(min=0, help="Processes that train and test; 0: all in this one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def search(
    task: TaskName,
    metric: Metric = None,
    data: Data = None,
    evaluations: Annotated[int | None, typer.Option(help="Trainings the search may spend (500).")] = None,
    seed: Annotated[int, typer.Option(help="Decides everything that is drawn.")] = 0,
    workers: Workers = 2,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; a new one under runs by default.")] = None,
    final: Annotated[bool, typer.Option(help="Re-train the best and compare them with baselines at the end.")] = True,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Search a loss for a task."""
    settings, options = _assigned(assignments, data)
    _early(task, metric)
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    console = _console(to_stderr=as_json)
    with _stoppable(), Status(console) as status:
        found = runs.search(
            task,
            metric=metric,
            evaluations=evaluations,
            seed=seed,
            workers=workers,
            directory=out,
            settings=settings,
            options=options,
            final=final,
            observe=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


@app.command()
def resume(
    directory: Directory,
    evaluations: Annotated[str | None, typer.Option(help="A new budget, or +N for N more trainings.")] = None,
    workers: Workers = 2,
    final: Annotated[bool, typer.Option(help="Re-train the best and compare them with baselines at the end.")] = True,
    as_json: AsJson = False,
) -> None:
    """Go on with a run where it stopped."""
    from autoloss.report.status import Status
    from autoloss.run import search as runs

    budget = _budget(evaluations, directory)
    console = _console(to_stderr=as_json)
    with _stoppable(), Status(console) as status:
        found = runs.resume(
            directory,
            evaluations=budget,
            workers=workers,
            final=final,
            observe=status.observe,
            say=status.say,
        )
    _conclude(found, as_json)


@app.command()
def top(
    directory: Directory,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the best losses of a run; also while it runs."""
    from autoloss.report.leaderboard import top_rows, top_table
    from autoloss.run.results import opened

    found = opened(directory)
    if as_json:
        _print_json(top_rows(found, count))
    else:
        _console().print(top_table(found, count))


@app.command()
def show(
    directory: Directory, individual: Annotated[int, typer.Argument(metavar="ID")], as_json: AsJson = False
) -> None:
    """Show one loss of a run: where it came from, why it passed, what its training came to."""
    from autoloss.report.leaderboard import print_show, show_values
    from autoloss.run.results import opened, training_command

    found = opened(directory)
    values = show_values(found, _individual(found, individual))
    if as_json:
        _print_json(values)
    else:
        print_show(_console(), values, training_command(found, values["formula"]))


@app.command()
def score(
    task: TaskName,
    loss: Annotated[
        list[str], typer.Option(help="A formula, a name of the zoo, or a file; may be given several times.")
    ],
    metric: Metric = None,
    data: Data = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings per loss.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides the seeds of the trainings.")] = 0,
    split: Annotated[str, typer.Option(help="What is measured: valid or test.")] = "valid",
    workers: Workers = 2,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train a task with given losses and show how well each does."""
    settings, options = _assigned(assignments, data)
    _early(task, metric)
    from autoloss.report.leaderboard import comparison_rows, comparison_table
    from autoloss.run.scoring import score as scored

    with _stoppable():
        rows = scored(
            task,
            loss,
            metric=metric,
            options=options,
            settings=settings,
            seeds=seeds,
            seed=seed,
            split=split,
            workers=workers,
        )
    if as_json:
        _print_json(comparison_rows(rows))
    else:
        _console().print(comparison_table(f"{task}, {split} split", rows))


@app.command()
def compare(
    directory: Directory,
    top: Annotated[int, typer.Option(min=1, help="So many of the best losses.")] = 3,
    seeds: Annotated[int, typer.Option(min=2, help="Trainings per loss, on fresh seeds.")] = 5,
    baselines: Annotated[str, typer.Option(help="usual (standard loss and Dice), or all that fit the task.")] = "usual",
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Re-train the best losses of a run and the baselines on fresh seeds and held-out data."""
    from autoloss.report.leaderboard import comparison_rows, comparison_table, verdict
    from autoloss.run.results import opened
    from autoloss.run.scoring import compare as compared

    with _stoppable():
        rows = compared(directory, top=top, seeds=seeds, workers=workers, baselines=baselines)
    if as_json:
        _print_json(comparison_rows(rows))
    else:
        console = _console()
        console.print(comparison_table(f"{directory}, test split", rows))
        console.print(verdict(rows, f"#{opened(directory).best.id}"), soft_wrap=True)


@app.command()
def retrain(
    context: typer.Context,
    directory: Directory,
    individual: Annotated[int | None, typer.Argument(metavar="[ID]", help="The winner when left out.")] = None,
    recipe: Annotated[str | None, typer.Option(help="One of the paper's retrainings; its rows stand beside.")] = None,
    data: Data = None,
    baselines: Annotated[
        str | None,
        typer.Option(help="Names of the zoo, with commas; or none. The standard loss and Dice when left out."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings per loss (3).")] = None,
    split: Annotated[str, typer.Option(help="What is measured: test or valid.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Where trainings are kept; DIR/retraining by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the task's own by default.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the loss is in float32.")] = None,
    channels_last: Annotated[bool | None, typer.Option(help="The memory format that GPUs convolve faster.")] = None,
    checkpoint_seconds: Annotated[
        float | None, typer.Option(min=0, help="A killed training loses at most so much (120).")
    ] = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train a found loss and baselines with the full schedule; a killed retraining goes on when asked again."""
    settings, options = _assigned(assignments, data)
    if settings:
        raise RequestError(
            f"A retraining takes options of the task; found the setting {', '.join(settings)} of a search."
        )
    from autoloss.report.retrained import retraining_table, write
    from autoloss.report.status import Status
    from autoloss.run.retraining import retrain as retrained

    console = _console(to_stderr=as_json)
    again = f"Go on with: autoloss {shlex.join(context.obj)}"
    with _stoppable(again), Status(console) as status:
        found = retrained(
            directory,
            individual,
            recipe=recipe,
            options=options,
            against=None if baselines is None else _listed(baselines),
            training_seeds=seeds,
            split=split,
            out=out,
            device=device,
            precision=precision,
            channels_last=channels_last,
            checkpoint_seconds=checkpoint_seconds,
            observe=status.observe,
            say=status.say,
        )
    if not _speaks():
        return
    written = write(found)
    if as_json:
        _print_json(found.values())
    else:
        console.print(retraining_table(found))
        console.print(f"Written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)


@app.command()
def tasks(as_json: AsJson = False) -> None:
    """List the tasks that come with autoloss."""
    from autoloss.report.leaderboard import table
    from autoloss.tasks.catalogue import CATALOGUE

    if as_json:
        rows = [
            {"name": name, "metrics": list(row.metrics), "description": row.description}
            for name, row in CATALOGUE.items()
        ]
        _print_json(rows)
        return
    rows = ((name, ", ".join(row.metrics), row.description) for name, row in CATALOGUE.items())
    _console().print(table("Tasks", {"name": "left", "metrics (the default first)": "left", "what": "left"}, rows))


@app.command()
def zoo(
    name: Annotated[str | None, typer.Argument(help="One loss, shown whole.")] = None, as_json: AsJson = False
) -> None:
    """List the published losses and the baselines, or show one."""
    from autoloss.report.leaderboard import table
    from autoloss.zoo import ENTRIES, entry

    entries = [entry(name)] if name else list(ENTRIES.values())
    rows = [
        {
            "name": e.name,
            "formula": dict(e.formulas),
            "description": e.description,
            "source": e.source,
            "metric": e.metric,
        }
        for e in entries
    ]
    if as_json:
        _print_json(rows[0] if name else rows)
        return
    shown = [(row["name"], _formulas(row["formula"]), row["description"], row["source"]) for row in rows]
    if name:
        for text in shown[0]:
            _console().print(text, markup=False, soft_wrap=True)
    else:
        _console().print(
            table("Zoo", {"name": "left", "formula": "left", "what": "left"}, (columns[:3] for columns in shown))
        )


@app.command()
def check(
    task: TaskName,
    metric: Metric = None,
    data: Data = None,
    evaluations: Annotated[int, typer.Option(min=1, help="The budget whose time is estimated.")] = 500,
    workers: Workers = 2,
    seed: Annotated[int, typer.Option(help="Decides the samples.")] = 0,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Look a task over before a search: its samples, its standard loss, the time a search will take."""
    settings, options = _assigned(assignments, data)
    _early(task, metric)
    from autoloss.run.checking import check as checked

    report = checked(
        task, metric=metric, options=options, settings=settings, evaluations=evaluations, workers=workers, seed=seed
    )
    if as_json:
        _print_json(report.values())
    else:
        for text in report.lines():
            _console().print(text, markup=False, soft_wrap=True)


@app.command()
def export(
    directory: Directory,
    individual: Annotated[int | None, typer.Argument(metavar="[ID]", help="The winner when left out.")] = None,
    to: Annotated[str, typer.Option(help="python or json.")] = "python",
    out: Annotated[Path | None, typer.Option(help="A file to write; the terminal when left out.")] = None,
) -> None:
    """Write a found loss as a Python file that needs torch alone, or as JSON."""
    from autoloss.report.take_home import exported

    text = exported(directory, individual, to)
    if out is None:
        sys.stdout.write(text)
        return
    if out.exists():
        raise RequestError(f"{out} exists already, and nothing is overwritten. Name another file with --out.")
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror}. Name another file with --out.") from None
    _console(to_stderr=True).print(f"Wrote {out}", markup=False, soft_wrap=True)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        from autoloss import __version__

        print(__version__)
        raise typer.Exit


class Terminated(KeyboardInterrupt):
    """The process was asked to end by a signal other than Ctrl-C."""


class Stopped(Exception):
    """A run that was interrupted, with everything finished saved; its text says how to go on."""

    def __init__(self, interruption: KeyboardInterrupt) -> None:
        self.code = 143 if isinstance(interruption, Terminated) else 130
        super().__init__(" ".join(["Interrupted.", *getattr(interruption, "__notes__", ())]))


@contextmanager
def _stoppable(note: str | None = None) -> Iterator[None]:
    # The framework below would turn an interrupt into a bare exit.
    try:
        yield
    except KeyboardInterrupt as interruption:
        if note is not None:
            interruption.add_note(note)
        raise Stopped(interruption) from None


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code: 0 done, 1 failed, 2 wrong request, 3 owned, 130 or 143 interrupted."""
    signal.signal(signal.SIGTERM, _terminate)
    words = list(arguments) if arguments is not None else sys.argv[1:]
    try:
        app(args=words, obj=words, standalone_mode=True)
    except RequestError as error:
        _fail(error, 2)
    except OwnedError as error:
        _fail(error, 3)
    except RunError as error:
        _fail(error, 1)
    except BrokenPipeError:
        # The reader of our output, such as `head`, has seen enough.
        sys.stderr.close()
        sys.exit(0)
    except Stopped as stopped:
        _fail(stopped, stopped.code)
    sys.exit(0)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated


def _fail(error: Exception, code: int) -> NoReturn:
    # Every process says it: torchrun ends the others as soon as one has failed.
    print(f"autoloss: {error}", file=sys.stderr)
    sys.exit(code)


def _speaks() -> bool:
    """Say whether this process prints: of those that torchrun starts, the first."""
    return os.environ.get("RANK", "0") == "0"


def _console(to_stderr: bool = False) -> Console:
    from rich.console import Console

    if not _speaks():
        return Console(quiet=True)
    console = Console(stderr=to_stderr, highlight=False)
    # What is piped is read by programs or copied: formulas stay whole.
    return console if console.is_terminal else Console(stderr=to_stderr, highlight=False, width=200)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _assigned(assignments: list[str] | None, data: str | None) -> tuple[dict[str, str], dict[str, Any]]:
    """Split `--set` into settings of the run, which have a dot, and options of the task."""
    found: dict[str, str] = {}
    for assignment in assignments or ():
        key, equals, value = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise RequestError(f"--set takes key=value, like evolution.lag=2; found {assignment!r}.")
        if key in found:
            raise RequestError(f"--set {key} comes twice; keep one of them.")
        found[key] = value
    settings = {key: value for key, value in found.items() if "." in key}
    options: dict[str, Any] = {key: value for key, value in found.items() if "." not in key}
    return settings, options | ({} if data is None else {"data": data})


def _early(task: str, metric: str | None) -> None:
    """Refuse an unknown task or metric before torch is imported."""
    from autoloss.errors import unknown
    from autoloss.tasks.catalogue import CATALOGUE

    if ".py:" in task:
        return
    if task not in CATALOGUE:
        raise unknown("task", task, CATALOGUE)
    if metric is not None and metric not in CATALOGUE[task].metrics:
        raise unknown(f"metric of the task {task}", metric, CATALOGUE[task].metrics)


def _budget(text: str | None, directory: Path) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise RequestError(f"--evaluations takes a number, or +N for N more; found {text!r}.") from None
    if not text.startswith("+"):
        return number
    from autoloss.run.results import opened

    return opened(directory).configuration.evaluations + number


def _listed(text: str) -> list[str]:
    return [] if text.strip() == "none" else [name for name in map(str.strip, text.split(",")) if name]


def _individual(found: Search, number: int) -> Any:
    if not 0 <= number < len(found.history):
        raise RequestError(
            f"There is no loss #{number} in {found.directory}; it has #0 to #{len(found.history) - 1} so far."
            if found.history
            else f"{found.directory} has no finished loss yet."
        )
    return found.history[number]


def _formulas(formulas: dict[str, str]) -> str:
    if not formulas:
        return "(hand-written)"
    return formulas["main"] if set(formulas) == {"main"} else "; ".join(f"{b}: {text}" for b, text in formulas.items())


def _conclude(found: Search, as_json: bool) -> None:
    """Print what a run came to."""
    from autoloss.report.leaderboard import comparison_rows, comparison_table, top_rows, top_table, verdict

    if as_json:
        comparison = comparison_rows(found.comparison)
        _print_json(
            {"directory": str(found.directory), "end": found.end, "top": top_rows(found, 10), "comparison": comparison}
        )
        return
    console = _console()
    console.print(f"The search ended: {found.end}.", soft_wrap=True)
    console.print(top_table(found, 10))
    if found.comparison:
        console.print(comparison_table("On the test split, fresh seeds", found.comparison))
        console.print(verdict(found.comparison, f"#{found.best.id}"), soft_wrap=True)
    if found.top(1):
        console.print(f"Winner: #{found.best.id}  {found.best.formula}", markup=False, soft_wrap=True)
        console.print(f"Take it home: autoloss export {found.directory} {found.best.id}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
