"""What the pages say works as it stands there: every command and every block of Python, page by page, in order."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from autoloss.cli import app, main
from tests.docs import smaller
from tests.docs.pages import PAGES, PLAIN, ROOT, SHELL, Block, blocks, commands, mentions, read
from tests.docs.running import PROGRAMS, Folder, Untrue, compare, shortened, small
from tests.tasks import conformance
from tests.tasks.detection.test_box_formats import voc_object, voc_written
from tests.tasks.detection.test_boxed_files import coco_written
from tests.tasks.pose.drawn import write_folder
from tests.tasks.segmentation import generated

FOLLOWED = [page for page in PAGES if any(block.language not in (PLAIN, "") for block in blocks(page))]
EXAMPLES = {"README.md": 2, "docs/adapters.md": 10, "docs/plugging-in.md": 6}
"""Page → blocks of Python that tests of their own run, since they need something beside them."""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """Where data, and runs that pages begin with, lie."""
    place = tmp_path_factory.mktemp("documented")
    generated.voc(place / "DATA", count=12, side=48)
    generated.folder(place / "FOLDER", count=12, side=48)
    write_folder(coco_written(place / "COCO"))
    boxed_voc(place / "VOC")
    rows = [f"{k},{k % 7},{'red' if k % 3 else 'blue'},{'yes' if k % 4 else 'no'}" for k in range(80)]
    (place / "customers.csv").write_text("\n".join(["id,visits,colour,churned", *rows]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOLOSS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield place


def boxed_voc(directory: Path) -> None:
    """Write a VOCdevkit with boxes: four times the same picture in each list."""
    for year, split in ((2007, "trainval"), (2007, "test"), (2012, "trainval")):
        objects = [voc_object(box=(3, 5, 20, 22)), voc_object("cat", box=(18, 10, 38, 29))]
        root = voc_written(directory, objects, year, split=split) / "VOCdevkit" / f"VOC{year}"
        names = root / "ImageSets/Main" / f"{split}.txt"
        stems = [names.read_text().strip(), *(f"{split}{number}" for number in range(3))]
        for stem in stems[1:]:
            for kind in ("JPEGImages/{}.jpg", "Annotations/{}.xml"):
                shutil.copy(root / kind.format(stems[0]), root / kind.format(stem))
        names.write_text("\n".join(stems))


@pytest.fixture(scope="module")
def finished(place) -> Callable[[str], Path]:
    """Returns a finished run by name, made when it is first asked for."""

    def made(name: str) -> Path:
        out = place / name
        if not out.exists():
            words = {
                "digits": "search digits-seg --metric miou --set final.compare=1 --set final.compare_seeds=2",
                "voc": f"search voc-seg --metric miou --data {place / 'DATA'}",
            }[name]
            with pytest.raises(SystemExit) as ended:
                main([*small(words.split(), place), "--out", str(out)])
            assert not ended.value.code
        return out

    return made


@pytest.fixture
def folder(place, tmp_path, monkeypatch, capfd) -> Folder:
    for path in place.iterdir():
        if path.name.isupper() or path.suffix:
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "bench").symlink_to(ROOT / "bench")
    # Several pages use the task of the first one.
    task = next(block for block in blocks("docs/start.md") if block.file)
    (tmp_path / "worst_digit.py").write_text(shortened(task.text), encoding="utf-8")
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


@pytest.mark.parametrize("claim", conformance.CLAIMS, ids=lambda claim: claim.__name__)
def test_the_task_of_several_losses_is_all_that_a_task_must_be(claim, tmp_path):
    (block,) = (block for block in blocks("docs/own-task.md") if block.file)
    (tmp_path / "two_heads.py").write_text(shortened(block.text), encoding="utf-8")
    claim(runpy.run_path(str(tmp_path / "two_heads.py"))["task"])


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    for block in blocks(page):
        assert block.language in (*SHELL, "python", PLAIN), f"{block} has no language that the tests know"
        if block.language == PLAIN:
            first = [line.split()[0] for line in block.text.splitlines() if line.strip()]
            assert not {"$", *PROGRAMS} & set(first), f"{block} holds commands, and is not run"


@pytest.mark.parametrize("page", PAGES)
def test_every_program_is_known(page):
    for command in commands(page):
        words = [word for word in command.split() if "=" not in word.partition("/")[0]]
        assert command.startswith("#!") or words[0] in PROGRAMS, f"{page}: {command}"


def test_nothing_is_left_to_other_tests_that_they_do_not_run():
    marked = {page: sum(block.mark.startswith("example") for block in blocks(page)) for page in PAGES}
    assert {page: count for page, count in marked.items() if count} == EXAMPLES


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist_with_their_options(page):
    known = {command.callback.__name__: command for command in app.registered_commands}
    group = typer.main.get_command(app)
    for words in mentions(page):
        if words[1].startswith("--") or words[1].isupper():
            continue
        assert words[1] in known, f"{page}: {words}"
        options = {
            name
            for parameter in group.commands[words[1]].params
            for name in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, f"{page}: {words}"


TABLES = {
    "OPTIONS": [key.split()[-1] for key in smaller.OPTIONS],
    "SETTINGS": list(smaller.SETTINGS),
    "TASKS": list(smaller.TASKS),
    "RETRAINED": list(smaller.RETRAINED),
    "WORDS": list(smaller.WORDS),
    "ADDED": list(smaller.ADDED),
    "PYTHON": list(smaller.PYTHON),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_holds_nothing_that_no_page_says(name):
    everything = "\n".join(block.text if block.language == "python" else "" for page in PAGES for block in blocks(page))
    everything += "\n".join(command for page in PAGES for command in commands(page))
    assert [row for row in TABLES[name] if row not in everything] == []


def test_what_is_made_smaller_is_what_the_tables_say(tmp_path):
    command = "search voc-seg --data DATA --ray auto --workers 8 --set weights=imagenet --set evolution.lag=8"
    found = " ".join(small(shlex.split(command), tmp_path))
    assert "--ray" not in found
    assert "imagenet" not in found
    assert "--data DATA --workers 0 --evaluations 1" in found
    assert "--set evolution.lag=8" in found
    assert "--set rejection.threshold=-9" in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mkfs /dev/sda", "no program mkfs"),
        ("autoloss serach digits-seg", "ended with 2"),
        ("autoloss top runs/nothing", "There is no run"),
        ("pip install autoloss[visoin]", "no extra"),
        ("make dmeo", "No rule"),
        ("torchrun --nproc-per-node 2 train.py", "does not start"),
    ],
)
def test_a_wrong_command_fails(text, message, folder):
    with pytest.raises(Untrue, match=message):
        folder.follow(Block("page.md", 1, "sh", "", text))


def test_a_script_of_a_job_that_fails_is_told(folder):
    with pytest.raises(Untrue, match="ended with"):
        folder.follow(Block("page.md", 1, "sh", "", "#!/bin/bash\nunknown-program"))


def test_output_that_is_shown_is_what_the_command_said():
    compare("trained 60 in 1.5 s", "first\n  trained 2 in 0.1 s\n")
    with pytest.raises(Untrue, match="The page shows"):
        compare("trained 60 in 1.5 min", "trained 2 in 0.1 s")


WORDS, CHARACTERS = 20_000, 140
APART = ("docs/paper.md", "docs/measurements.md")
"""The page about the paper, and the tables behind the results."""


def test_the_pages_are_short_and_so_are_their_lines():
    # Without code; tables may have longer lines.
    prose = {page: re.sub(r"^```.*?^```$", "", read(page), flags=re.DOTALL | re.MULTILINE) for page in PAGES}
    counted = {
        page: len(text.split()) for page, text in prose.items() if page.startswith("docs/") and page not in APART
    }
    assert sum(counted.values()) <= WORDS, counted
    long = {
        f"{page}: {line[:50]}"
        for page, text in prose.items()
        if page.startswith("docs/") and page not in APART
        for line in text.splitlines()
        if len(line) > CHARACTERS and not line.startswith("|")
    }
    assert not long


def test_every_page_has_a_picture_or_something_that_is_run():
    shown = ("![", "```text")
    assert [
        page for page in PAGES if page not in (*FOLLOWED, *APART) and not any(one in read(page) for one in shown)
    ] == []
