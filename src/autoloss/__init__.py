"""Search loss functions from scratch, for any PyTorch task and any evaluation metric.

The public names; each is imported when it is first used, so that `import autoloss` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoloss import tasks, zoo
    from autoloss.algorithm.initialization import initial_expression
    from autoloss.algorithm.mutation import offspring
    from autoloss.algorithm.rejection.protocol import correlation_score
    from autoloss.errors import OwnedError, RequestError, RunError
    from autoloss.run.replay import Replay, replay
    from autoloss.run.results import Search
    from autoloss.run.retraining import retrain
    from autoloss.run.search import resume, search
    from autoloss.space.activated import ActivatedBranch
    from autoloss.space.branch import Branch, Role, Sample
    from autoloss.space.expression import Alphabet, Expression
    from autoloss.space.loss import Loss, bind
    from autoloss.space.operators import Operator
    from autoloss.space.parsing import FormulaError, parse
    from autoloss.space.simplify import simplify
    from autoloss.tasks.execution import Execution
    from autoloss.tasks.supervised import SupervisedTask
    from autoloss.tasks.task import Diverged, Scored, Task
    from autoloss.tasks.training import Recipe

__version__ = "0.1.0"

_HOMES = {
    "autoloss.algorithm.initialization": ("initial_expression",),
    "autoloss.algorithm.mutation": ("offspring",),
    "autoloss.algorithm.rejection.protocol": ("correlation_score",),
    "autoloss.errors": ("OwnedError", "RequestError", "RunError"),
    "autoloss.run.replay": ("Replay", "replay"),
    "autoloss.run.results": ("Search",),
    "autoloss.run.retraining": ("retrain",),
    "autoloss.run.search": ("resume", "search"),
    "autoloss.space.activated": ("ActivatedBranch",),
    "autoloss.space.branch": ("Branch", "Role", "Sample"),
    "autoloss.space.expression": ("Alphabet", "Expression"),
    "autoloss.space.loss": ("Loss", "bind"),
    "autoloss.space.operators": ("Operator",),
    "autoloss.space.parsing": ("FormulaError", "parse"),
    "autoloss.space.simplify": ("simplify",),
    "autoloss.tasks.execution": ("Execution",),
    "autoloss.tasks.supervised": ("SupervisedTask",),
    "autoloss.tasks.task": ("Diverged", "Scored", "Task"),
    "autoloss.tasks.training": ("Recipe",),
}
_NAMES = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("tasks", "zoo")

__all__ = [
    "ActivatedBranch",
    "Alphabet",
    "Branch",
    "Diverged",
    "Execution",
    "Expression",
    "FormulaError",
    "Loss",
    "Operator",
    "OwnedError",
    "Recipe",
    "Replay",
    "RequestError",
    "Role",
    "RunError",
    "Sample",
    "Scored",
    "Search",
    "SupervisedTask",
    "Task",
    "bind",
    "correlation_score",
    "initial_expression",
    "offspring",
    "parse",
    "replay",
    "resume",
    "retrain",
    "search",
    "simplify",
    "tasks",
    "zoo",
]


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"autoloss.{name}")
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'autoloss' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
