"""What a notebook shows: tables, plots, one line that updates; and the notebook of the documentation, run cell by cell."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from website import notebook

import autoloss
from autoloss.errors import RequestError
from autoloss.run.loop import Finale, NotebookLine
from tests.docs import smaller

SMALL = {**smaller.QUICK, "final.compare": 1, "final.compare_seeds": 2, "final.confirm": 1, "ladder.share": 0}


@pytest.fixture(autouse=True)
def headless(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")


def test_the_notebook_of_the_documentation_runs_and_shows_each_result(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    small = f"evaluations=2, settings={SMALL}, workers=0"
    shown = [
        notebook.show(value) for _, value in notebook.run_cells(lambda cell: cell.replace("evaluations=40", small))
    ]
    assert [*map(list, shown)].count(["image/png"]) == 3
    assert [*map(list, shown)].count(["text/html"]) == 4
    # The page has what its cells showed when they were last run.
    assert notebook.page().count('<div class="output">') == len(shown)


def test_a_loss_is_shown_with_its_formula_and_drawn_with_its_gradient():
    pytest.importorskip("matplotlib")
    loss = autoloss.Loss("-y * log(p)")
    for one in (loss, loss["main"]):
        assert "<math" in one._repr_html_()
        assert "<code>-y * log(p)</code>" in one._repr_html_()
        assert [line.get_label() for line in one.plot().lines] == [
            "y = 1",
            "gradient, y = 1",
            "y = 0",
            "gradient, y = 0",
        ]
    for formula in ("-log(i / u)", "-w * log(p)"):
        assert autoloss.Loss(formula).plot().get_xlabel()


def test_without_matplotlib_a_plot_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match=r"pip install 'autoloss\[plot\]'"):
        autoloss.Loss("-y * log(p)").plot()


def test_a_notebook_has_one_line_that_updates(monkeypatch):
    written: list[str] = []
    handle = SimpleNamespace(update=written.append)
    display = SimpleNamespace(Markdown=str, display=lambda shown, display_id: written.append(shown) or handle)
    line = NotebookLine(display)
    line.say("Read a_b.csv.")
    line.observe(Finale(3, 10, 6.0, 14.0))
    assert written == [
        "Read a\\_b.csv.  \n",
        "Read a\\_b.csv.  \n**confirming and comparing: 3 of about 10 trainings · about 14 s left**",
    ]
    assert NotebookLine.find() is None
    kernel = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1))
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert NotebookLine.find() is not None
