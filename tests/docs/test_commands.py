"""What the pages say works as it stands there: every command and every block of Python, page by page, in order."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autoloss.cli import app, main
from tests.docs import smaller
from tests.docs.pages import PAGES, PLAIN, SHELL, Block, blocks, commands, mentions, read
from tests.docs.running import PROGRAMS, Folder, Untrue, compare, small
from tests.tasks.datasets import generated
from tests.tasks.test_box_formats import voc_object, voc_written
from tests.tasks.test_boxed_files import coco_written

FOLLOWED = [page for page in PAGES if any(block.language not in (PLAIN, "") for block in blocks(page))]
EXAMPLES = {"README.md": 2, "docs/plugging-in.md": 6}
"""Page → blocks of Python that tests of their own run, since they need something beside them."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """Where data, and runs that pages begin with, lie."""
    place = tmp_path_factory.mktemp("documented")
    generated.voc(place / "DATA", count=12, side=48)
    generated.folder(place / "FOLDER", count=12, side=48)
    coco_written(place / "COCO")
    boxed_voc(place / "VOC")
    rows = [f"{k},{k % 7},{'red' if k % 3 else 'blue'},{'yes' if k % 4 else 'no'}" for k in range(80)]
    (place / "customers.csv").write_text("\n".join(["id,visits,colour,churned", *rows]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLOSS_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(place)
        yield place


def boxed_voc(directory: Path) -> None:
    """Write a VOCdevkit with boxes: four times the same picture in each list."""
    for year, split in ((2007, "trainval"), (2007, "test"), (2012, "trainval")):
        objects = [voc_object(box=(3, 5, 20, 22)), voc_object("cat", box=(18, 10, 38, 29))]
        root = voc_written(directory, objects, year) / "VOCdevkit" / f"VOC{year}"
        stems = ["000005", *(f"{split}{number}" for number in range(3))]
        for stem in stems[1:]:
            for kind in ("JPEGImages/{}.jpg", "Annotations/{}.xml"):
                shutil.copy(root / kind.format(stems[0]), root / kind.format(stem))
        (root / "ImageSets/Main" / f"{split}.txt").write_text("\n".join(stems))


@pytest.fixture(scope="module")
def finished(place) -> Callable[[str], Path]:
    """Returns a finished run by name, made when it is first asked for."""

    def made(name: str) -> Path:
        out = place / name
        if not out.exists():
            words = {
                "digits": "search digits-seg --metric miou --evaluations 2 --set final.compare=1 --set final.compare_seeds=2",
                "voc": "search voc-seg --metric miou --data DATA --evaluations 1",
            }[name]
            with pytest.raises(SystemExit) as ended:
                main([*small(words.split(), place), "--out", name])
            assert not ended.value.code
        return out

    return made


@pytest.fixture
def folder(place, tmp_path, monkeypatch, capfd) -> Folder:
    for path in place.iterdir():
        if path.name.isupper() or path.suffix:
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known = set(sys.modules)
    for name in ("worst_digit", "two_heads"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield Folder(tmp_path, lambda: "".join(capfd.readouterr()))
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_page_can_be_followed(page, folder, finished):
    for path, name in smaller.NEEDED.get(page, {}).items():
        shutil.copytree(finished(name), folder.path / path)
    for block in blocks(page):
        try:
            folder.follow(block)
        except Exception as error:
            raise Untrue(f"{block}: {error}") from error
