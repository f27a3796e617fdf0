"""A run from somebody else: its rows are whole and say what they like; reading it obeys none of that and ends in words."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import autoloss
from autoloss.errors import RequestError, RunError
from autoloss.proposing.records import Candidate, Origin, Outcome, State
from autoloss.store.database import checksum
from autoloss.store.run_settings import RunSettings, TaskReference
from autoloss.store.store import Store
from autoloss.training.training import Training
from tests import screens
from tests.run.quick import SETTINGS, QuickTask

ORDERS = "[red]a[/red] :smile: \x1b[2J\x1b]0;owned\x07\x9b31m\u202e <script>alert(1)</script>"
"""Markup, pictures, control characters and a program for a browser."""
CANDIDATE = Candidate(
    id=0,
    parent=None,
    kinds={"main": "fresh"},
    attempts={"main": 0},
    loss="neg(mul(y, log(p)))",
    origin=Origin.TRAINED,
    source=None,
    signature={"main": ("1.0e+00",)},
    counts={"sampled": 1},
)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code, out, error = screens.run(*arguments)
    return code, out + error


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "run"
    # Which engine tested its losses makes no difference to its files; the fast one would be compiled for two trainings.
    settings = {**SETTINGS, "rejection.engine": "reference"}
    autoloss.search(QuickTask(), evaluations=2, seed=1, workers=0, directory=path, settings=settings, final=False)
    return path


@pytest.fixture
def kept(whole: Path) -> RunSettings:
    with Store(whole) as store:
        return store.settings()


def made(directory: Path, settings: RunSettings, formula: str = CANDIDATE.loss, reason: str = "") -> Path:
    """Write a run of one loss, every row with its checksum."""
    directory.mkdir()
    candidate = Candidate(
        **{**{name: getattr(CANDIDATE, name) for name in CANDIDATE.__dataclass_fields__}, "loss": formula}
    )
    state = State.FAILED if reason else State.SCORED
    with Store(directory, write=True) as store:
        store.write_settings(settings)
        store.add_candidate(candidate, {("main", 0): (ORDERS, "STRUCTURE")})
        outcome = Outcome(state=state, score=None if reason else 0.5, also={ORDERS: 0.1}, reason=reason)
        store.add_training(formula, Training(seed=0), outcome, 0)
    return directory


@pytest.mark.parametrize(
    "words", [["top"], ["show", "0"], ["export", "0"], ["export", "0", "--to", "json"]], ids=" ".join
)
def test_names_and_figures_give_no_orders(words, kept, tmp_path, capsys):
    task = TaskReference(ORDERS, {ORDERS: ORDERS, "metric": ORDERS})
    directory = made(tmp_path / "[red]run\x1b[2J", replace(kept, title=ORDERS, task=task))
    code, said = run(capsys, words[0], directory, *words[1:])
    assert code in (0, 2)
    assert all(character.isprintable() or character == "\n" for character in said)
    if words[0] in ("top", "show"):
        assert code == 0
        assert "[red]" in said


@pytest.mark.parametrize("formula", [ORDERS, "p); import os", "(" * 100_000, "main: p; main: y", "", "?"])
def test_a_formula_that_is_none_is_shown_or_refused_and_never_run(formula, kept, tmp_path, capsys):
    directory = made(tmp_path / "run", kept, formula)
    for words in (["top", directory], ["show", directory, 0], ["export", directory, 0]):
        code, said = run(capsys, *words)
        assert code in (0, 1, 2)
        assert all(character.isprintable() or character == "\n" for character in said)
    assert code == 2


def test_the_reason_of_a_failure_gives_no_orders(kept, tmp_path, capsys):
    code, said = run(capsys, "show", made(tmp_path / "run", kept, reason=ORDERS), 0)
    assert code == 0
    assert "[red]a[/red] :smile: �[2J" in said
    assert "\x1b" not in said


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:100]),
    "empty": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
    "a header without end": lambda file: file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:]),
    "text": lambda file: file.write_text("hello"),
    "other names": lambda file: _other_names(file),
}


def _other_names(file: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2)}, file)


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_samples_are_named(kind, whole, tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(whole, directory)
    DAMAGE[kind](directory / "samples.safetensors")
    with pytest.raises(RunError, match=r"samples\.safetensors"):
        autoloss.resume(directory, QuickTask(), evaluations=3, workers=0, final=False)


DEEP = "[" * 100_000


BESIDE = {"deep": DEEP, "cut": "{", "a list": "[1]", "another object": '{"release": 1}', "nothing": "null"}


def check_beside(kind: str, directory: Path) -> None:
    """Damage the files beside a run; they are made again. bench counts these, too."""
    for name in ("formulas.json", "scenes.json"):
        (directory / name).write_text(BESIDE[kind])
    for words in (["top", directory], ["show", directory, 0], ["report", directory]):
        assert screens.run(*words)[0] == 0


@pytest.mark.parametrize("kind", BESIDE)
def test_a_damaged_file_beside_the_run_is_made_again(kind, kept, tmp_path):
    check_beside(kind, made(tmp_path / "run", kept))


@pytest.mark.parametrize(
    "column", ["also", "replicates", "curve", "kinds", "signature", "scores", "counts", "attempts", "pool", "scale"]
)
@pytest.mark.parametrize("text", [DEEP, "1", '{"a": "b"}'], ids=["deep", "number", "text"])
def test_a_row_that_is_whole_and_means_nothing_is_named(column, text, kept, tmp_path, capsys):
    directory = made(tmp_path / "run", kept)
    table = "training" if column in ("also", "replicates", "curve", "scale") else "candidate"
    connection = sqlite3.connect(directory / "run.sqlite")
    connection.row_factory = sqlite3.Row
    row = dict(connection.execute(f"SELECT * FROM {table}").fetchone()) | {column: text}
    row.pop("checksum")
    connection.execute(f"UPDATE {table} SET {column} = ?, checksum = ?", (text, checksum(row.values())))
    connection.commit()
    connection.close()
    for words in (["top"], ["show", 0], ["failures"], ["export", 0], ["replay"], ["report"]):
        code, said = run(capsys, words[0], directory, *words[1:])
        assert code in (0, 1, 2)
        assert len(said) < 20_000


EVIL = """
from pathlib import Path

import autoloss
from tests.run.quick import TASK as task

Path({mark!r}).touch()
evil = autoloss.Operator("evil", 1, lambda x: 2 * x)
"""


@pytest.fixture
def evil(tmp_path):
    """A file that leaves a mark when it is imported."""
    folder, mark = tmp_path / "code", tmp_path / "imported"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    return folder / "evil.py", mark


READINGS = [["top"], ["show", 0], ["failures"], ["report"], ["report", "--scenes"], ["export", 0], ["replay"]]
TRAININGS = [["replay", "--full"], ["resume"], ["compare"], ["retrain"]]


@pytest.mark.parametrize("words", [*READINGS, *TRAININGS], ids=lambda words: " ".join(map(str, words)))
@pytest.mark.parametrize("names", ["operators", "task", "relative"])
def test_code_that_a_run_names_is_not_run(names, words, kept, evil, tmp_path, monkeypatch):
    file, mark = evil
    monkeypatch.chdir(file.parent)
    operators = {"operators": f"{file}:evil", "relative": "evil.py:evil"}.get(names)
    settings = replace(
        kept,
        configuration=kept.configuration.changed({"space.operators": () if operators is None else (operators,)}),
        task=TaskReference(f"{file}:task") if names == "task" else kept.task,
    )
    code, _, said = screens.run(words[0], made(tmp_path / "run", settings), *words[1:])
    assert not mark.exists()
    assert code in (0, 1, 2)
    if code == 2 and "object" not in said:
        assert "evil.py" in said
        assert "--trust" in said


def test_a_loss_without_the_operator_is_exported_and_one_with_it_needs_a_word(kept, evil, tmp_path):
    file, mark = evil
    name = f"{file}:evil"
    settings = replace(kept, configuration=kept.configuration.changed({"space.operators": (name,)}))
    without = made(tmp_path / "without", settings)
    assert screens.run("export", without, 0)[0] == 0
    assert not mark.exists()
    using = made(tmp_path / "using", settings, "neg(mul(y, evil(p)))")
    refused = screens.refusal("export", using, 0)
    assert name in refused
    assert not mark.exists()
    assert "does not name" in screens.refusal("export", using, 0, "--operators", f"{file}:other")
    code, _, said = screens.run("export", using, 0, "--operators", name)
    assert (code, mark.exists()) == (2, True)  # Loaded; an operator of one's own is not exported.
    assert "evil" in said
    mark.unlink()
    assert screens.run("replay", using, "--trust")[0] == 1
    assert mark.exists()


def test_a_run_of_ones_own_needs_no_word_and_a_changed_name_does(evil, tmp_path):
    file, mark = evil
    settings = {**SETTINGS, "rejection.engine": "reference"}
    options = {"evaluations": 2, "workers": 0, "final": False, "settings": settings, "operators": [f"{file}:evil"]}
    autoloss.search(f"{file}:task", seed=1, directory=tmp_path / "own", **options)
    assert autoloss.replay(tmp_path / "own", full=True).difference is None
    assert len(autoloss.resume(tmp_path / "own", evaluations=3, workers=0, final=False).history) >= 3
    other = file.with_name("other.py")
    other.write_text(file.read_text())
    with Store(tmp_path / "own", write=True) as store:
        changed = {"task": TaskReference(f"{other}:task")}
        store.write_settings(replace(store.settings(), **changed), replace=True)
    mark.unlink()
    with pytest.raises(RequestError, match=r"other\.py:task.*--trust"):
        autoloss.resume(tmp_path / "own", workers=0)
    assert not mark.exists()
    assert autoloss.resume(tmp_path / "own", workers=0, final=False, trust=True).history
