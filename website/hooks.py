"""Hooks of mkdocs: add the pages that are generated from the code, and those outside docs/, to the site."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# mkdocs loads this file by its path.
sys.path.insert(0, str(ROOT))

from website import api, catalogue, commands, gallery, losses, notebook, settings  # noqa: E402

WRITTEN: Mapping[str, Callable[[], str]] = {
    "gallery.md": gallery.page,
    "notebook.md": notebook.page,
    "reference/commands.md": commands.page,
    "reference/settings.md": settings.page,
    "reference/tasks.md": catalogue.page,
    "reference/losses.md": losses.page,
    "reference/python.md": api.page,
}
"""Page of the site → the function that writes it."""
OUTSIDE = {"README.md": "quick-start.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Page of the repository → its place in the site."""


def on_files(files: Files, *, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that are not in docs/."""
    for place, write in WRITTEN.items():
        files.append(File.generated(config, place, content=write()))
    for name, place in OUTSIDE.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=re.sub(r'(\]\(|src="|srcset=")docs/', r"\1", text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Rewrite links to files outside docs/ as links to pages of the site, and remove escapes from code in tables."""
    # Where a table is read on GitHub, a bar within code needs a backslash, which would be shown here.
    markdown = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)
    for name, place in OUTSIDE.items():
        markdown = re.sub(rf"\]\((?:\.\./)?{re.escape(name)}(#[^)]*)?\)", rf"]({place}\1)", markdown)
    return markdown
