"""The paper's experiments, value for value."""

from __future__ import annotations

import pytest

from autoloss import recipes, tasks, zoo
from autoloss.errors import RequestError
from autoloss.run.configuration import Configuration


def test_the_search_on_voc_is_the_papers():
    values = recipes.get("voc-seg").values()
    for name, value in {
        "network": "deeplabv3+",
        "backbone": "resnet50",
        "weights": "imagenet",
        # "down-sampling the input images to the resolution of 128×128", "3 epochs", "a mini-batch size of 32".
        "side": 128,
        "epochs": 3,
        "batch_size": 32,
        # "The initial learning rate is 0.02, which is decayed by polynomial with power 0.9 and minimum learning rate 10^-4."
        "optimizer": "sgd",
        "learning_rate": 0.02,
        "schedule": "poly",
        "power": 0.9,
        "minimum_learning_rate": 1e-4,
        # "The momentum and weight decay factors are set to 0.9 and 5×10^-4."
        "momentum": 0.9,
        "weight_decay": 5e-4,
        # "the learning rate of the segmentation head is multiplied by 10"
        "head_factor": 10.0,
        "auxiliary": 0.0,
        "rejection.unit": "absolute",
        "rejection.threshold": 0.6,
    }.items():
        assert values[name] == value, name
    assert not any(name.startswith("full_") for name in values)


@pytest.mark.parametrize(
    ("name", "task", "network", "backbone"),
    [
        ("voc-r101-deeplabv3+", "voc-seg", "deeplabv3+", "resnet101"),
        ("cityscapes-r101-deeplabv3+", "cityscapes-seg", "deeplabv3+", "resnet101"),
        ("voc-r50-deeplabv3+", "voc-seg", "deeplabv3+", "resnet50"),
        ("voc-r101-pspnet", "voc-seg", "pspnet", "resnet101"),
    ],
)
def test_retrainings_differ_in_data_and_network_alone(name: str, task: str, network: str, backbone: str):
    recipe = recipes.get(name)
    values = recipe.values()
    assert (recipe.task, recipe.schedule) == (task, "full")
    assert (values.pop("full_network"), values.pop("full_backbone")) == (network, backbone)
    # "ResNet-101 as the backbone for 30 epochs. The input image resolution is 512×512."
    common = {"side": 512, "epochs": 30, "batch_size": 32, "learning_rate": 0.02, "output_stride": 8, "auxiliary": 0.4}
    assert {f"full_{key}": value for key, value in common.items()}.items() <= values.items()
    assert values["full_weights"] == "imagenet"
    others = recipes.get("voc-r101-deeplabv3+").values()
    assert values.items() <= others.items()


def test_options_and_settings_exist():
    for name in recipes.names():
        recipe = recipes.get(name)
        assert recipe.task in tasks.names()
        Configuration().changed(recipe.settings)
        assert set(recipe.options) <= {*recipe.values(), *recipe.options}
        with pytest.raises(RequestError, match="No folder"):
            tasks.get(recipe.task, **recipe.options)
        for row in recipe.published:
            assert row.name is None or row.name in zoo.names()


def test_each_found_loss_is_the_zoos_for_its_target():
    for row in recipes.get("voc-r101-deeplabv3+").published:
        if row.loss == "found":
            assert row.name == f"seg/{row.target}"


def test_published_figures_are_the_papers():
    def row(recipe: str, loss: str, target: str | None) -> list[float]:
        rows = [row for row in recipes.get(recipe).published if (row.loss, row.target) == (loss, target)]
        assert len(rows) == 1
        return list(rows[0].figures.values())

    assert row("voc-r101-deeplabv3+", "CE", None) == [78.7, 91.3, 95.2, 87.3, 70.6, 65.3]
    # "found losses, each on its own metric"
    found = [row("voc-r101-deeplabv3+", "found", metric)[place] for place, metric in enumerate(recipes.METRICS)]
    assert found == [80.7, 91.7, 95.3, 92.6, 77.6, 79.8]
    # The side effects to expect.
    assert row("voc-r101-deeplabv3+", "found", "bf1")[0] == 6.0
    assert row("voc-r101-deeplabv3+", "found", "biou")[0] == 39.8
    assert row("voc-r101-deeplabv3+", "found", "macc")[0] == 75.3
    assert len(recipes.get("voc-r101-deeplabv3+").published) == 18
    assert row("cityscapes-r101-deeplabv3+", "found", "bf1") == [9.3, 77.7]
    assert row("voc-r50-deeplabv3+", "ASL", "miou") == [78.4, 66.9]
    assert row("voc-r101-pspnet", "found", "miou") == [78.5, 64.9]


def test_only_searches_of_the_catalogues_tasks_have_settings():
    assert recipes.search_settings("voc-seg") == {"rejection.unit": "absolute", "rejection.threshold": 0.6}
    assert recipes.search_settings("voc-r101-pspnet") == recipes.search_settings("digits-seg") == {}
    assert recipes.search_settings(object()) == {}
    with pytest.raises(RequestError, match="Did you mean 'voc-seg'"):
        recipes.get("voc-sge")
