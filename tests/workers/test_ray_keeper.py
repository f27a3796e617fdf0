"""What a driver on Ray leaves is removed, by its keeper or by the next driver, and somebody says that it is gone."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from autoloss.workers.ray_keeper import PREFIX, private_folder

DRIVER = """
import os, signal, sys
from autoloss.workers.ray_keeper import keeper, private_folder
with private_folder() as folder, keeper("it is gone", folder):
    print(folder, flush=True)
    (folder / "ray").mkdir()
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "exit":
        os._exit(1)
    if sys.argv[1] == "raise":
        raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("end", "code", "words"), [("killed", -9, True), ("exit", 1, True), ("raise", 3, False), ("", 0, False)]
)
def test_a_driver_that_ends_leaves_no_folder_and_says_why_where_it_could_not(end: str, code: int, words: bool):
    done = subprocess.run([sys.executable, "-c", DRIVER, end], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stderr == ("autoloss: it is gone\n" if words else "")
    folder, limit = Path(done.stdout.strip()), time.monotonic() + 10
    while folder.exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not folder.exists()


def test_folders_of_drivers_that_were_killed_are_removed_and_no_others(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, foreign = tmp_path / f"{PREFIX}abandoned", tmp_path / f"{PREFIX}foreign"
    for folder in (abandoned, foreign):
        (folder / "ray").mkdir(parents=True)
    (abandoned / "lock").touch()
    os.symlink(foreign, tmp_path / f"{PREFIX}link")
    with private_folder() as first:
        assert stat.S_IMODE(first.stat().st_mode) == 0o700
        assert not abandoned.exists()
        with private_folder():
            assert first.exists()
    assert not first.exists()
    assert foreign.exists()
