"""The notebook of the documentation: run cell by cell, and written as a page. `python -m website.notebook` runs it."""

from __future__ import annotations

import ast
import base64
import io
import json
import runpy
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"
SHOWN = "_shown"
Cell = dict[str, Any]


def run_cells(change: Callable[[str], str] = lambda source: source) -> Iterator[tuple[Cell, Any]]:
    """Run the cells in order and yield each with the value of its last line; None where that is no expression.

    Args:
        change: Changes the source of a cell before it is run.
    """
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for cell in _read()["cells"]:
            if cell["cell_type"] != "code":
                continue
            tree = ast.parse(change("".join(cell["source"])))
            if isinstance(last := tree.body[-1], ast.Expr):
                tree.body[-1] = ast.Assign([ast.Name(SHOWN, ast.Store())], last.value)
            path = Path(folder) / "cell.py"
            path.write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
            names = runpy.run_path(str(path), {**names, SHOWN: None})
            yield cell, names[SHOWN]


def show(value: Any) -> dict[str, str]:
    """Return what a notebook shows of a value, by the type of the content."""
    if hasattr(value, "get_figure"):
        image = io.BytesIO()
        value.get_figure().savefig(image, format="png", dpi=80, bbox_inches="tight")
        return {"image/png": base64.b64encode(image.getvalue()).decode()}
    return {"text/html": value._repr_html_()}


def page() -> str:
    """Return the notebook with its outputs as a page."""
    parts: list[str] = []
    for cell in _read()["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            content = output["data"]
            image = content.get("image/png")
            shown = f'<img alt="plot" src="data:image/png;base64,{image}">' if image else content["text/html"]
            parts.append(f'<div class="output">{shown}</div>')
    return "\n\n".join(parts) + "\n"


def _read() -> dict[str, Any]:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def main() -> None:
    """Run the notebook and store what its cells show."""
    outputs = [
        []
        if value is None
        else [{"output_type": "execute_result", "execution_count": place, "metadata": {}, "data": show(value)}]
        for place, (_, value) in enumerate(run_cells(), start=1)
    ]
    notebook, at = _read(), iter(enumerate(outputs, start=1))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"], cell["outputs"] = next(at)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
