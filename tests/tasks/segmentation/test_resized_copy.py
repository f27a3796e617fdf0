"""The small copy: what it holds, when it is made anew, and that it is whole or absent, whoever is killed or late."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.data import image_files
from autoloss.tasks.segmentation.data.image_files import (
    ImageFiles,
    ResizedCopy,
    find_cache,
    open_copy,
    read_indices,
    resize,
)
from tests.tasks.segmentation.building import read
from tests.tasks.segmentation.drawn import CLASSES, blocks, pictures

SIDE = 16
ROOT = Path(__file__).parents[3]


@pytest.fixture
def drawn(tmp_path: Path) -> ImageFiles:
    (tmp_path / "data").mkdir()
    return pictures(tmp_path / "data", blocks(6))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def kept(cache: Path) -> list[str]:
    """What lies in the cache beside the files of the locks."""
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def check(small: ResizedCopy, whole: ImageFiles) -> None:
    assert len(small) == len(whole)
    for index in range(len(whole)):
        image, mask = resize(*whole.pair(index), SIDE, SIDE)
        assert all(map(torch.equal, small.pair(index), (image, mask)))


def test_the_copy_holds_each_image_and_mask_resized(drawn: ImageFiles, cache: Path):
    small = open_copy(drawn, SIDE, cache)
    check(small, drawn)
    assert isinstance(small.rows, np.memmap)
    assert small.pair(0)[0].dtype == small.pair(0)[1].dtype == torch.uint8
    assert set(torch.cat([small.pair(index)[1].ravel() for index in range(6)]).unique().tolist()) == {0, 1, 2, 255}
    assert kept(cache) == [small.file.name]


def test_images_of_differing_sizes_get_one_size(tmp_path: Path, cache: Path):
    whole = pictures(tmp_path, [*blocks(1, 16, 40), *blocks(1, 8, 8)])
    check(open_copy(whole, SIDE, cache), whole)


def test_a_second_call_reads_no_picture(drawn: ImageFiles, cache: Path, monkeypatch):
    file = open_copy(drawn, SIDE, cache).file
    monkeypatch.delattr(ImageFiles, "pair")
    assert open_copy(drawn, SIDE, cache).file == file


def touched(drawn: ImageFiles) -> ImageFiles:
    os.utime(drawn.pairs[3][1], ns=(0, 0))
    return drawn


def rewritten(drawn: ImageFiles) -> ImageFiles:
    # As a file of an archive that gives all files one time, or one whose time was restored.
    file, times = drawn.pairs[3][1], drawn.pairs[3][1].stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    return drawn


def another_reader(file: Path) -> np.ndarray:
    return read_indices(file)


@pytest.mark.parametrize(
    ("change", "side"),
    [
        (lambda drawn: drawn, 8),
        (touched, SIDE),
        (rewritten, SIDE),
        (lambda drawn: replace(drawn, pairs=drawn.pairs[:-1]), SIDE),
        (lambda drawn: replace(drawn, pairs=drawn.pairs[::-1]), SIDE),
        (lambda drawn: replace(drawn, read_mask=another_reader), SIDE),
        (lambda drawn: replace(drawn, classes=(*CLASSES, "more")), SIDE),
    ],
    ids=["side", "time", "content", "fewer", "order", "reader", "classes"],
)
def test_whatever_the_copy_is_made_from_changes_its_name(drawn: ImageFiles, cache: Path, change, side: int):
    file = open_copy(drawn, SIDE, cache).file
    assert open_copy(change(drawn), side, cache).file != file
    assert len(kept(cache)) == 2


def test_a_data_set_that_moves_keeps_its_copy(drawn: ImageFiles, cache: Path, tmp_path: Path):
    file = open_copy(drawn, SIDE, cache).file
    (tmp_path / "data").rename(tmp_path / "else")
    (tmp_path / "else").rename(tmp_path / "data2")
    (tmp_path / "deep").mkdir()
    (tmp_path / "data2").rename(tmp_path / "deep/data")
    moved = tuple((tmp_path / "deep/data" / i.name, tmp_path / "deep/data" / m.name) for i, m in drawn.pairs)
    assert open_copy(replace(drawn, pairs=moved), SIDE, cache).file == file


def building(drawn: ImageFiles, cache: Path, **environment: str) -> subprocess.Popen[str]:
    program = "from tests.tasks.segmentation.building import main; main()"
    command = [sys.executable, "-c", program, str(drawn.pairs[0][0].parent), str(cache)]
    inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=inherited | environment
    )


def test_of_two_processes_at_once_one_makes_the_copy_and_both_have_it(drawn: ImageFiles, cache: Path):
    both = [building(drawn, cache) for _ in range(2)]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert said[0][-1] == said[1][-1]
    assert sorted(len(lines) for lines in said) == [1, 7]
    assert len(kept(cache)) == 1


def test_a_copy_whose_maker_was_killed_is_made_anew_and_nothing_is_left_of_it(drawn: ImageFiles, cache: Path):
    process = building(drawn, cache, KILL="yes")
    process.communicate("\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert ["part" in name for name in kept(cache)] == [True]
    small = open_copy(replace(drawn, read_mask=read), SIDE, cache)
    check(small, drawn)
    assert kept(cache) == [small.file.name]


def test_where_locks_do_nothing_the_later_one_takes_the_earlier_ones_copy(drawn: ImageFiles, cache: Path, monkeypatch):
    monkeypatch.setattr(image_files, "FileLock", lambda file: contextlib.nullcontext())
    first: list[ResizedCopy] = []
    rows = image_files._resize_all

    def overtaken(*arguments):
        if not first:
            first.append(None)  # type: ignore[arg-type]
            first[0] = open_copy(drawn, SIDE, cache)
        return rows(*arguments)

    monkeypatch.setattr(image_files, "_resize_all", overtaken)
    small = open_copy(drawn, SIDE, cache)
    check(small, drawn)
    assert small.file == first[0].file
    assert kept(cache) == [small.file.name]


def test_an_interruption_leaves_nothing_behind(drawn: ImageFiles, cache: Path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(image_files, "_resize_all", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_copy(drawn, SIDE, cache)
    assert kept(cache) == []


def test_where_nothing_can_be_written_another_folder_is_asked_for(drawn: ImageFiles, tmp_path: Path):
    # A file where the folder should be: nobody can write there, whoever runs the tests.
    (tmp_path / "occupied").touch()
    with pytest.raises(RequestError, match=r"in .*occupied: File exists\. Set AUTOLOSS_CACHE to .* room for 1 MB\."):
        open_copy(drawn, SIDE, tmp_path / "occupied")


def test_a_full_disk_leaves_nothing(drawn: ImageFiles, cache: Path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_files, "commit_file", full)
    with pytest.raises(RequestError, match=r"No space left on device\. Set AUTOLOSS_CACHE"):
        open_copy(drawn, SIDE, cache)
    assert kept(cache) == []


def test_a_copy_travels_as_its_place_and_is_made_again_where_it_is_not(drawn: ImageFiles, cache: Path):
    small = open_copy(drawn, SIDE, cache)
    frozen = pickle.dumps(small)
    assert len(frozen) < 3000
    assert pickle.loads(frozen).file == small.file  # noqa: S301 - our own
    small.file.unlink()
    check(pickle.loads(frozen), drawn)  # noqa: S301


def test_a_damaged_copy_is_refused_by_its_name(drawn: ImageFiles, cache: Path):
    small = open_copy(drawn, SIDE, cache)
    os.truncate(small.file, 1000)
    with pytest.raises(RequestError, match=r"is damaged; expected 6 images\. Delete it"):
        open_copy(drawn, SIDE, cache)


def test_faulty_files_are_all_listed_and_no_copy_is_kept(drawn: ImageFiles, cache: Path):
    for index in (1, 4):
        drawn.pairs[index][1].write_bytes(b"damaged")
    with pytest.raises(RequestError) as caught:
        open_copy(drawn, SIDE, cache)
    assert "mask1.png: cannot be decoded" in str(caught.value)
    assert "mask4.png: the same" in str(caught.value)
    assert kept(cache) == []


def test_missing_files_are_all_listed(drawn: ImageFiles, cache: Path):
    for index in (0, 5):
        drawn.pairs[index][0].unlink()
    with pytest.raises(RequestError, match=r"(?s)image0.png: there is no such file.*image5.png: the same"):
        open_copy(drawn, SIDE, cache)


def test_copies_are_kept_where_the_variable_says_else_in_the_users_cache(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("AUTOLOSS_CACHE", str(tmp_path))
    assert find_cache() == tmp_path
    monkeypatch.delenv("AUTOLOSS_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert find_cache() == tmp_path / "x/autoloss"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_cache() == tmp_path / ".cache/autoloss"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert find_cache() == tmp_path / "Library/Caches/autoloss"
