"""What one training leaves behind does not reach the next: settings are restored, or the worker is replaced."""

from __future__ import annotations

import builtins
import decimal
import gc
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, cast

import cloudpickle
import numpy as np
import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import autoloss
from autoloss.training.training import Scored, Training
from autoloss.workers.messages import Finished
from autoloss.workers.pool import InlineWorkers, ProcessWorkers
from autoloss.workers.process_state import read_state, restore_state
from histories import as_text
from tests.run.quick import SETTINGS, QuickTask
from tests.workers.conformance import outcomes_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def lower(limit: int) -> None:
    resource.setrlimit(limit, (64, resource.getrlimit(limit)[1]))


def enter_inference_mode() -> None:
    # It ends with the object.
    mode = torch.inference_mode()
    mode.__enter__()
    sys.modules["kept"] = cast("Any", mode)


def switch_off_cudnn() -> None:
    import torch

    torch.backends.cudnn.enabled = False


def forget_modules() -> None:
    for name in [name for name in sys.modules if name == "json" or name.startswith("autoloss.space")]:
        del sys.modules[name]


def forget_names() -> None:
    builtins.__dict__.pop("print")
    builtins.__dict__["sorted"] = np.array


class Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return 2 * operator(*arguments, **(named or {}))


MODES: dict[str, Callable[[], Any]] = {
    "torch._C._len_torch_dispatch_stack": Doubling,
    "torch._C._len_torch_function_stack": BaseTorchFunctionMode,
    "hooks of saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(torch.neg, torch.neg),
}


RESTORED: dict[str, Callable[[], Any]] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "determinism": lambda: torch.use_deterministic_algorithms(True),
    "torch threads": lambda: torch.set_num_threads(3),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "denormals": lambda: torch.set_flush_denormal(True),
    "cudnn": switch_off_cudnn,
    "numpy errors": lambda: np.seterr(all="raise"),
    "environment": lambda: os.environ.update(OMP_NUM_THREADS="7", NEW="1"),
    "folder": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o777),
    "recursion": lambda: sys.setrecursionlimit(150),
    "collection": gc.disable,
    "tracing": lambda: sys.settrace(lambda *_: None),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 0.2),
    "handlers": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    "mask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD]),
    "open files": lambda: lower(resource.RLIMIT_NOFILE),
    "start method": lambda: multiprocessing.set_start_method("spawn"),
    "streams": lambda: setattr(sys, "stdout", None),
    "warnings": lambda: warnings.simplefilter("ignore"),
    "modules": forget_modules,
    "import path": lambda: sys.path.insert(0, "/nowhere"),
    "temporary folder": lambda: setattr(tempfile, "tempdir", "/nowhere"),
    "built-in names": forget_names,
    "switch interval": lambda: sys.setswitchinterval(100.0),
}
REPLACED: dict[str, Callable[[], Any]] = {
    "inference mode": enter_inference_mode,
    "mode of operators": lambda: Doubling().__enter__(),
    "processes": lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),
    "output": lambda: os.close(1),
}


def look(_: object = None) -> dict[str, Any]:
    with np.errstate(), decimal.localcontext():
        found = {
            name: repr(value) for name, value in read_state().items() if not name.startswith(("standard ", "sys.std"))
        }
    return {**found, "warnings": warnings.filters[:1], "process": os.getpid()}


def work(payload: Callable[[], Any]) -> dict[str, Any]:
    # Loaded with the function, as with every real one.
    assert torch.float32
    payload()
    return look()


@pytest.fixture(scope="module")
def workers():
    with ProcessWorkers(work, 1) as started:
        yield started


def run(workers: ProcessWorkers, payload: Callable[[], Any]) -> dict[str, Any]:
    (outcome,) = outcomes_of(workers, [payload])
    assert isinstance(outcome, Finished)
    return outcome.value


@pytest.mark.parametrize("kind", RESTORED)
def test_what_a_training_sets_is_restored(kind: str, workers: ProcessWorkers):
    before = run(workers, int)
    changed = run(workers, RESTORED[kind])
    assert changed != before or kind in ("streams", "modules")
    assert run(workers, int) == before


def test_a_worker_that_cannot_be_restored_is_replaced():
    if os.geteuid() == 0:
        # Root may raise its limits again.
        kinds = {name: REPLACED[name] for name in ("mode of operators", "output")}
    else:
        kinds = REPLACED
    with ProcessWorkers(work, 1) as workers:
        before = run(workers, int)
        for kind in kinds.values():
            changed = run(workers, kind)
            after = run(workers, int)
            assert after["process"] != changed["process"]
            assert {**after, "process": 0} == {**before, "process": 0}
            assert run(workers, int)["process"] == after["process"]


@pytest.mark.parametrize(
    "kind", ["dtype", "gradients", "numpy errors", "environment", "folder", "warnings", "handlers"]
)
def test_the_process_of_the_driver_keeps_its_settings(kind: str):
    before = look()
    with InlineWorkers(work) as workers:
        (outcome,) = outcomes_of(workers, [RESTORED[kind]])
    assert isinstance(outcome, Finished)
    assert outcome.value != before
    assert look() == before


def test_what_cannot_be_restored_is_named():
    state = read_state()
    assert restore_state({**state, "standard descriptors": []}) == ["standard descriptors"]
    assert restore_state(state) == []


@pytest.mark.parametrize("name", MODES)
def test_a_mode_that_was_not_left_is_named(name: str):
    state = read_state()
    with MODES[name]():
        assert restore_state(state) == [name]
    assert restore_state(state) == []


def test_a_value_that_cannot_be_compared_is_restored():
    state = read_state()
    tempfile.tempdir = np.zeros(2)  # pyright: ignore[reportAttributeAccessIssue]
    assert restore_state(state) == []
    assert tempfile.tempdir == state["tempfile.tempdir"]


def test_modules_that_are_forgotten_or_replaced_come_back_and_new_ones_stay():
    module = importlib.import_module("autoloss.proposing.history")
    state = read_state()
    del sys.modules["autoloss.proposing.history"]
    sys.modules["autoloss.errors"] = sys.modules["autoloss.a_new_one"] = sys
    try:
        assert restore_state(state) == []
        assert sys.modules["autoloss.proposing.history"] is module
        assert sys.modules["autoloss.errors"] is not sys
        assert "autoloss.a_new_one" in sys.modules
    finally:
        del sys.modules["autoloss.a_new_one"]


class Poisonous(QuickTask):
    """Its trainings fail under any settings but those of a fresh process, and leave others behind."""

    name = "poisonous"
    standard = {}

    def train(self, criterion: Any, training: Training, execution: Any = None, observe: Any = None) -> Any:
        clean = torch.get_default_dtype() is torch.float32 and torch.is_grad_enabled() and "POISON" not in os.environ
        if not clean:
            raise RuntimeError("poisoned")
        outcome = super().train(criterion, training, execution, observe)
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        np.seterr(all="raise")
        os.environ["POISON"] = "1"
        os.chdir("/")
        return outcome


def test_a_search_of_a_task_that_leaves_things_behind_is_that_of_one_that_does_not(tmp_path):
    class Clean(QuickTask):
        name = "poisonous"
        standard = {}

    settings = {**SETTINGS, "rejection.engine": "reference"}
    found = [
        list(
            as_text(
                autoloss.search(
                    task,
                    evaluations=5,
                    seed=1,
                    workers=0,
                    directory=tmp_path / str(number),
                    settings=settings,
                    final=False,
                ).history
            )
        )
        for number, task in enumerate([Poisonous(), Clean()])
    ]
    assert found[0] == found[1]


class Failing(QuickTask):
    """Every second training fails."""

    name = "failing"
    standard = {}
    trained = 0

    def train(self, criterion: Any, training: Training, execution: Any = None, observe: Any = None) -> Any:
        self.trained += 1
        if self.trained % 2 == 0:
            raise ZeroDivisionError("the second one")
        return Scored(self.trained, {}, ())


def test_a_search_in_which_many_trainings_fail_says_so_while_it_runs(tmp_path):
    said: list[str] = []
    settings = {**SETTINGS, "rejection.engine": "reference"}
    autoloss.search(
        Failing(), evaluations=12, workers=0, directory=tmp_path, settings=settings, final=False, say=said.append
    )
    text, *_ = [one for one in said if "trainings failed so far" in one]
    assert "ZeroDivisionError: the second one" in text
    assert f"autoloss failures {tmp_path}" in text
