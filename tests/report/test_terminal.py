"""What a person sees is what there is: no name, formula or path gives the terminal orders."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from autoloss.comparison.retrain import Pace
from autoloss.report.leaderboard import table
from autoloss.report.status import Status, line, panel
from autoloss.report.terminal import console
from autoloss.run.loop import Finale

HOSTILE = "[red]a[/red] :smile: \x1b[2J\x1b]0;owned\x07 \x9b31m \u202eabc [/b]"
SEEN = "[red]a[/red] :smile: �[2J�]0;owned �31m �abc [/b]"


def printed(*things: object, monkeypatch: pytest.MonkeyPatch, color: bool) -> str:
    if color:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("COLUMNS", "200")
    made = console()
    made.file = io.StringIO()
    for thing in things:
        made.print(thing, soft_wrap=True)
    return made.file.getvalue()


@pytest.mark.parametrize("color", [False, True])
def test_text_stands_there_as_it_is_and_is_not_obeyed(monkeypatch, color):
    found = printed(HOSTILE, monkeypatch=monkeypatch, color=color)
    assert SEEN in found
    assert "\x1b[2J" not in found


@pytest.mark.parametrize("place", ["title", "column", "cell", "caption"])
def test_a_table_obeys_nothing_either(monkeypatch, place):
    parts = {name: HOSTILE if name == place else name for name in ("title", "column", "cell", "caption")}
    made = table(parts["title"], {parts["column"]: "left"}, [[parts["cell"]]], parts["caption"])
    found = printed(made, monkeypatch=monkeypatch, color=True)
    assert "[red]a[/red]" in found
    assert ":smile:" in found
    assert "\x1b[2J" not in found
    assert "\x1b]0;" not in found
    assert "\x9b" not in found


def test_the_live_panel_and_its_lines_obey_nothing(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    made = console()
    made.file = io.StringIO()
    with Status(made) as status:
        status.observe(Pace(HOSTILE, 3, 10, 0.5))
        status.say(HOSTILE)
        status.observe(Pace(HOSTILE, 4, 10, 0.5))
    found = made.file.getvalue()
    assert found.count("[red]a[/red] :smile: �[2J") >= 3
    assert "\x1b[2J" not in found
    assert "\x1b]0;" not in found


def test_progress_that_says_nothing_new_is_written_once(monkeypatch):
    monkeypatch.setattr("autoloss.report.status.LINE_SECONDS", 0)
    made = console()
    made.file = io.StringIO()
    with Status(made) as status:
        for step in (3, 3, 4):
            status.observe(Pace("seed 0", step, 10, 0.5))
    assert [text[:18] for text in made.file.getvalue().splitlines()] == ["seed 0 · step 3/10", "seed 0 · step 4/10"]


def test_the_consoles_own_orders_stay(monkeypatch):
    from rich.text import Text

    assert "\x1b[1m" in printed(Text("bold", style="bold"), monkeypatch=monkeypatch, color=True)


def test_what_follows_a_search_has_a_bar_a_count_and_a_time():
    finale = Finale(done=12, expected=60, seconds=30.0, eta_seconds=240.0)
    assert line(finale) == "confirming and comparing: 12 of about 60 trainings · about 4 min 00 s left"
    console = Console(record=True, width=100)
    console.print(panel(finale))
    shown = console.export_text()
    assert "12 of about 60 trainings" in shown
    assert "━" in shown
    assert line(replace(finale, eta_seconds=None)).endswith("time left: not known yet")
