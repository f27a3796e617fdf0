"""Commands run in the tests: their exit codes, and the one screen that a wrong request gets."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from autoloss.cli import main

LINES, CHARACTERS = 24, 3000


def run(*arguments: object) -> tuple[int, str, str]:
    """Run a command and return its exit code, its output and what it said beside it; neither is a traceback."""
    out, said = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert "Traceback" not in said.getvalue()
    return int(ended.value.code or 0), out.getvalue(), said.getvalue()


def exit_code(*arguments: object) -> int:
    """Run a command and return its exit code; what it prints is the test's to read."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def screen(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that is to be refused and return what it said."""
    return refusal(*arguments)


def refusal(*arguments: object) -> str:
    code, out, said = run(*arguments)
    assert code == 2, said
    assert out == ""
    assert len(said.splitlines()) <= LINES
    assert len(said) <= CHARACTERS
    assert all(character.isprintable() or character == "\n" for character in said)
    return said
