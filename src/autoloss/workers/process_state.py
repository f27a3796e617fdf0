"""Settings of a process, of torch and of numpy that a job may change; they are restored after each job.

docs/architecture.md says why no process is forked for each training instead.
"""

from __future__ import annotations

import builtins
import locale
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

State = Mapping[str, Any]
"""Setting → value, for the modules that are loaded."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a module, which may not be loaded.

    Args:
        read: Module → a value that can be compared.
        restore: Called with the module and such a value; None if the setting cannot be restored.
    """

    module: str
    read: Callable[[Any], Any]
    restore: Callable[[Any, Any], object] | None = None


def read_state() -> State:
    """Read all settings."""
    return {name: _read(setting) for name, setting in SETTINGS.items() if setting.module in sys.modules}


def restore_state(state: State) -> list[str]:
    """Restore the settings that differ.

    Returns:
        The settings that could not be restored.
    """
    left = []
    for name, before in state.items():
        setting = SETTINGS[name]
        if _is(setting, before):
            continue
        if setting.restore is not None:
            with suppress(Exception):
                setting.restore(sys.modules[setting.module], before)
        if not _is(setting, before):
            left.append(name)
    return left


@contextmanager
def preserve_state() -> Iterator[None]:
    """Restore all settings after the body; those that cannot be restored stay changed."""
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
        # Arrays, and objects of the job's own types, may not compare.
        return False


def _read(setting: Setting) -> Any:
    try:
        return setting.read(sys.modules[setting.module])
    except Exception as error:
        # For example a deleted working directory, or a torch without this setting.
        return type(error).__name__


def _pair(module: str, getter: str, setter: str | None, *keys: Any) -> tuple[str, Setting]:
    """Build a setting from its getter and its setter, both called with `keys` first."""
    read, write = attrgetter(getter), attrgetter(setter or getter)
    restore = None if setter is None else lambda module, value: write(module)(*keys, value)
    return " ".join((f"{module}.{getter}", *map(str, keys))), Setting(module, lambda found: read(found)(*keys), restore)


def _attribute(module: str, name: str) -> tuple[str, Setting]:
    return f"{module}.{name}", Setting(module, attrgetter(name), lambda found, value: setattr(found, name, value))


_OF_LIBRARIES = ("KMP_", "TORCHINDUCTOR_")
"""Variables that libraries set for themselves when they are imported, which happens once in a process."""
_BUILTINS = tuple(vars(builtins))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_LEAST = [sys.float_info.min]


class _Modules(dict[str, Any]):
    """Modules by name; equal to an earlier reading if none of these changed, whatever was imported since."""

    def __eq__(self, before: object) -> bool:
        return isinstance(before, _Modules) and (dict.__eq__(self, before) or before.items() <= self.items())

    def __repr__(self) -> str:
        return "modules"


def _read_environment(_: Any) -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_LIBRARIES)}


def _restore_environment(_: Any, before: Mapping[str, str]) -> None:
    for name in _read_environment(None).keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _read_mask(_: Any) -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _stop_timers(_: Any, before: tuple[bool, ...]) -> None:
    for timer, ran in zip(_TIMERS, before, strict=True):
        if not ran:
            signal.setitimer(timer, 0)


def _restore_device(torch: Any, device: Any) -> None:
    # None also means the CPU, and has no overhead.
    torch.set_default_device(None if device.type == "cpu" else device)


SETTINGS: dict[str, Setting] = {
    "built-in names": Setting(
        "builtins",
        lambda names: {name: vars(names)[name] for name in _BUILTINS if name in vars(names)},
        lambda names, before: vars(names).update(before),
    ),
    "modules": Setting("sys", lambda sys: _Modules(sys.modules), lambda sys, before: sys.modules.update(before)),
    "import path": Setting(
        "sys", lambda sys: list(sys.path), lambda sys, before: sys.path.__setitem__(slice(None), before)
    ),
    "environment": Setting("os", _read_environment, _restore_environment),
    "umask": Setting("os", _read_mask, lambda os, mask: os.umask(mask)),
    "standard descriptors": Setting("os", lambda os: [(one.st_dev, one.st_ino) for one in map(os.fstat, range(3))]),
    "garbage collection": Setting("gc", lambda gc: gc.isenabled(), lambda gc, on: gc.enable() if on else gc.disable()),
    "thresholds": Setting("gc", lambda gc: gc.get_threshold(), lambda gc, before: gc.set_threshold(*before)),
    "signal mask": Setting(
        "signal",
        lambda signal: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda signal, mask: signal.pthread_sigmask(signal.SIG_SETMASK, mask),
    ),
    "timers": Setting("signal", lambda signal: tuple(signal.getitimer(one)[0] > 0 for one in _TIMERS), _stop_timers),
    "start method": Setting(
        "multiprocessing",
        lambda multiprocessing: multiprocessing.get_start_method(allow_none=True),
        lambda multiprocessing, method: multiprocessing.set_start_method(method, force=True),
    ),
    "numpy errors": Setting("numpy", lambda numpy: numpy.geterr(), lambda numpy, before: numpy.seterr(**before)),
    "default device": Setting("torch", lambda torch: torch.get_default_device(), _restore_device),
    "anomalies": Setting(
        "torch",
        lambda torch: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda torch, before: torch.autograd.set_detect_anomaly(*before),
    ),
    # Compared as text: denormal numbers that are flushed to zero also compare equal to zero.
    "denormal numbers": Setting(
        "torch", lambda torch: repr(_LEAST[0] / 4) != "0.0", lambda torch, on: torch.set_flush_denormal(not on)
    ),
    # A mode that was entered and not left would see everything that the next job computes.
    "hooks of saved tensors": Setting(
        "torch", lambda torch: torch._C._autograd._top_saved_tensors_default_hooks(False)
    ),
}
SETTINGS.update(
    [
        *(_attribute("sys", name) for name in ("stdin", "stdout", "stderr")),
        _attribute("tempfile", "tempdir"),
        *(_attribute("torch.backends.cudnn", name) for name in ("enabled", "benchmark", "deterministic")),
        _pair("os", "getcwd", "chdir"),
        _pair("os", "sched_getaffinity", "sched_setaffinity", 0),
        _pair("locale", "setlocale", "setlocale", locale.LC_ALL),
        _pair("sys", "getswitchinterval", "setswitchinterval"),
        _pair("sys", "getrecursionlimit", "setrecursionlimit"),
        _pair("sys", "gettrace", "settrace"),
        _pair("sys", "getprofile", "setprofile"),
        *(_pair("signal", "getsignal", "signal", number) for number in signal.valid_signals()),
        *(_pair("resource", "getrlimit", "setrlimit", number) for number in _LIMITS),
        _pair("torch", "get_default_dtype", "set_default_dtype"),
        _pair("torch", "is_grad_enabled", "set_grad_enabled"),
        _pair("torch", "is_inference_mode_enabled", None),
        _pair("torch", "_C._len_torch_function_stack", None),
        _pair("torch", "_C._len_torch_dispatch_stack", None),
        _pair("torch", "get_deterministic_debug_mode", "set_deterministic_debug_mode"),
        _pair("torch", "get_num_threads", "set_num_threads"),
        _pair("torch", "get_num_interop_threads", None),
        _pair("torch", "get_float32_matmul_precision", "set_float32_matmul_precision"),
        *(_pair("torch", "is_autocast_enabled", "set_autocast_enabled", device) for device in ("cpu", "cuda")),
        *(_pair("torch", "get_autocast_dtype", "set_autocast_dtype", device) for device in ("cpu", "cuda")),
    ]
)
