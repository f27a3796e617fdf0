"""Pictures read what lies there or name the fault; what is held out follows from names and seed alone."""

from __future__ import annotations

import pickle
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from autoloss.errors import RequestError
from autoloss.tasks.files import FaultyFile, count_held_out
from autoloss.tasks.segmentation.data.image_files import ImageFiles, hold_out, rank_by_hash, read_indices
from tests.tasks.segmentation.drawn import CLASSES, blocks, painted, pictures


def nowhere(count: int) -> ImageFiles:
    pairs = tuple((Path(f"image{index}.jpg"), Path(f"mask{index}.png")) for index in range(count))
    return ImageFiles("nowhere", pairs, CLASSES, read_indices)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK", "P", "1"])
def test_images_of_any_usual_mode_become_three_channels_of_8_bits(tmp_path: Path, mode: str):
    file = tmp_path / "image.tif"
    Image.fromarray(painted(blocks(1)[0])).convert(mode).save(file)
    image = ImageFiles("one", ((file, file),), CLASSES, read_indices).image(0)
    assert image.shape == (3, 32, 40)
    assert image.dtype == torch.uint8


@pytest.mark.parametrize("mode", ["L", "P"])
def test_index_masks_keep_every_label(tmp_path: Path, mode: str):
    labels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    picture = Image.fromarray(labels)
    if mode == "P":
        picture.putpalette(bytes(768))
    picture.save(tmp_path / "mask.png")
    assert np.array_equal(read_indices(tmp_path / "mask.png"), labels)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_index_masks_of_few_bits_keep_every_label(tmp_path: Path, bits: int):
    labels = np.arange(2**bits, dtype=np.uint8).repeat(8).reshape(-1, 8)
    few = np.unpackbits(labels[..., None], axis=2)[..., -bits:].reshape(len(labels), -1)
    rows = b"".join(b"\0" + bytes(row) for row in np.packbits(few, axis=1))
    header = struct.pack(">IIBBBBB", 8, len(labels), bits, 0, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    (tmp_path / "mask.png").write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in chunks
        )
    )
    assert np.array_equal(read_indices(tmp_path / "mask.png"), labels)


def test_what_is_held_out_and_what_is_left_are_all_there_was():
    rest, held = hold_out(nowhere(50), 20, seed=0)
    assert (len(rest), len(held)) == (30, 20)
    assert sorted(rest.pairs + held.pairs) == sorted(nowhere(50).pairs)
    assert held.classes == CLASSES
    assert held.name == "nowhere, 20 held out"


def test_what_is_held_out_follows_from_names_and_seed_not_from_order_or_place():
    held = set(hold_out(nowhere(50), 20, seed=0)[1].pairs)
    backwards = replace(nowhere(50), pairs=nowhere(50).pairs[::-1])
    assert set(hold_out(backwards, 20, seed=0)[1].pairs) == held
    moved = replace(nowhere(50), pairs=tuple((Path("moved") / i, Path("moved") / m) for i, m in nowhere(50).pairs))
    assert {image.name for image, _ in hold_out(moved, 20, seed=0)[1].pairs} == {image.name for image, _ in held}
    assert set(hold_out(nowhere(50), 20, seed=1)[1].pairs) != held


def test_a_further_name_moves_no_other():
    names = [f"image{index}" for index in range(30)]
    order = [names[index] for index in rank_by_hash(names, 3)]
    longer = [*names, "another"]
    assert [longer[index] for index in rank_by_hash(longer, 3) if index < 30] == order


@pytest.mark.parametrize("count", [0, -1, 50, 51])
def test_holding_out_none_or_all_is_refused(count: int):
    with pytest.raises(RequestError, match=f"{count} of the 50 images of nowhere were to be held out; expected"):
        count_held_out(count, nowhere(50), (1, 7))


def faulty(found: ImageFiles) -> str:
    with pytest.raises(FaultyFile) as caught:
        found.pair(0)
    # Errors of a worker reach the driver pickled.
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301 - our own
    return str(caught.value)


def test_a_label_outside_the_classes_is_refused_by_file_and_label(tmp_path: Path):
    mask = blocks(1)[0]
    mask[0, :3] = (3, 254, 3)
    message = faulty(pictures(tmp_path, [mask]))
    assert message == (
        f"{tmp_path / 'mask0.png'}: holds the labels 3, 254 (3 of 1280 pixels); expected 0 to 2, or 255 for ignored "
        "pixels. Correct the mask, or the number of classes."
    )


def test_a_mask_of_another_size_is_refused(tmp_path: Path):
    found = pictures(tmp_path, blocks(2))
    Image.fromarray(blocks(1, 16, 24)[0]).save(found.pairs[0][1])
    assert "mask0.png: is 24×16 pixels; expected the 40×32 of its image image0.png" in faulty(found)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda file: file.unlink(), "there is no such file"),
        (lambda file: file.write_bytes(file.read_bytes()[:-40]), "cannot be decoded"),
        (lambda file: file.write_bytes(b""), "cannot be decoded"),
        (lambda file: file.write_bytes(b"no image"), "cannot be decoded"),
        (lambda file: Image.new("I;16", (40, 32)).save(file), "holds I;16 values"),
    ],
    ids=["missing", "truncated", "empty", "text", "16 bits"],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, which: int, spoil, said: str):
    found = pictures(tmp_path, blocks(1))
    spoil(found.pairs[0][which])
    message = faulty(found)
    assert message.startswith(f"{found.pairs[0][which]}: {said}")
    assert "expected" in message


def test_a_mask_in_colours_is_refused(tmp_path: Path):
    found = pictures(tmp_path, blocks(1))
    Image.fromarray(painted(blocks(1)[0])).save(found.pairs[0][1])
    assert "mask0.png: holds RGB values; expected an index PNG (palette or grey)" in faulty(found)


def test_no_damage_to_a_file_escapes_as_another_error(tmp_path: Path):
    found = pictures(tmp_path, blocks(1))
    rng = np.random.default_rng(0)
    for file in found.pairs[0]:
        whole = file.read_bytes()
        for _ in range(150):
            damaged = bytearray(whole)
            damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
            file.write_bytes(damaged[: rng.integers(len(damaged)) if rng.random() < 0.3 else None])
            try:
                found.pair(0)
            except FaultyFile as error:
                assert str(file.parent) in str(error)  # noqa: PT017 - some damage does no harm
        file.write_bytes(whole)
