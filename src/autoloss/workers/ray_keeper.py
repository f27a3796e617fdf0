"""A process that outlives a driver on Ray: Ray ends a driver without a word when the node under it is lost.

`python -m autoloss.workers.ray_keeper MESSAGE [FOLDER]` waits for its standard input to end. Unless it was told that all is well,
it prints the message; it removes the folder in any case.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "autoloss-ray-"
LOCK = "lock"
DONE = b"done"
REMOVE_SECONDS = 15.0
"""How long processes of a cluster that has lost its driver may go on writing to its folder."""


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it at the end, with those of drivers that were killed."""
    place = Path(tempfile.gettempdir())
    for left in place.glob(f"{PREFIX}*"):
        _remove_abandoned(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    with (folder / LOCK).open("w") as lock:
        # Released by the system however this process ends.
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError):
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        with (folder / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def keeper(message: str, folder: Path | None = None) -> Iterator[None]:
    """Have a message printed to stderr, and a folder removed, if this process ends inside."""
    command = [sys.executable, "-P", "-m", "autoloss.workers.ray_keeper", message, *([str(folder)] if folder else [])]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=variables, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            process.communicate(DONE)


def main() -> None:
    message, *folders = sys.argv[1:]
    if sys.stdin.buffer.read() != DONE:
        print(f"autoloss: {message}", file=sys.stderr, flush=True)
    # Nobody waits for the rest.
    sys.stderr.close()
    os.close(2)
    end = time.monotonic() + REMOVE_SECONDS
    for folder in folders:
        while os.path.exists(folder) and time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
