"""What a job may change for those after it: settings of its process, of torch and of numpy. They are restored after each job."""

from __future__ import annotations

import builtins
import gc
import locale
import os
import resource
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

State = Mapping[str, Any]
"""Setting → value; of the modules that are loaded."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a process.

    Args:
        read: Returns a value that can be compared.
        restore: Takes such a value; None where nothing can bring it back.
    """

    read: Callable[[], Any]
    restore: Callable[[Any], object] | None


def read_state() -> State:
    """Read all settings."""
    return {name: _read(setting) for name, setting in _all_settings().items()}


def restore_state(state: State) -> list[str]:
    """Restore what differs.

    Returns:
        The settings that could not be restored.
    """
    left = []
    for name, setting in _all_settings().items():
        if name not in state or _is(setting, state[name]):
            continue
        if setting.restore is not None:
            with suppress(Exception):
                setting.restore(state[name])
        if not _is(setting, state[name]):
            left.append(name)
    return left


@contextmanager
def restored_state() -> Iterator[None]:
    """Restore all settings at the end; what cannot be restored stays."""
    state = read_state()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        restore_state(state)


def _is(setting: Setting, value: Any) -> bool:
    try:
        return bool(_read(setting) == value)
    except Exception:
        # Of an array, or of an object of the job's own.
        return False


def _read(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception as error:
        # A folder that was deleted, a torch without this setting.
        return type(error).__name__


def _all_settings() -> Mapping[str, Setting]:
    settings = dict(_PROCESS)
    for name, make in (("multiprocessing", _processes), ("numpy", _numpy), ("torch", _torch)):
        module = sys.modules.get(name)
        if module is not None:
            settings.update({f"{name}: {setting}": found for setting, found in make(module).items()})
    return settings


_OF_LIBRARIES = ("KMP_", "TORCHINDUCTOR_")
"""Variables that libraries set for themselves when they are imported, which happens once in a process."""


def _read_environment() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_LIBRARIES)}


def _restore_environment(before: Mapping[str, str]) -> None:
    for name in _read_environment().keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _read_mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _restore_handlers(before: Mapping[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        # None is a handler that was not set from Python.
        if handler is not None and signal.getsignal(number) != handler:
            signal.signal(number, handler)


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


def _stop_timers(before: tuple[bool, ...]) -> None:
    for timer, ran in zip(_TIMERS, before, strict=True):
        if not ran:
            signal.setitimer(timer, 0)


_LIMITS = {name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}


def _restore_limits(before: Mapping[str, tuple[int, int]]) -> None:
    for name, limit in before.items():
        if resource.getrlimit(_LIMITS[name]) != limit:
            resource.setrlimit(_LIMITS[name], limit)


def _restore_streams(before: tuple[Any, Any, Any]) -> None:
    sys.stdin, sys.stdout, sys.stderr = before


def _restore_collection(before: tuple[bool, tuple[int, int, int]]) -> None:
    gc.enable() if before[0] else gc.disable()
    gc.set_threshold(*before[1])


def _read_descriptors() -> list[tuple[int, int]]:
    found = [os.fstat(number) for number in range(3)]
    return [(one.st_dev, one.st_ino) for one in found]


_BUILTINS = tuple(vars(builtins))


def _read_builtins() -> Mapping[str, Any]:
    found = vars(builtins)
    return {name: found[name] for name in _BUILTINS if name in found}


class _Modules:
    """Modules by name; equal to what holds the same ones, whatever else was imported since."""

    def __init__(self) -> None:
        self.found = dict(sys.modules)

    def __eq__(self, before: object) -> bool:
        return isinstance(before, _Modules) and before.found.items() <= self.found.items()

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return "modules"


def _restore_import_path(before: Sequence[str]) -> None:
    sys.path[:] = before


_PROCESS: Mapping[str, Setting] = {
    "built-in names": Setting(_read_builtins, lambda before: builtins.__dict__.update(before)),
    "modules": Setting(_Modules, lambda before: sys.modules.update(before.found)),
    "import path": Setting(lambda: list(sys.path), _restore_import_path),
    "temporary folder": Setting(lambda: tempfile.tempdir, lambda folder: setattr(tempfile, "tempdir", folder)),
    "switch interval": Setting(sys.getswitchinterval, sys.setswitchinterval),
    "environment": Setting(_read_environment, _restore_environment),
    "current folder": Setting(os.getcwd, os.chdir),
    "umask": Setting(_read_mask, os.umask),
    "recursion limit": Setting(sys.getrecursionlimit, sys.setrecursionlimit),
    "garbage collection": Setting(lambda: (gc.isenabled(), gc.get_threshold()), _restore_collection),
    "tracing": Setting(sys.gettrace, sys.settrace),
    "profiling": Setting(sys.getprofile, sys.setprofile),
    "locale": Setting(lambda: locale.setlocale(locale.LC_ALL), lambda name: locale.setlocale(locale.LC_ALL, name)),
    "signal handlers": Setting(
        lambda: {number: signal.getsignal(number) for number in signal.valid_signals()}, _restore_handlers
    ),
    "signal mask": Setting(
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    ),
    "timers": Setting(lambda: tuple(signal.getitimer(timer)[0] > 0 for timer in _TIMERS), _stop_timers),
    "resource limits": Setting(
        lambda: {name: resource.getrlimit(number) for name, number in _LIMITS.items()}, _restore_limits
    ),
    "priority": Setting(
        lambda: os.getpriority(os.PRIO_PROCESS, 0), lambda value: os.setpriority(os.PRIO_PROCESS, 0, value)
    ),
    "processors": Setting(lambda: os.sched_getaffinity(0), lambda found: os.sched_setaffinity(0, found)),
    "standard streams": Setting(lambda: (sys.stdin, sys.stdout, sys.stderr), _restore_streams),
    "standard descriptors": Setting(_read_descriptors, None),
}


def _processes(multiprocessing: ModuleType) -> Mapping[str, Setting]:
    return {
        "start method": Setting(
            lambda: multiprocessing.get_start_method(allow_none=True),
            lambda method: multiprocessing.set_start_method(method, force=True),
        )
    }


def _numpy(numpy: ModuleType) -> Mapping[str, Setting]:
    return {"errors": Setting(numpy.geterr, lambda before: numpy.seterr(**before))}


_LEAST = [sys.float_info.min]


def _torch(torch: ModuleType) -> Mapping[str, Setting]:
    def read_device() -> Any:
        return torch.get_default_device()

    def restore_device(device: Any) -> None:
        # The CPU is what None stands for, and costs nothing then.
        torch.set_default_device(None if device.type == "cpu" else device)

    def restore_anomalies(before: tuple[bool, bool]) -> None:
        torch.autograd.set_detect_anomaly(*before)

    settings = {
        "default dtype": Setting(lambda: torch.get_default_dtype(), lambda dtype: torch.set_default_dtype(dtype)),
        "default device": Setting(read_device, restore_device),
        "gradients": Setting(lambda: torch.is_grad_enabled(), lambda on: torch.set_grad_enabled(on)),
        "inference mode": Setting(lambda: torch.is_inference_mode_enabled(), None),
        # Entered and not left, they see all that the next job computes.
        "modes of functions": Setting(lambda: torch._C._len_torch_function_stack(), None),
        "modes of operators": Setting(lambda: torch._C._len_torch_dispatch_stack(), None),
        "hooks of saved tensors": Setting(lambda: torch._C._autograd._top_saved_tensors_default_hooks(False), None),
        "determinism": Setting(
            lambda: torch.get_deterministic_debug_mode(), lambda mode: torch.set_deterministic_debug_mode(mode)
        ),
        "threads": Setting(lambda: torch.get_num_threads(), lambda count: torch.set_num_threads(count)),
        "threads between operators": Setting(lambda: torch.get_num_interop_threads(), None),
        "matrix precision": Setting(
            lambda: torch.get_float32_matmul_precision(), lambda name: torch.set_float32_matmul_precision(name)
        ),
        "anomalies": Setting(
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()), restore_anomalies
        ),
        # Compared as text: where smaller numbers than this one are taken for zero, they also compare equal to zero.
        "denormal numbers": Setting(lambda: repr(_LEAST[0] / 4) != "0.0", lambda on: torch.set_flush_denormal(not on)),
    }
    for device in ("cpu", "cuda"):
        settings[f"autocast on {device}"] = Setting(
            lambda device=device: (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
            lambda before, device=device: (
                torch.set_autocast_enabled(device, before[0]),
                torch.set_autocast_dtype(device, before[1]),
            ),
        )
    for name in ("enabled", "benchmark", "deterministic"):
        settings[f"cudnn.{name}"] = Setting(
            lambda name=name: getattr(torch.backends.cudnn, name),
            lambda value, name=name: setattr(torch.backends.cudnn, name, value),
        )
    return settings
