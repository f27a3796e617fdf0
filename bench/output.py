"""What a script makes of its result: a file, one JSON document, or words."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any


def emit(result: dict[str, Any], arguments: argparse.Namespace, show: Callable[[dict[str, Any]], object]) -> None:
    """Write the result where `--out` asks for it, and print it."""
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if arguments.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(result)
