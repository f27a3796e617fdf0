"""A process that outlives a driver on Ray: Ray ends a driver without a message when the driver's node is lost.

`python -m autoloss.workers.ray_keeper MESSAGE [FOLDER]` waits for its standard input to end. It prints the message unless the
driver reported its own end; it removes the folder in any case.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DONE = b"done"
REMOVE_SECONDS = 15.0
"""Time for which processes of a cluster that has lost its driver may go on writing to its folder."""


@contextmanager
def keeper(message: str, *folder: Path) -> Iterator[None]:
    """Have a folder removed when this process leaves the body or dies inside; in the latter case, print a message to stderr."""
    command = [sys.executable, "-P", "-m", "autoloss.workers.ray_keeper", message, *map(str, folder)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path)))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=variables, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            process.communicate(DONE)


def main() -> None:
    """Wait until the driver is done or gone, and clean up after it."""
    message, *folders = sys.argv[1:]
    if sys.stdin.buffer.read() != DONE:
        print(f"autoloss: {message}", file=sys.stderr, flush=True)
    # Readers of stderr need not wait for the removal.
    sys.stderr.close()
    os.close(2)
    end = time.monotonic() + REMOVE_SECONDS
    for folder in folders:
        while os.path.exists(folder) and time.monotonic() < end:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
