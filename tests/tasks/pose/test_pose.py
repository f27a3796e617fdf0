"""figures-pose and coco-pose: what is drawn, the paper's values, training, and prediction in the image's own coordinates."""

from __future__ import annotations

import inspect as signatures
import math
import pickle
import re
import runpy
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from autoloss import export, zoo
from autoloss.errors import RequestError
from autoloss.space.loss import bind
from autoloss.tasks import get
from autoloss.tasks.pose import task as files
from autoloss.tasks.pose.data.crops import Augmentation, CropSettings, cut, to_crop
from autoloss.tasks.pose.figures import compose_figures, load_photographs
from autoloss.tasks.pose.heatmaps import draw_heatmaps, simple_baseline, small_baseline
from autoloss.tasks.pose.metrics import evaluate_poses
from autoloss.tasks.pose.people import MIRRORED
from autoloss.tasks.pose.task import PoseTask
from autoloss.training.recipe import Recipe
from autoloss.training.training import Scored, Training
from tests.tasks.pose.drawn import draw_people, write_folder

SMALL = {
    "backbone": "resnet18",
    "height": 64,
    "width": 64,
    "batch_size": 4,
    "epochs": 1,
    "warmup_steps": 0,
    "held_out": 2,
}
SMALL |= {"full_backbone": "resnet18", "full_batch_size": 4, "full_epochs": 1, "full_warmup_steps": 0, "device": "cpu"}


def test_figures_follow_from_split_and_seed_and_share_no_part_of_a_photograph():
    settings = 64, (30, 60)
    first, again = (compose_figures("valid", 3, 1, *settings) for _ in range(2))
    assert torch.equal(first.read(0), again.read(0))
    np.testing.assert_array_equal(first.people[2].joints, again.people[2].joints)
    assert not torch.equal(first.read(0), compose_figures("valid", 1, 2, *settings).read(0))
    assert not torch.equal(first.read(0), compose_figures("test", 1, 1, *settings).read(0))
    widths = [sum(image.size[0] for image in load_photographs(split)) for split in ("train", "valid", "test")]
    # Two photographs of 640 pixels, each also mirrored.
    assert sum(widths) == 4 * 640


def test_figures_differ_in_size_are_hidden_in_part_and_turn_their_back():
    people = draw_people("train", 120).people
    area = np.concatenate([each.area for each in people])
    visibility = np.concatenate([each.visibility for each in people])
    assert area.max() > 4 * area.min()
    assert 0.02 < (visibility == 1).mean() < 0.3
    backs = (visibility[:, :3] == 0).all(axis=1) & (visibility[:, 3:5] > 0).any(axis=1)
    assert 0.05 < backs.mean() < 0.4
    for each in people:
        left, top, right, bottom = each.boxes.T
        assert (left >= 0).all()
        assert (left < right).all()
        assert (bottom <= 96).all()
        labelled = each.visibility > 0
        assert (each.joints[labelled] >= 0).all()
        assert (each.joints[labelled] <= 96).all()
        # A visible joint lies in the box of what is seen.
        seen = each.visibility == 2
        for row in range(len(left)):
            assert (each.joints[row][seen[row]] >= [left[row] - 1e-9, top[row] - 1e-9]).all()


def test_values_of_figures_out_of_range_are_refused():
    with pytest.raises(RequestError, match=r"valid is 0; expected .* at least 1"):
        get("figures-pose", valid=0)
    with pytest.raises(RequestError, match="no pose metric named 'mpa'"):
        PoseTask(small_baseline, draw_people("train", 1), draw_people("valid", 1), metric="mpa")


class Oracle(nn.Module):
    """Finds for each crop of known images the joints that lie in it, with heatmaps of the scale asked for."""

    def __init__(self, people, crops, settings: CropSettings, flipped: bool = True) -> None:
        super().__init__()
        self.known = [(crop, joints) for crop, joints in zip(crops, people, strict=True)]
        self.known += [(crop.flip(-1), mirror(joints, settings)) for crop, joints in self.known] if flipped else []
        self.settings = settings

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = []
        for image in images:
            distances = [float((image - crop).abs().mean()) for crop, _ in self.known]
            joints = self.known[int(np.argmin(distances))][1]
            cells = torch.from_numpy(joints / self.settings.stride).float()
            found.append(draw_heatmaps(cells, torch.ones(17, dtype=torch.bool), self.settings.cells, 1.0))
        return torch.stack(found)


def mirror(joints: np.ndarray, settings: CropSettings) -> np.ndarray:
    return np.stack([settings.size[1] - joints[MIRRORED, 0], joints[MIRRORED, 1]], axis=1)


@pytest.mark.parametrize("flip", [False, True])
def test_a_network_that_sees_the_joints_has_ap_near_1(flip):
    """Crops, decoding, the way back to the image and the flip test agree."""
    images = draw_people("valid", 8)
    settings = CropSettings(size=(192, 192), stride=2, sigma=1.0)
    task = PoseTask(small_baseline, images, images, crops=settings, flip_test=flip)
    from autoloss.tasks.pose.data.crops import frame_box

    crops, joints = [], []
    for index, row in images.persons():
        matrix = frame_box(images.people[index].boxes[row], settings)
        crops.append(cut(images.read(index), matrix, settings))
        joints.append(to_crop(images.people[index].joints[row], matrix))
    network = Oracle(joints, crops, settings).eval()
    poses = list(task.predict(network, images, list(range(8)), task.execution, 4))
    figures = evaluate_poses(poses, images.people)
    assert figures["map"] > 0.97
    assert figures["oks"] > 0.98


def test_the_score_is_that_of_the_box_times_the_mean_of_the_maxima_above_the_least():
    class Constant(nn.Module):
        def forward(self, images):
            heatmaps = torch.zeros(len(images), 17, 16, 16)
            heatmaps[:, :8, 3, 3] = 0.8
            heatmaps[:, 8:, 5, 5] = 0.1
            return heatmaps

    images = draw_people("valid", 1)
    detected = np.array([[0.0, 0, 40, 80], [50.0, 10, 90, 90]]), np.array([0.5, 1.0])
    images = replace(images, detected=(detected,))
    settings = CropSettings(size=(64, 64))
    for least, expected in ((0.2, 0.8), (-math.inf, (8 * 0.8 + 9 * 0.1) / 17), (0.9, 0.0)):
        task = PoseTask(small_baseline, images, images, crops=settings, flip_test=False, least_value=least)
        (poses,) = task.predict(Constant(), images, [0], task.execution, 8)
        assert sorted(poses.scores) == pytest.approx([0.5 * expected, expected])


def test_a_prediction_that_is_not_finite_ends_the_training_with_its_reason():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, images):
            value = self.weight if self.training else math.nan * self.weight
            return value.expand(len(images), 17, 16, 16)

    images = draw_people("valid", 2)
    task = PoseTask(Broken, images, images, crops=CropSettings(size=(64, 64)), recipe=Recipe(epochs=1, batch_size=2))
    criterion = bind(zoo.resolve("baseline/mse", task.branches)[1], task.branches)
    assert "not finite" in task.train(criterion, Training(seed=0)).reason


def test_networks_have_the_shapes_of_the_paper():
    network = simple_baseline("resnet50").eval()
    deconvolutions = [layer for layer in network.deconvolutions if isinstance(layer, nn.ConvTranspose2d)]
    assert [(layer.out_channels, layer.kernel_size, layer.stride) for layer in deconvolutions] == [
        (256, (4, 4), (2, 2))
    ] * 3
    assert deconvolutions[0].in_channels == 2048
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 256, 192)).shape == (1, 17, 64, 48)
        assert small_baseline()(torch.zeros(2, 3, 64, 64)).shape == (2, 17, 16, 16)


def test_weights_of_another_network_are_refused(tmp_path):
    torch.save({"weight": torch.zeros(1)}, tmp_path / "other.pt")
    with pytest.raises(RequestError, match="not a state dict of a resnet18"):
        simple_baseline("resnet18", str(tmp_path / "other.pt"))
    torch.manual_seed(1)
    source = simple_baseline("resnet18")
    names = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")
    state = {
        f"{names[int(name.split('.')[0])]}.{name.split('.', 1)[1]}": value
        for name, value in source.backbone.state_dict().items()
    }
    state |= {"fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    torch.save(state, tmp_path / "weights.pt")
    read = simple_baseline("resnet18", str(tmp_path / "weights.pt")).backbone.state_dict()
    assert all(torch.equal(read[name], value) for name, value in source.backbone.state_dict().items())


def test_the_defaults_are_the_papers():
    proxy, full = files.PROXY, files.FULL
    assert (proxy.backbone, full.backbone) == ("resnet50", "resnet50")
    recipe = proxy.recipe
    assert (recipe.epochs, recipe.optimizer, recipe.learning_rate) == (4, "adam", 2.5e-4)
    assert (recipe.schedule, recipe.warmup_steps, recipe.batch_size) == ("cosine", 250, 256)
    recipe = full.recipe
    assert (recipe.epochs, recipe.optimizer, recipe.learning_rate, recipe.batch_size) == (210, "adam", 5e-4, 512)
    steps = 210 * 100
    assert recipe.rate(170 * 100, steps) == pytest.approx(5e-4)
    assert recipe.rate(170 * 100 + 1, steps) == pytest.approx(5e-5)
    assert recipe.rate(200 * 100 + 1, steps) == pytest.approx(5e-6)
    options = {name: each.default for name, each in signatures.signature(files.coco_pose).parameters.items()}
    expected = {"height": 256, "width": 192, "sigma": 2.0, "rotation": 40.0, "scale": (0.5, 1.5), "flip_test": True}
    assert expected.items() <= options.items()
    assert (CropSettings().cells, Augmentation().rotation) == ((64, 48), 40.0)
    assert files.PAPER_HELD_OUT[0] == 5000


def test_the_metric_is_measured_on_resamples_of_the_images():
    many, one = draw_people("valid", 6), draw_people("valid", 1)
    recipe = Recipe(epochs=1, batch_size=2, learning_rate=0.003)
    task = PoseTask(
        small_baseline, many, many, crops=CropSettings(size=(64, 64)), recipe=recipe, test=one, metric="oks"
    )
    criterion = bind(zoo.resolve("baseline/mse", task.branches)[1], task.branches)
    plain, found, alone = (
        task.train(criterion, Training(seed=0, split=split, resampled=resampled))
        for split, resampled in (("valid", False), ("valid", True), ("test", True))
    )
    assert (plain.score, plain.replicates) == (found.score, None)
    assert (found.replicates.examples, len(found.replicates.scores)) == (6, 64)
    assert len(set(found.replicates.scores)) > 10
    assert min(found.replicates.scores) < found.score < max(found.replicates.scores)
    # Each image counts as often as it was drawn.
    assert set(alone.replicates.scores) == {alone.score}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("coco"))


def test_coco_pose_trains_on_files_and_is_evaluated_in_detected_boxes_on_test_alone(folder):
    detections = str(folder / "detections.json")
    task = get("coco-pose", data=str(folder), detections=detections, **SMALL)
    assert task.splits == ("valid", "test")
    valid, test = task._data["valid"], task._data["test"]
    assert (len(valid), valid.detected) == (2, None)
    assert test.detected is not None
    criterion = bind(zoo.resolve("pose/oks", task.branches)[1], task.branches)
    for schedule, split in (("proxy", "valid"), ("full", "test")):
        outcome = task.train(criterion, Training(seed=0, schedule=schedule, split=split))
        assert isinstance(outcome, Scored)
        assert set(outcome.also) <= set(task.also)
    whole = task.steps(Training(seed=0, schedule="full"))
    assert task.steps(Training(seed=0)) < whole
    # Workers get the task, and loading processes its examples.
    other = cloudpickle.loads(cloudpickle.dumps(task))
    torch.testing.assert_close(other.samples(1, 0)["main"][0].prediction, task.samples(1, 0)["main"][0].prediction)
    assert pickle.dumps(task._examples["proxy"])
    without = get("coco-pose", data=str(folder), **SMALL)
    assert without._data["test"].detected is None


def test_an_exported_loss_is_called_as_the_page_says(tmp_path):
    task = get("figures-pose", train=8, valid=4, test=4)
    (sample,) = task.samples(1, seed=0)["main"]
    context = sample.context | {"labelled": sample.context["labelled"].clone()}
    context["labelled"][0, 3] = False
    page = (Path(__file__).parents[3] / "docs" / "pose.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"`(\(criterion\(y, p\).*?)`", page)
    (tmp_path / "line.py").write_text(f"loss = {line}", encoding="utf-8")
    for name in ("pose/oks", "baseline/mse"):
        file = export(name, tmp_path / f"{name.partition('/')[2]}.py", branches=task.branches)
        (exported,) = (value for key, value in runpy.run_path(str(file)).items() if key.endswith("Loss"))
        leaves = {"y": context["target"], "p": sample.prediction, "labelled": context["labelled"]}
        called = runpy.run_path(str(tmp_path / "line.py"), {"criterion": exported(), **leaves})
        expected = bind(zoo.resolve(name, task.branches)[1], task.branches)["main"](sample.prediction, context)
        torch.testing.assert_close(called["loss"], expected)


def test_retraining_sees_what_the_search_held_out_and_is_not_measured_on_it(folder):
    task = get("coco-pose", data=str(folder), **SMALL)
    criterion = bind(zoo.resolve("baseline/mse", task.branches)[1], task.branches)
    with pytest.raises(RequestError, match="no split of the schedule full named 'valid'"):
        task.train(criterion, Training(seed=0, schedule="full"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"height": 100}, "height is"),
        ({"share": 0.0}, "share is 0.0"),
        ({"scale": "0.5"}, "scale is .* 2 values"),
        ({"rotation": -1.0}, "rotation"),
        ({"backbon": "x"}, "Did you mean 'backbone'"),
        ({"held_out": 1000}, "1000 of the .* were to be held out"),
    ],
)
def test_options_out_of_range_are_refused(options, message, folder):
    with pytest.raises(RequestError, match=message):
        get("coco-pose", data=str(folder), **options)


def test_the_data_must_be_given():
    with pytest.raises(RequestError, match=r"The option data is missing.*\n.*person_keypoints_train2017.json"):
        get("coco-pose")
