"""Local workers take the GPUs of their machine in turn; the GPUs are a stand-in."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch

from autoloss.evaluation.dispatch import Machines, gpus_of_workers
from autoloss.training.loop import Execution
from autoloss.workers.gpus import VARIABLE, deal_gpus, describe_gpus, list_gpus
from autoloss.workers.pool import ProcessWorkers


@pytest.fixture
def four_gpus(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize(
    ("device", "workers", "dealt"),
    [
        ("cuda", 2, ("0", "1")),
        ("cuda", 8, ("0", "1", "2", "3", "0", "1", "2", "3")),
        ("cuda:1", 8, ()),
        ("cpu", 8, ()),
        (None, 8, ()),
    ],
)
def test_workers_take_gpus_in_turn(device, workers, dealt, four_gpus):
    assert deal_gpus(device, workers) == dealt


def test_gpus_that_a_variable_names_are_the_ones_dealt_out(four_gpus, monkeypatch):
    monkeypatch.setenv(VARIABLE, "GPU-3f, 6")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert deal_gpus("cuda", 3) == ("GPU-3f", "6", "GPU-3f")
    # A name that is not there hides all that follow it.
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert list_gpus() == ("GPU-3f",)
    assert deal_gpus("cuda", 3) == ()


def test_a_ray_cluster_deals_out_its_own(four_gpus):
    task = SimpleNamespace(execution=Execution(device="cuda"))
    assert gpus_of_workers(task, Machines(workers=2)) == ("0", "1")
    assert gpus_of_workers(task, Machines(workers=2, ray="auto")) == ()
    assert gpus_of_workers(SimpleNamespace(execution=None), Machines(workers=2)) == ()


def test_each_worker_sees_the_gpu_of_its_slot_also_after_it_was_replaced():
    def tell(payload):
        if payload == "end":
            os._exit(1)
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    with ProcessWorkers(tell, 2, gpus=["0", "GPU-3f"]) as workers:
        for payloads in (("tell", "tell"), ("end", "end"), ("tell", "tell")):
            for job, payload in enumerate(payloads):
                workers.submit(job, payload, deadline_seconds=60)
            ended = []
            while len(ended) < 2:
                ended += workers.wait()
        assert {outcome.value for outcome in ended} == {"0", "GPU-3f"}


def test_how_they_are_shared_is_said():
    assert describe_gpus([]) == []
    assert describe_gpus(["2", "3"]) == ["2 workers train on 2 GPUs, one on each: 2, 3."]
    assert describe_gpus(["0", "1", "0"]) == ["3 workers train on 2 GPUs, at most 2 on each: 0, 1."]
