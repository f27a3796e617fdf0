"""The command line: parse → call → print."""

from __future__ import annotations

import errno
import io
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from typer.main import get_group

# Commands join the application as they are imported, and are listed in this order.
# isort: off
from autoloss.cli import searching, readings, trainings, catalogues  # noqa: F401

# isort: on
from autoloss.cli.application import Interrupted, Unread, app, terminate
from autoloss.cli.output import drop_output
from autoloss.errors import OwnedError, RequestError, RunError, is_text, mask_unprintable

LINE = 1_000
"""Maximum number of characters per line of a message."""
OPTIONS = {"directory": "--out", "settings": "--set", "options": "--set"}
"""Python arguments whose command-line option has another name."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code: 0 done, 1 failed, 2 wrong request, 3 owned, 130 or 143 interrupted."""
    signal.signal(signal.SIGTERM, terminate)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            # Formulas contain characters that some terminals cannot encode; the locale C has the latter.
            stream.reconfigure(errors="backslashreplace")
    words = list(arguments) if arguments is not None else sys.argv[1:]
    try:
        # A run could not keep such paths and names.
        if strange := [word for word in words if not is_text(word)]:
            raise RequestError(
                f"{strange[0]!a} holds bytes that are no text in the encoding {sys.getfilesystemencoding()}. Rename the file, or "
                "set a UTF-8 locale, such as LC_ALL=C.UTF-8."
            )
        try:
            app(args=words, obj=words, standalone_mode=True)
        finally:
            # Not later: Python flushes when nobody can say what fails.
            if sys.stdout is not None:
                sys.stdout.flush()
    except RequestError as error:
        option = None if error.argument is None else _find_option(words[0], error.argument)
        _fail(error if option is None else RequestError(f"{str(error).removesuffix('.')} ({option})."), 2)
    except OwnedError as error:
        _fail(error, 3)
    except RunError as error:
        _fail(error, 1)
    except (Unread, BrokenPipeError):
        drop_output(sys.stdout)
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        what = error.filename or "The output"
        drop_output(sys.stdout)
        _fail(RunError(f"{what} cannot be written: {error.strerror}. Free space, or write it elsewhere."), 1)
    except Interrupted as interruption:
        _fail(interruption, interruption.code)
    sys.exit(0)


def _find_option(command: str, argument: str) -> str | None:
    """Return the option of a command that sets an argument of its function; None where it has none."""
    option = OPTIONS.get(argument, f"--{argument.replace('_', '-')}")
    parameters = get_group(app).commands[command].params
    return option if any(option in parameter.opts for parameter in parameters) else None


def _fail(error: Exception, code: int) -> NoReturn:
    # Printed by every process: torchrun ends the others as soon as one has failed.
    with suppress(OSError):
        lines = (line if len(line) <= LINE else f"{line[:LINE]}…" for line in mask_unprintable(str(error)).splitlines())
        print("autoloss: " + "\n".join(lines), file=sys.stderr, flush=True)
    sys.exit(code)
