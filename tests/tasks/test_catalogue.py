"""The catalogue: names without torch, and the nearest name for what is unknown."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autoloss import tasks
from autoloss.errors import RequestError
from autoloss.tasks.catalogue import CATALOGUE, get


def test_names_are_those_of_the_table():
    assert (
        tasks.names()
        == list(CATALOGUE)
        == [
            "digits-seg",
            "voc-seg",
            "cityscapes-seg",
            "folder-seg",
            "digits-det",
            "coco-det",
            "voc-det",
            "digits-ins",
            "coco-ins",
            "figures-pose",
            "coco-pose",
            "tabular",
            "ranking",
            "survival",
        ]
    )


def test_every_task_has_a_metric():
    assert all(row.metrics for row in CATALOGUE.values())


@pytest.mark.parametrize(
    "request_", ["tasks.names()", "tasks.get('digit-seg')", "tasks.get('digits-seg', metric='miuo')"]
)
def test_listing_and_refusing_import_no_torch(request_: str):
    program = (
        "import sys\nfrom autoloss import tasks\nfrom autoloss.errors import RequestError\n"
        f"try:\n    {request_}\nexcept RequestError as error:\n    assert 'Did you mean' in str(error)\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("name", "metric", "options", "message"),
    [
        ("digits-sge", None, {}, "no task named 'digits-sge'. Did you mean 'digits-seg'"),
        ("digits-seg", "mioux", {}, "no metric of the task digits-seg named 'mioux'. Did you mean 'miou'"),
        ("digits-seg", None, {"epohcs": 1}, "no option of the task digits-seg named 'epohcs'. Did you mean 'epochs'"),
        ("digits-seg", None, {"epochs": 0}, "^epochs is 0"),
        ("voc-seg", None, {"full_epochs": 0}, "^full_epochs is 0"),
        ("coco-pose", None, {"rotation": -3}, "^rotation is -3"),
        ("digits-seg", None, {"valid": 0}, "valid is 0; expected .* at least 1"),
        ("digits-seg", None, {"size": 33}, "size is 33; expected .* multiple of 16"),
    ],
)
def test_what_is_unknown_or_out_of_range_is_named(
    name: str, metric: str | None, options: dict[str, object], message: str
):
    with pytest.raises(RequestError, match=message):
        get(name, metric, **options)


def test_an_attribute_that_is_not_there_is_an_ordinary_error():
    with pytest.raises(AttributeError, match="no attribute 'gte'"):
        tasks.gte  # noqa: B018


def test_a_task_without_its_extra_says_what_to_install():
    code = """
import sys
sys.modules["torchvision"] = sys.modules["faster_coco_eval"] = None
from autoloss import tasks
from autoloss.errors import RequestError
for name in ("voc-seg", "digits-det", "coco-det", "voc-det", "figures-pose", "coco-pose"):
    try:
        tasks.get(name)
    except RequestError as error:
        print(error)
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.count("pip install autoloss[vision]") == 6
