"""`python -m autoloss`: the command line where its script is not on the PATH, and for torchrun."""

import sys


def run() -> None:
    """Run one command; an interrupt while the command line is loaded is no traceback."""
    try:
        from autoloss.cli import main
    except KeyboardInterrupt:
        print("autoloss: Interrupted. Nothing is kept; start the same command again.", file=sys.stderr)
        sys.exit(130)
    main()


if __name__ == "__main__":
    run()
