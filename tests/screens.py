"""What a wrong request gets: one screen, exit code 2, nothing left behind."""

from __future__ import annotations

import pytest

from autoloss.cli import main

LINES, CHARACTERS = 24, 3000


def screen(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that is to be refused and return what it said."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, said = capsys.readouterr()
    assert ended.value.code == 2, said
    assert out == ""
    assert "Traceback" not in said
    assert len(said.splitlines()) <= LINES
    assert len(said) <= CHARACTERS
    assert all(character.isprintable() or character == "\n" for character in said)
    return said
