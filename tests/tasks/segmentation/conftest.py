"""Data sets that are read and never changed, written once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.segmentation import generated


@pytest.fixture(scope="session")
def devkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds VOCdevkit (12 images to train on, 4 in val; sizes differ) and SBD beside it."""
    place = tmp_path_factory.mktemp("voc")
    generated.voc(place, 16, 48, varied=True)
    generated.sbd(place, 6, 48, also=("2007_000000", "2007_000012"))
    return place


@pytest.fixture(scope="session")
def cities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generated.cityscapes(tmp_path_factory.mktemp("cityscapes"), 8, 32)
