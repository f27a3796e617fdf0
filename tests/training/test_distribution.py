"""A training by two processes is the training of one on the same batches; and it goes on when it was killed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autoloss.errors import RequestError
from autoloss.training import distribution
from tests.training.sharing import STEPS, report, train

PROCESSES = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict[str, object]]:
    directory = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # What torchrun sets.
    common = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "-m", "tests.training.sharing", str(directory)]
    processes = [
        subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(PROCESSES)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, errors
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


def test_two_processes_train_what_one_does(found):
    alone = report(train())
    for one in found:
        assert one["whole"]["score"] == pytest.approx(alone["score"], abs=1e-6)
        assert [loss for _, loss in one["whole"]["curve"]] == pytest.approx(
            [loss for _, loss in alone["curve"]], abs=1e-6
        )
    assert len(alone["curve"]) == STEPS


def test_all_processes_know_the_same_outcome(found):
    assert found[0]["whole"] == found[1]["whole"]


def test_a_training_of_two_processes_goes_on_to_the_same_bits(found):
    for one in found:
        assert one["resumed"] == one["whole"]
        assert one["kept"] == ["checkpoint-000000006", "checkpoint-000000003"]


def test_a_batch_that_cannot_be_shared_evenly_is_refused(found):
    assert "A batch of 3 cannot be shared evenly by 2 processes" in found[0]["refused"]


def test_no_thread_of_the_process_group_outlives_it(found):
    # One that does may abort the process at its end, where all that was trained is long written.
    assert not [name for one in found for name in one["threads"] if "gloo" in name]


def test_one_gpu_for_all_processes_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(RequestError, match="device is cuda:0; started by torchrun"),
        distribution.process_group("cuda:0"),
    ):
        pass


def test_one_process_shares_with_nobody():
    order = [torch.arange(3)]
    assert distribution.take_shares(order)[0].tolist() == [0, 1, 2]
    assert (distribution.size(), distribution.rank(), distribution.mean(2.0, torch.device("cpu"))) == (1, 0, 2.0)
    assert distribution.gather("x") == ["x"]
