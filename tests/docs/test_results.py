"""docs/results.md is what its script writes from bench/results/, and short."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(PAGES / "results.py"), run_name="results")


def test_the_page_is_what_the_results_say():
    assert (PAGES / "results.md").read_text(encoding="utf-8") == SCRIPT["render"]()


def test_the_page_is_short():
    assert len(SCRIPT["render"]().split()) <= 1500


def test_no_measured_number_is_typed_in_the_template():
    text = SCRIPT["TEMPLATE"].read_text(encoding="utf-8")
    typed = re.findall(r"(?<![\w{])\d+[.,]\d+|\d+ %(?! interval)", text)
    assert typed == []


def test_another_page_is_refused(tmp_path, monkeypatch):
    other = tmp_path / "results.md"
    other.write_text("better", encoding="utf-8")
    monkeypatch.setitem(SCRIPT["main"].__globals__, "PAGE", other)
    with pytest.raises(SystemExit, match=r"python docs/results\.py"):
        SCRIPT["main"](["--check"])
    SCRIPT["main"]([])
    assert SCRIPT["main"](["--check"]) is None
