"""Crops: joints land where the pixels do, whatever is drawn, and a mirror image is another valid person."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autoloss.errors import RequestError
from autoloss.tasks.pose.data.crops import (
    Augmentation,
    BoxCrops,
    CropSettings,
    Placement,
    TrainingCrops,
    cut,
    frame_box,
    to_crop,
    to_image,
)
from autoloss.tasks.pose.people import JOINTS, MIRRORED, SIGMAS, People, PeopleImages
from tests.tasks.pose.drawn import draw_people

PLAIN = CropSettings(size=(64, 64), stride=4, sigma=1.0, mean=(0.0,) * 3, deviation=(1.0,) * 3)
BOX = np.array([20.0, 10.0, 60.0, 90.0])
PLACEMENTS = [Placement(), Placement(1.3), Placement(degrees=33.0), Placement(0.8, -20.0, mirrored=True)]


def test_the_skeleton_is_cocos():
    assert (len(JOINTS), JOINTS[0], JOINTS[5], JOINTS[16]) == (17, "nose", "left_shoulder", "right_ankle")
    for joint, other in enumerate(MIRRORED):
        assert JOINTS[other] == JOINTS[joint].translate(str.maketrans("", "")).replace("left", "RIGHT").replace(
            "right", "left"
        ).replace("RIGHT", "right")
    assert (MIRRORED[MIRRORED] == np.arange(17)).all()
    cocoeval = pytest.importorskip("pycocotools.cocoeval")
    np.testing.assert_allclose(SIGMAS, cocoeval.Params("keypoints").kpt_oks_sigmas)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_a_point_of_the_image_lies_in_the_crop_where_its_position_says(placement):
    rows, columns = 100, 80
    for x, y in ((35, 40), (52, 66), (28, 22)):
        # A smooth blob: its centre of mass is found to a fraction of a pixel.
        down, across = np.mgrid[0:rows, 0:columns] + 0.5
        blob = np.exp(-((across - x) ** 2 + (down - y) ** 2) / 2 / 3.0**2)
        matrix = frame_box(BOX, PLAIN, placement)
        found = cut(torch.from_numpy(blob).float().expand(3, -1, -1), matrix, PLAIN)[0].numpy()
        inner = np.mgrid[0:64, 0:64] + 0.5
        centre = [(inner[1] * found).sum() / found.sum(), (inner[0] * found).sum() / found.sum()]
        np.testing.assert_allclose(centre, to_crop(np.array([x, y]), matrix), atol=0.1)
        np.testing.assert_allclose(to_image(to_crop(np.array([x, y]), matrix), matrix), [x, y], atol=1e-9)


def test_a_crop_holds_the_padded_box_at_its_own_aspect_ratio():
    settings = CropSettings(size=(256, 192))
    matrix = frame_box(BOX, settings)
    corners = to_crop(BOX.reshape(2, 2), matrix)
    # 80 pixels of height are the longer side: 80 × 1.25 = 100 become 256.
    np.testing.assert_allclose(corners[1] - corners[0], [40 * 2.56, 80 * 2.56])
    np.testing.assert_allclose(corners.mean(axis=0), [96, 128])
    wide = to_crop(np.array([[0.0, 0.0], [90.0, 10.0]]), frame_box(np.array([0.0, 0, 90, 10]), settings))
    np.testing.assert_allclose((wide[1] - wide[0])[0], 192 / 1.25)


def one_person(seed: int = 0) -> PeopleImages:
    rng = np.random.default_rng(seed)
    joints = rng.uniform([22, 12], [58, 88], (1, 17, 2))
    visibility = np.array([[0, 1, 2] * 5 + [2, 2]], np.int8)
    people = People(BOX[None], joints, visibility, np.array([1500.0]), np.array([False]))
    image = torch.rand(3, 100, 80, generator=torch.Generator().manual_seed(seed))
    return PeopleImages("one", lambda index: image, (people,))


def test_a_mirrored_example_is_the_mirror_image_with_joints_swapped():
    images = one_person()
    plain, context = TrainingCrops(images, PLAIN, Augmentation(flip=0, rotation=0, scale=(1, 1)))[0]
    mirrored, other = TrainingCrops(images, PLAIN, Augmentation(flip=1, rotation=0, scale=(1, 1)))[0]
    torch.testing.assert_close(mirrored, plain.flip(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(other["target"], context["target"].flip(-1)[MIRRORED], atol=1e-5, rtol=0)
    assert other["labelled"].tolist() == context["labelled"][MIRRORED].tolist()
    torch.testing.assert_close(other["joints"][:, 0], 16 - context["joints"][MIRRORED, 0])
    assert context["labelled"].tolist() == [value > 0 for value in [0, 1, 2] * 5 + [2, 2]]


def test_the_similarity_of_poses_does_not_depend_on_the_crop():
    """The area shrinks with the square of the joints' distances."""
    images = one_person()
    torch.manual_seed(0)
    for scale in (0.5, 1.0, 2.0):
        augmentation = Augmentation(flip=0, rotation=30, scale=(scale, scale))
        _, context = TrainingCrops(images, PLAIN, augmentation)[0]
        joints = context["joints"].numpy()
        spread = ((joints[0] - joints[9]) ** 2).sum()
        original = images.people[0].joints[0]
        expected = ((original[0] - original[9]) ** 2).sum() / 1500
        assert spread / float(context["area"]) == pytest.approx(expected, rel=1e-4)


def test_a_joint_outside_the_crop_does_not_count():
    torch.manual_seed(0)
    _, context = TrainingCrops(one_person(), PLAIN, Augmentation(flip=0, rotation=0, scale=(0.3, 0.3)))[0]
    labelled, joints = context["labelled"], context["joints"]
    assert 0 < int(labelled.sum()) < 12
    assert bool(((joints[labelled] >= 0) & (joints[labelled] < 16)).all())
    assert bool((context["target"][~labelled] == 0).all())


def test_what_is_drawn_is_within_the_papers_ranges():
    torch.manual_seed(0)
    drawn = [Augmentation().draw() for _ in range(500)]
    assert 0.4 < np.mean([each.mirrored for each in drawn]) < 0.6
    for values, low, high in (([d.degrees for d in drawn], -40, 40), ([d.scale for d in drawn], 0.5, 1.5)):
        assert low <= min(values) < low + (high - low) / 50
        assert high - (high - low) / 50 < max(values) <= high


def test_persons_to_train_on_have_a_joint_and_a_box_and_are_no_crowd():
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 9], [0, 0, 9, 9], [3, 3, 3, 9]], float)
    visibility = np.ones((4, 17), np.int8)
    visibility[1] = 0
    people = People(boxes, np.zeros((4, 17, 2)), visibility, np.ones(4), np.array([False, False, True, False]))
    images = PeopleImages("some", lambda index: torch.zeros(3, 9, 9), (people,))
    assert images.persons() == [(0, 0)]
    assert images.boxes(0)[1].tolist() == [1.0]
    with pytest.raises(RequestError, match="no person with a labelled joint"):
        PeopleImages("none", images.read, ()).persons()


def test_box_crops_follow_the_order_of_images_and_boxes():
    images = draw_people("valid", 4)
    crops = BoxCrops(images, [2, 0], PLAIN)
    expected = [*images.people[2].boxes, *images.people[0].boxes]
    assert len(crops) == len(expected)
    for index, box in enumerate(expected):
        np.testing.assert_allclose(crops[index][1], frame_box(box, PLAIN))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CropSettings(size=(250, 192)), "crops.size is"),
        (lambda: CropSettings(stride=5), "stride is 5"),
        (lambda: CropSettings(sigma=0), "sigma"),
        (lambda: Augmentation(flip=2), "flip"),
        (lambda: Augmentation(scale=(2.0, 1.0)), "scale"),
    ],
)
def test_values_out_of_range_are_refused(make, message):
    with pytest.raises(RequestError, match=message):
        make()
