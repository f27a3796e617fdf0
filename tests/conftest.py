"""What all tests stand on."""

from __future__ import annotations

import os
import signal

# One thread for each process of the tests: they share the cores, and what follows from few threads is quicker than from many.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process that was started in the background may have inherited that interrupts are ignored; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
