"""What all tests stand on."""

from __future__ import annotations

import signal

# A process that was started in the background may have inherited that interrupts are ignored; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
