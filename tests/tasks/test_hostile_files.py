"""Files of weights that attack: no program in them runs, and each is refused with what is wrong with it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from autoloss.errors import RequestError
from autoloss.tasks.weights import load_state_dict
from autoloss.training.checkpoints import list_checkpoints
from autoloss.training.training import Training
from tests.training.drawing import cross_entropy, drawing_task, kept_in

WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}


class Bomb:
    """Runs a command as soon as it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def bomb(path: Path) -> None:
    torch.save({"weight": Bomb(path.with_name("ran"))}, path)


def bare_bomb(path: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(path.with_name("ran"))))


def cut(path: Path) -> None:
    torch.save(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:400])


def flipped(path: Path) -> None:
    """Flip a bit of the archive's directory."""
    torch.save(WEIGHTS, path)
    content = bytearray(path.read_bytes())
    content[content.rindex(b"PK\x01\x02")] ^= 0x40
    path.write_bytes(content)


def other_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights/data.pkl", b"not a pickle")


def network(path: Path) -> None:
    torch.save(torch.nn.Linear(3, 2), path)


def header(length: int, text: bytes) -> Callable[[Path], None]:
    return lambda path: (path.write_bytes(struct.pack("<Q", length) + text), None)[1]


def lying(offsets: tuple[int, int], shape: list[int]) -> Callable[[Path], None]:
    text = json.dumps({"weight": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
    return lambda path: (path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(24)), None)[1]


FILES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a program": ("w.pt", bomb, "contains code, such as a pickled network"),
    "a program in a bare pickle": ("w.pt", bare_bomb, "contains code, such as a pickled network"),
    "a whole network": ("w.pt", network, "contains code, such as a pickled network"),
    "cut": ("w.pt", cut, "cannot be read"),
    "a flipped bit": ("w.pt", flipped, "cannot be read"),
    "another archive": ("w.pt", other_archive, "cannot be read"),
    "empty": ("w.pt", lambda path: path.write_bytes(b"") and None, "cannot be read"),
    "text": ("w.pt", lambda path: path.write_text("hello") and None, "cannot be read"),
    "a list": ("w.pt", lambda path: torch.save([1, 2], path), "holds a list"),
    "a checkpoint": ("w.pt", lambda path: torch.save({"model": WEIGHTS}, path), "a dict under 'model'"),
    "safetensors, empty": ("w.safetensors", lambda path: path.write_bytes(b"") and None, "cannot be read"),
    "a header without end": ("w.safetensors", header(2**62, b"{}"), "cannot be read"),
    "a header that is no JSON": ("w.safetensors", header(8, b"\x00" * 8), "cannot be read"),
    "offsets beyond the file": ("w.safetensors", lying((0, 2**40), [2**38]), "cannot be read"),
    "offsets backwards": ("w.safetensors", lying((24, 0), [2, 3]), "cannot be read"),
    "a shape that does not fit": ("w.safetensors", lying((0, 24), [1000, 1000]), "cannot be read"),
    "nothing": ("w.pt", lambda path: None, "There is no file"),
}


def check_file(kind: str, folder: Path) -> None:
    """Write a file of weights to a folder; it is refused in words and runs nothing. bench counts these, too."""
    name, write, said = FILES[kind]
    write(folder / name)
    with pytest.raises(RequestError) as caught:
        load_state_dict(str(folder / name))
    assert said in str(caught.value)
    assert str(folder / name) in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "weights_only" not in str(caught.value)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_file_of_weights_is_refused_and_runs_nothing(kind, tmp_path):
    check_file(kind, tmp_path)


def test_the_bomb_would_have_run(tmp_path):
    bare_bomb(tmp_path / "w.pt")
    pickle.loads((tmp_path / "w.pt").read_bytes())  # noqa: S301 - it is the point
    assert (tmp_path / "ran").is_dir()


def test_weights_are_read_from_both_formats(tmp_path):
    torch.save(WEIGHTS, tmp_path / "w.pt")
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        found = load_state_dict(str(tmp_path / name))
        assert found.keys() == WEIGHTS.keys()
        assert all(torch.equal(found[key], WEIGHTS[key]) for key in WEIGHTS)


@pytest.mark.parametrize("content", [{"weight": "bomb"}, ["no", "state"], {"format": 1}, {}])
def test_a_forged_checkpoint_of_the_right_name_runs_nothing_and_is_refused(content, tmp_path):
    path = tmp_path / "forged"
    torch.save({"weight": Bomb(tmp_path / "ran")} if "weight" in content else content, path)
    digest = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
    path.rename(tmp_path / f"checkpoint-000000010-{digest}.pt")
    assert len(list_checkpoints(tmp_path)) == 1
    task = drawing_task()
    with pytest.raises(RequestError, match="damaged"):
        task.train(cross_entropy(task), Training(seed=3), kept_in(tmp_path))
    assert not (tmp_path / "ran").exists()
