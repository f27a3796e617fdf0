"""`score`, `compare` and `retrain`: commands that train without searching."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from autoloss.cli.application import app, console_of, is_first_process, print_json
from autoloss.cli.arguments import (
    Also,
    AsJson,
    Assignments,
    Data,
    Directory,
    Frozen,
    Metric,
    Operators,
    TaskName,
    Workers,
    check_task_name,
    parse_assignments,
    parse_frozen,
    parse_list,
)
from autoloss.cli.interruption import interruptible
from autoloss.errors import RequestError
from autoloss.settings import FinalSettings

FINAL = FinalSettings()


@app.command()
def score(
    task: TaskName,
    loss: Annotated[
        list[str], typer.Option(help="A formula, a name of the zoo, or a file; may be given several times.")
    ],
    metric: Metric = None,
    data: Data = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings per loss.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed from which the training seeds are drawn.")] = 0,
    split: Annotated[str, typer.Option(help="Split that is evaluated: valid or test.")] = "valid",
    frozen: Frozen = None,
    operators: Operators = None,
    also: Also = None,
    workers: Workers = 2,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train a task with given losses and show the score of each."""
    settings, options = parse_assignments(assignments, data)
    check_task_name(task, metric)
    from autoloss.report.leaderboard import comparison_rows, comparison_table
    from autoloss.run.scoring import score as scored

    with interruptible():
        rows = scored(
            task,
            loss,
            metric=metric,
            options=options,
            settings=settings,
            seeds=seeds,
            seed=seed,
            split=split,
            frozen=parse_frozen(frozen or ()),
            operators=operators or (),
            also=parse_list(also or ""),
            workers=workers,
        )
    if as_json:
        print_json(comparison_rows(rows))
    else:
        console_of().print(comparison_table(f"{task}, {split} split", rows, parse_list(also or "")))


@app.command()
def compare(
    directory: Directory,
    top: Annotated[
        int, typer.Option(min=1, help="Number of best losses; the judgement is about the first.")
    ] = FINAL.compare,
    seeds: Annotated[int, typer.Option(min=2, help="Trainings per loss, on new training seeds.")] = FINAL.compare_seeds,
    baselines: Annotated[str, typer.Option(help="usual (standard loss and Dice), or all that fit the task.")] = "usual",
    also: Also = None,
    workers: Workers = 2,
    as_json: AsJson = False,
) -> None:
    """Compare the best losses of a run with the baselines: new training seeds, held-out test split."""
    from autoloss.report.leaderboard import columns_of, comparison_rows, comparison_table, identify_compared
    from autoloss.report.verdict import identify_best, next_steps, sentences
    from autoloss.run.results import open_run
    from autoloss.run.scoring import compare as compared

    further = columns_of(None if also is None else parse_list(also), open_run(directory))
    say = partial(console_of(to_stderr=True).print, soft_wrap=True)
    with interruptible():
        rows = compared(directory, top=top, seeds=seeds, workers=workers, baselines=baselines, say=say)
    found = open_run(directory)
    if as_json:
        print_json(
            {
                "verdict": found.judgement.to_dict(),
                "identity": identify_best(found),
                "comparison": comparison_rows(rows, found.judgement),
            }
        )
        return
    console = console_of()
    for sentence in sentences(found):
        console.print(sentence, soft_wrap=True)
    console.print(
        comparison_table(f"{directory}, test split", rows, further, found.judgement, identify_compared(found))
    )
    for step in next_steps(found):
        console.print(str(step), soft_wrap=True)


@app.command()
def retrain(
    context: typer.Context,
    directory: Directory,
    individual: Annotated[int | None, typer.Argument(metavar="ID", help="The best loss found when left out.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A retraining of the paper; its published results are shown too.")
    ] = None,
    data: Data = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="Names of the zoo, with commas; all that fit; or none. The standard loss and Dice when left out."
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Factor on the schedule's learning rate, for all losses; that at which each was compared when left out."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trainings per loss (3).")] = None,
    split: Annotated[str, typer.Option(help="Split that is evaluated: test or valid.")] = "test",
    out: Annotated[Path | None, typer.Option(help="Folder of the trainings; DIR/retraining by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; the task's own by default.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, bfloat16 or float16; the loss is in float32.")] = None,
    channels_last: Annotated[
        bool | None,
        typer.Option(help="Use the channels-last memory format, in which GPUs compute convolutions faster."),
    ] = None,
    checkpoint_seconds: Annotated[float | None, typer.Option(min=0, help="Seconds between checkpoints (120).")] = None,
    assignments: Assignments = None,
    as_json: AsJson = False,
) -> None:
    """Train a found loss and baselines with the full schedule; a killed retraining is resumed by the same command."""
    settings, options = parse_assignments(assignments, data)
    if settings:
        raise RequestError(
            f"A retraining takes options of the task; found the setting {', '.join(settings)} of a search."
        )
    from autoloss.report.retrained import retraining_table, write
    from autoloss.report.status import Status
    from autoloss.run.retraining import retrain as retrained

    console = console_of(to_stderr=as_json)
    again = f"Go on with: autoloss {shlex.join(context.obj)}"
    with interruptible(again), Status(console) as status:
        found = retrained(
            directory,
            individual,
            recipe=recipe,
            options=options,
            against=None if baselines is None else parse_list(baselines),
            learning_rate=learning_rate,
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
    if not is_first_process():
        return
    written = write(found)
    if as_json:
        print_json(found.to_dict())
    else:
        console.print(retraining_table(found))
        console.print(f"Written: {', '.join(map(str, written))}", soft_wrap=True)
