"""What all tests stand on."""

from __future__ import annotations

import os
import signal

# The processes of the tests share the cores: one thread each is quickest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process that was started in the background may have inherited that interrupts are ignored; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
