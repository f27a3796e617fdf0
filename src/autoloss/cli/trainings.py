"""`score`, `tune`, `compare`, `explain` and `retrain`: commands that train without searching."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import autoloss.cli.arguments as arguments
from autoloss.cli.application import answer, app, console_of, is_first_process, resuming
from autoloss.cli.output import outlast_output
from autoloss.errors import RunError
from autoloss.settings import FinalSettings

FINAL = FinalSettings()


@app.command()
def score(
    task: arguments.TaskName,
    loss: Annotated[list[str], typer.Option(help="A formula, a name of the zoo, or a file; repeatable.")],
    metric: arguments.Metric = None,
    data: arguments.Data = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings per loss.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed from which the training seeds are derived.")] = 0,
    split: Annotated[str, typer.Option(help="Split to evaluate on: valid or test.")] = "valid",
    frozen: arguments.Frozen = None,
    operators: arguments.Operators = None,
    also: arguments.Also = None,
    workers: arguments.Workers = 2,
    assignments: arguments.Assignments = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Train a task with given losses and show the score of each."""
    given = arguments.read(locals())
    from autoloss.report.leaderboard import comparison_table
    from autoloss.report.status import Status
    from autoloss.report.summary import comparison_rows
    from autoloss.run import scoring

    with Status(console_of(to_stderr=True)) as status:
        rows = scoring.score(losses=given.pop("loss"), **given, say=status.say, observe=status.observe)
    answer(as_json, comparison_rows(rows), comparison_table(f"{task}, {split} split", rows, given["also"]))
    if all(row.failed == len(row.scores) for row in rows):
        reasons = (reason.splitlines()[0] for row in rows for reason in row.reasons if reason)
        raise RunError(f"No training has a score. The first one: {next(reasons, 'no reason was given')}")


@app.command()
def tune(
    task: arguments.TaskName,
    metric: arguments.Metric = None,
    data: arguments.Data = None,
    trainings: Annotated[
        float, typer.Option(min=2, help="Budget, in whole proxy trainings; a shorter one counts with its share.")
    ] = 24.0,
    seed: Annotated[int, typer.Option(help="Seed from which the training seeds are derived.")] = 0,
    frozen: arguments.Frozen = None,
    workers: arguments.Workers = 2,
    assignments: arguments.Assignments = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Tune the standard loss: rate, step rule, weights, threshold."""
    given = arguments.read(locals())
    arguments.refuse_settings(given.pop("settings"), "--set of tune")
    from autoloss.report.leaderboard import ladder_table
    from autoloss.report.status import Status
    from autoloss.run import scoring

    with Status(console_of(to_stderr=True)) as status:
        ladder = scoring.tune(**given, say=status.say, observe=status.observe)
    value = {**ladder.to_dict(), "best": ladder.best and ladder.best.to_dict()}
    answer(as_json, value, *ladder.describe(), ladder_table(ladder))


@app.command()
@outlast_output
def compare(
    context: typer.Context,
    directory: arguments.Directory,
    top: Annotated[
        int, typer.Option(min=1, help="Number of best losses; the judgement is about the first.")
    ] = FINAL.compare,
    seeds: Annotated[int, typer.Option(min=2, help="Trainings per loss, on new training seeds.")] = FINAL.compare_seeds,
    baselines: Annotated[
        str, typer.Option(help="usual, as at the end of a search, or all that fit the task.")
    ] = "usual",
    also: arguments.Also = None,
    workers: arguments.Workers = 2,
    trust: arguments.Trust = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Compare the best losses with baselines on the test split. Each is trained on new seeds."""
    given = arguments.read(locals())
    listed = given.pop("also")
    from autoloss.report.leaderboard import columns_of, comparison_of
    from autoloss.report.status import Status
    from autoloss.report.summary import comparison_rows, summarize
    from autoloss.run import scoring
    from autoloss.run.results import open_run

    further = columns_of(None if also is None else listed, open_run(directory))
    with resuming(context), Status(console_of(to_stderr=True)) as status:
        rows = scoring.compare(**given, say=status.say, observe=status.observe)
    found = open_run(directory)
    summary = summarize(found)
    shown: list[object] = [*summary.verdict.text, comparison_of(found, f"{directory}, test split", further)]
    if [row.entrant for row in rows] != [row.entrant for row in found.comparison]:
        shown.insert(0, comparison_of(found, f"{directory}, test split, {seeds} training seeds", further, rows))
    value = {key: summary.to_dict()[key] for key in ("verdict", "identity", "comparison")}
    value["trained"] = comparison_rows(rows)
    answer(as_json, value, *shown, *map(str, summary.verdict.steps))


@app.command()
def explain(
    context: typer.Context,
    directory: arguments.Directory,
    individual: arguments.Individual = None,
    seeds: Annotated[int, typer.Option(min=2, help="Trainings of the loss and of each control.")] = 5,
    workers: arguments.Workers = 2,
    trust: arguments.Trust = False,
    as_json: arguments.AsJson = False,
) -> None:
    """Explain why a loss is better: step sizes, weights or recipe."""
    given = arguments.read(locals())
    from autoloss.report.status import Status
    from autoloss.report.trainings import causes_table, controls_table, describe_in_full
    from autoloss.run import scoring

    with resuming(context), Status(console_of(to_stderr=True)) as status:
        found = scoring.explain(number=given.pop("individual"), **given, say=status.say, observe=status.observe)
    shown = [*describe_in_full(found), *[causes_table(found)] * found.is_gain, controls_table(found)]
    answer(as_json, found.to_dict(), *shown)
    if found.gain is None:
        raise RunError(next(found.describe()))


@app.command()
@outlast_output
def retrain(
    context: typer.Context,
    directory: arguments.Directory,
    individual: arguments.Individual = None,
    recipe: Annotated[
        str | None, typer.Option(help="A retraining of the paper; its published results are shown too.")
    ] = None,
    data: arguments.Data = None,
    baselines: Annotated[
        str | None,
        typer.Option(help="Names of the zoo, separated by commas; all; or none. Those of a comparison if omitted."),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Factor on the learning rate of all losses; if omitted, that of the comparison for each."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings per loss (3).")] = None,
    split: Annotated[str, typer.Option(help="Split to evaluate on: test or valid.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder of the trainings; DIR/retraining by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the task's own by default.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the loss is in float32.")] = None,
    channels_last: Annotated[
        bool | None, typer.Option(help="Use the channels-last memory format; convolutions on GPUs are faster.")
    ] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(min=0, help="Seconds between checkpoints (120).")] = None,
    trust: arguments.Trust = False,
    assignments: arguments.Assignments = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Train a loss and baselines with the full schedule. Repeat the command to resume a killed retraining."""
    given = arguments.read(locals())
    arguments.refuse_settings(given.pop("settings"), "--set of retrain")
    given["against"] = None if given.pop("baselines") is None else arguments.parse_list(baselines or "")
    from autoloss.report.status import Status
    from autoloss.report.trainings import retraining_table, write
    from autoloss.run import retraining

    console = console_of(to_stderr=as_json)
    with resuming(context), Status(console) as status:
        found = retraining.retrain(training_seeds=given.pop("seeds"), **given, observe=status.observe, say=status.say)
    if not is_first_process():
        return
    written = write(found)
    answer(as_json, found.to_dict(), retraining_table(found), f"Written: {written}")
