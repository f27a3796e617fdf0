"""Terminals and paths that are not UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import screens

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("words", [["zoo", "baseline/ce"], ["simplify", "-y * log(p) * p * p"]])
def test_the_locale_c_gets_escapes_in_place_of_characters(words, tmp_path):
    command = [sys.executable, "-m", "autoloss", *words]
    variables = {**os.environ, **ASCII, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert b"\\u" in ended.stdout or b"\\x" in ended.stdout


@pytest.mark.parametrize(
    "words", [["search", "{}:task"], ["check", "{}:task"], ["search", "tabular", "--out", "{}"], ["top", "{}"]]
)
def test_a_path_that_is_no_text_is_one_sentence(words, tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6\xdfe.py")
    with open(path, "w") as file:
        file.write("task = 1")
    said = screens.refusal(*(word.format(path) for word in words))
    assert "no text in the encoding" in said
    assert "UTF-8 locale" in said


def test_a_folder_above_the_task_that_is_no_text_is_one_sentence(tmp_path, monkeypatch):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6\xdfe")
    os.mkdir(folder)
    monkeypatch.chdir(folder)
    with open("task.py", "w") as file:
        file.write("task = 1")
    assert "not valid UTF-8" in screens.refusal("check", "task.py:task")
