"""The paper's experiments, value for value."""

from __future__ import annotations

import pytest

from autoloss import recipes, tasks, zoo
from autoloss.errors import RequestError
from autoloss.settings import Configuration
from autoloss.space.loss_text import split_branches


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
        with pytest.raises(RequestError, match="folder"):
            tasks.get(recipe.task, **recipe.options)
        for row in recipe.published:
            assert (
                row.name is None
                or row.name in zoo.names()
                or set(split_branches(row.name).values()) <= set(zoo.names())
            )


@pytest.mark.parametrize("task", ["coco-det", "voc-det", "coco-ins"])
def test_the_search_for_detectors_is_the_papers(task: str):
    values = recipes.get(task).values()
    for name, value in {
        "backbone": "resnet50",
        "weights": "imagenet",
        # "only using the last three feature levels of FPN, and reducing the channels of the detection head by half"
        "levels": "P4-P6",
        "channels": 256 // 2,
        "head_width": 1024 // 2,
        # "1/4 of the remaining images", "1 epoch"
        "share": 0.25,
        "epochs": 1,
        # "The learning rate is set to 0.04 with a batch size of 32, and a linear learning rate warm-up of 250 iterations"
        "learning_rate": 0.04,
        "batch_size": 32,
        "warmup_steps": 250,
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 1e-4,
        # The proxy does not shrink images.
        "short_side": 800,
        "rejection.unit": "relative",
        "rejection.threshold": 0.6,
    }.items():
        assert values[name] == value, name
    assert not any(name.startswith("full_") for name in values)


def test_a_search_may_leave_the_proposals_their_usual_losses():
    two, four = (recipes.get(name) for name in ("coco-det-two-branches", "coco-det"))
    assert two.values() == four.values()
    assert (two.frozen, four.frozen) == (("rpn",), ())


@pytest.mark.parametrize(
    ("name", "task", "backbone"),
    [
        ("coco-r50-faster-rcnn", "coco-det", "resnet50"),
        ("coco-r50-mask-rcnn", "coco-ins", "resnet50"),
        ("coco-r101-faster-rcnn", "coco-det", "resnet101"),
        ("voc-r50-faster-rcnn", "voc-det", "resnet50"),
    ],
)
def test_detectors_are_retrained_as_the_paper_does(name: str, task: str, backbone: str):
    recipe = recipes.get(name)
    values = recipe.values()
    assert (recipe.task, recipe.schedule, values["full_backbone"]) == (task, "full", backbone)
    # "for 12 epochs", and the usual 1× schedule beside.
    common = {"epochs": 12, "batch_size": 16, "learning_rate": 0.02, "weight_decay": 1e-4, "levels": "P2-P6"}
    common |= {"channels": 256, "head_width": 1024, "milestones": (8 / 12, 11 / 12), "weights": "imagenet"}
    assert {f"full_{key}": value for key, value in common.items()}.items() <= values.items()


def test_poses_are_searched_and_retrained_as_the_paper_does():
    values = recipes.get("coco-pose").values()
    # "4 epochs", Adam, "2.5 × 10⁻⁴ with a cosine annealing schedule and a linear warm-up for 250 iterations", "batch size 256"
    expected = {"epochs": 4, "optimizer": "adam", "learning_rate": 2.5e-4, "schedule": "cosine", "warmup_steps": 250}
    expected |= {
        "batch_size": 256,
        "backbone": "resnet50",
        "weights": "imagenet",
        "height": 256,
        "width": 192,
        "sigma": 2.0,
    }
    expected |= {"detections": None, "rejection.unit": "absolute", "rejection.threshold": 0.6}
    assert {name: values[name] for name in expected} == expected
    values = recipes.get("coco-r50-simple-baseline").values()
    expected = {"epochs": 210, "optimizer": "adam", "learning_rate": 5e-4, "batch_size": 512, "backbone": "resnet50"}
    expected |= {"weights": "imagenet", "milestones": (170 / 210, 200 / 210)}
    assert {name: values[f"full_{name}"] for name in expected} == expected
    rows = recipes.get("coco-r50-simple-baseline").published
    assert [(row.name, row.figures["map"]) for row in rows] == [("baseline/mse", 71.5), ("pose/oks", 72.0)]


def test_the_losses_of_published_detectors_are_those_that_a_task_can_be_given():
    task = tasks.get("digits-det", train=2, valid=1, test=1, size=64)
    for name in ("coco-r50-faster-rcnn", "coco-r101-faster-rcnn", "voc-r50-faster-rcnn"):
        for row in recipes.get(name).published:
            if row.name is not None:
                assert set(zoo.resolve(row.name, task.branches)[1]) == set(task.branches)
    instances = tasks.get("digits-ins", train=2, valid=1, test=1, size=64)
    rows = recipes.get("coco-r50-mask-rcnn").published
    assert split_branches(rows[0].name or "") == instances.standard
    for row in rows:
        assert set(zoo.resolve(row.name or "", instances.branches)[1]) == set(instances.branches)
    usual, with_iou = (
        split_branches(row.name) for row in recipes.get("coco-r50-faster-rcnn").published[:2] if row.name
    )
    assert usual == task.standard
    assert {branch for branch in usual if usual[branch] != with_iou[branch]} == {"rcnn_reg"}


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
    assert [next(iter(row.figures.values())) for row in recipes.PUBLISHED["coco-r50-faster-rcnn"]] == [
        37.3,
        37.9,
        37.6,
        38.5,
        38.0,
        38.1,
    ]
    assert [next(iter(row.figures.values())) for row in recipes.PUBLISHED["coco-r50-mask-rcnn"]] == [
        34.6,
        34.4,
        34.7,
        34.8,
    ]
    assert row("coco-r101-faster-rcnn", "found", "map") == [39.9]
    assert row("voc-r50-faster-rcnn", "CE + L1 + CE + IoU", None) == [80.4]


def test_the_papers_recipe_keeps_the_papers_settings_for_every_task():
    assert recipes.get_search_settings("voc-seg", "paper") == {"rejection.unit": "absolute", "rejection.threshold": 0.6}
    assert recipes.get_search_settings("coco-det", "paper")["rejection.unit"] == "relative"
    for task in ("voc-r101-pspnet", "worst_digit.py:task", "digits-seg", "digits-det", "tabular", object()):
        assert recipes.get_search_settings(task, "paper") == {}
    with pytest.raises(RequestError, match="no recipe of a search named 'papers'"):
        recipes.get_search_settings("voc-seg", "papers")
    with pytest.raises(RequestError, match="Did you mean 'voc-seg'"):
        recipes.get("voc-sge")


def test_every_other_search_has_the_default_settings_within_those_of_its_experiment():
    for task in (*tasks.names(), "worst_digit.py:task", object()):
        found = recipes.get_search_settings(task)
        assert {**found, **recipes.DEFAULT, **recipes.get_search_settings(task, "paper")} == {
            **recipes.DEFAULT,
            **found,
        } or (task in recipes.OWN)
        configuration = Configuration().changed(found)
        assert configuration.search.rungs[0] < 1
        assert configuration.search.scale
    assert set(recipes.OWN) <= set(tasks.names())
