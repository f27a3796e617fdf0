"""A process that makes a small copy of drawn pictures, told when to begin; with KILL in the environment it dies halfway.

python -c "from tests.tasks.segmentation.building import main; main()" DATA CACHE
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from autoloss.tasks.segmentation.data.image_files import ImageFiles, open_copy, read_indices


def read(file: Path) -> np.ndarray:
    """Read a mask slowly, and say so."""
    print(file.name, flush=True)
    if "KILL" in os.environ and file.name == "mask4.png":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return read_indices(file)


def main() -> None:
    data, cache = map(Path, sys.argv[1:])
    pairs = tuple((data / f"image{index}.png", data / f"mask{index}.png") for index in range(6))
    print("ready", flush=True)
    sys.stdin.readline()
    small = open_copy(ImageFiles("drawn", pairs, ("paper", "ink", "smudge"), read), 16, cache)
    print(small.file, small.rows.sum(), flush=True)
