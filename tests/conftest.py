"""What all tests stand on."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile

# The processes of the tests share the cores: one thread each is quickest.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A process that was started in the background may have inherited that interrupts are ignored; tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)

if "XDG_STATE_HOME" not in os.environ:
    # The key with which searches sign is not the user's.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="autoloss-tests-")
    atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
