"""What a driver on Ray leaves is removed by its keeper, which says that the driver is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

DRIVER = """
import os, pathlib, signal, sys, tempfile
from autoloss.workers.ray_keeper import keeper
folder = pathlib.Path(tempfile.mkdtemp())
with keeper("it is gone", folder):
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
