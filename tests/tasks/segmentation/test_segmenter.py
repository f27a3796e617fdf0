"""DeepLabv3+ and PSPNet: any image size, output strides, the auxiliary head, groups, and weights of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import resnet18

from autoloss.errors import RequestError
from autoloss.tasks.segmentation.networks import DEEPLAB_RATES, Segmenter, build_backbone, deeplab, pspnet
from autoloss.tasks.segmentation.task import group_parameters
from autoloss.training.loop import fit, seed_generators
from autoloss.training.recipe import Recipe

NETWORKS = pytest.mark.parametrize("build", [deeplab, pspnet], ids=lambda build: build.__name__)


@pytest.fixture(autouse=True)
def seed():
    with seed_generators(0):
        yield


@NETWORKS
@pytest.mark.parametrize("output_stride", [8, 16])
@pytest.mark.parametrize("size", [(32, 48), (25, 33)])
def test_the_prediction_has_the_images_size(build: Callable[..., Segmenter], output_stride: int, size: tuple[int, int]):
    network = build(5, "resnet18", output_stride=output_stride).eval()
    assert network(torch.zeros(1, 3, *size)).shape == (1, 5, *size)
    features = network.encoder(torch.zeros(1, 3, 64, 64))
    assert features[-1].shape[-1] == 64 // output_stride


@NETWORKS
def test_filling_up_changes_nothing_where_nothing_is_filled_up(build: Callable[..., Segmenter]):
    network = build(3, "resnet18", output_stride=8).eval()
    image = torch.randn(1, 3, 32, 32)
    wide = torch.zeros(1, 3, 32, 37)
    wide[..., :32] = image
    wider = torch.zeros(1, 3, 32, 40)
    wider[..., :32] = image
    assert network(wide).equal(network(wider)[..., :37])


@NETWORKS
def test_the_auxiliary_head_predicts_in_training_alone(build: Callable[..., Segmenter]):
    network = build(5, "resnet18", auxiliary=True)
    prediction, auxiliary = network.train()(torch.randn(2, 3, 30, 32))
    assert prediction.shape == auxiliary.shape == (2, 5, 30, 32)
    auxiliary.sum().backward()
    reached = {name.split(".")[0] for name, value in network.named_parameters() if value.grad is not None}
    assert reached == {"auxiliary", "encoder"}
    assert all(value.grad is None for value in network.encoder.layer4.parameters())
    assert network.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 5, 32, 32)


def test_the_pyramid_is_as_wide_as_the_output_stride_asks_for():
    for stride, rates in DEEPLAB_RATES.items():
        pyramid = deeplab(2, "resnet18", output_stride=stride).decoder.aspp[0]
        dilations = [m.dilation[0] for m in pyramid.modules() if isinstance(m, nn.Conv2d) and m.dilation[0] > 1]
        assert tuple(dilations) == rates


@pytest.mark.parametrize("build", [deeplab, pspnet], ids=lambda build: build.__name__)
def test_the_papers_backbones_have_all_stages(build: Callable[..., Segmenter]):
    with torch.device("meta"):
        network = build(21, "resnet101", output_stride=8)
    assert network.encoder.out_channels[-1] == 2048
    assert sum(len(stage) for stage in (network.encoder.layer1, network.encoder.layer3, network.encoder.layer4)) == 29


def test_groups_hold_every_parameter_once_and_the_heads_learn_faster():
    network = deeplab(3, "resnet18", auxiliary=True)
    backbone_group, heads = group_parameters(network, 10.0)
    listed = [id(value) for group in (backbone_group, heads) for value in group["params"]]
    assert sorted(listed) == sorted(id(value) for value in network.parameters())
    assert (backbone_group.get("factor", 1.0), heads["factor"]) == (1.0, 10.0)
    assert {id(value) for value in network.auxiliary.parameters()} < {id(value) for value in heads["params"]}


def test_a_step_moves_the_heads_ten_times_as_far():
    def moved(factor: float) -> tuple[float, float]:
        with seed_generators(1):
            network = deeplab(2, "resnet18")
            first, last = network.encoder.conv1.weight, network.head[0].weight
            before = first.detach().clone(), last.detach().clone()
            recipe = Recipe(schedule="constant", momentum=0.0, weight_decay=0.0, learning_rate=1e-4)
            images = torch.randn(2, 3, 32, 32)
            fit(
                network,
                [images],
                lambda batch: network(batch)[:, 0].mean(),
                recipe,
                1,
                groups=group_parameters(network, factor),
            )
            return (first - before[0]).abs().max().item(), (last - before[1]).abs().max().item()

    (body, head), (body_too, faster) = moved(1.0), moved(10.0)
    assert body == body_too > 0
    assert faster == pytest.approx(10 * head, rel=1e-3)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_of_torchvisions_network_are_loaded(tmp_path: Path, suffix: str):
    given = resnet18().state_dict()
    file = tmp_path / f"resnet18{suffix}"
    if suffix == ".pth":
        # As files older than torch 0.4.1 are.
        torch.save({key: value for key, value in given.items() if "num_batches" not in key}, file)
    else:
        from safetensors.torch import save_file

        save_file(given, file)
    loaded = deeplab(4, "resnet18", weights=str(file)).encoder.state_dict()
    assert all(value.equal(given[key]) for key, value in loaded.items())


def test_weights_of_another_network_are_named(tmp_path: Path):
    file = tmp_path / "other.pth"
    weights = resnet18().state_dict()
    weights["layer9.weight"] = weights.pop("layer4.1.conv2.weight")
    weights["conv1.weight"] = torch.zeros(64, 1, 7, 7)
    torch.save(weights, file)
    with pytest.raises(
        RequestError, match=r"not a state dict of a resnet18 .*layer4.1.conv2.weight.*layer9.weight.*conv1.w"
    ):
        build_backbone("resnet18", 16, str(file))


def test_a_pickled_network_is_not_loaded(tmp_path: Path):
    file = tmp_path / "network.pth"
    torch.save(nn.Linear(1, 1), file)
    with pytest.raises(RequestError, match=r"cannot be read.*contains code, such as a pickled network"):
        build_backbone("resnet18", 16, str(file))
    torch.save([1], file)
    with pytest.raises(RequestError, match="holds a list"):
        build_backbone("resnet18", 16, str(file))


def test_imagenet_weights_that_cannot_be_had_ask_for_a_path(monkeypatch: pytest.MonkeyPatch):
    def offline(*arguments: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("autoloss.tasks.segmentation.networks.get_encoder", offline)
    with pytest.raises(RequestError, match=r"ImageNet weights of resnet50.*no route to host.*weights=none"):
        build_backbone("resnet50", 16, "imagenet")


def test_weights_that_do_not_exist_are_refused():
    with pytest.raises(RequestError, match="no file 'imagnet'"):
        deeplab(2, "resnet18", weights="imagnet")
