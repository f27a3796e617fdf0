"""Search loss functions from scratch, for any PyTorch task and any evaluation metric.

The public names; each is imported when it is first used, so that `import autoloss` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autoloss import tasks, zoo
    from autoloss.comparison.explanation import Explanation
    from autoloss.comparison.ladder import Ladder, Rung
    from autoloss.errors import OwnedError, RequestError, RunError
    from autoloss.evaluation.machines import Machines
    from autoloss.formulas.simplify import simplify
    from autoloss.proposing.archive import AgeingPopulation, Archive
    from autoloss.proposing.evolution import Evolution
    from autoloss.proposing.initialization import initial_expression
    from autoloss.proposing.mutation import Kind, offspring
    from autoloss.proposing.proposer import Plan, Proposer
    from autoloss.proposing.records import Candidate, Outcome
    from autoloss.proposing.view import View
    from autoloss.rejection.engines import correlation_score
    from autoloss.run.check import TaskCheck, check
    from autoloss.run.explaining import explain
    from autoloss.run.export import export
    from autoloss.run.replay import Replay, replay
    from autoloss.run.results import Search, open_run
    from autoloss.run.retraining import retrain
    from autoloss.run.scoring import compare, score
    from autoloss.run.search import resume, search
    from autoloss.run.tuning import tune
    from autoloss.settings import Configuration
    from autoloss.space.activated import ActivatedBranch
    from autoloss.space.branch import Branch, Role, Sample
    from autoloss.space.expression import Alphabet, Expression
    from autoloss.space.loss import Loss, bind
    from autoloss.space.operators import Operator
    from autoloss.space.pairs import PairBranch
    from autoloss.space.parsing import FormulaError, parse
    from autoloss.tasks.data import Data
    from autoloss.tasks.supervised import SupervisedTask
    from autoloss.tasks.task import Task, check_training
    from autoloss.tasks.trainer_task import FullSchedule
    from autoloss.training.execution import Execution
    from autoloss.training.loop import fit, seed_generators, shuffle_batches
    from autoloss.training.recipe import Recipe
    from autoloss.training.training import Diverged, Scored, Stopped, Training

__version__ = "0.1.0"

_HOMES = {
    "autoloss.comparison.explanation": ("Explanation",),
    "autoloss.comparison.ladder": ("Ladder", "Rung"),
    "autoloss.proposing.archive": ("AgeingPopulation", "Archive"),
    "autoloss.proposing.evolution": ("Evolution",),
    "autoloss.proposing.initialization": ("initial_expression",),
    "autoloss.proposing.mutation": ("Kind", "offspring"),
    "autoloss.proposing.proposer": ("Plan", "Proposer"),
    "autoloss.proposing.records": ("Candidate", "Outcome"),
    "autoloss.proposing.view": ("View",),
    "autoloss.rejection.engines": ("correlation_score",),
    "autoloss.evaluation.machines": ("Machines",),
    "autoloss.run.explaining": ("explain",),
    "autoloss.run.export": ("export",),
    "autoloss.run.check": ("TaskCheck", "check"),
    "autoloss.run.scoring": ("compare", "score"),
    "autoloss.errors": ("OwnedError", "RequestError", "RunError"),
    "autoloss.run.replay": ("Replay", "replay"),
    "autoloss.run.results": ("Search", "open_run"),
    "autoloss.run.retraining": ("retrain",),
    "autoloss.run.search": ("resume", "search"),
    "autoloss.run.tuning": ("tune",),
    "autoloss.settings": ("Configuration",),
    "autoloss.space.activated": ("ActivatedBranch",),
    "autoloss.space.branch": ("Branch", "Role", "Sample"),
    "autoloss.space.expression": ("Alphabet", "Expression"),
    "autoloss.space.loss": ("Loss", "bind"),
    "autoloss.space.operators": ("Operator",),
    "autoloss.space.pairs": ("PairBranch",),
    "autoloss.space.parsing": ("FormulaError", "parse"),
    "autoloss.formulas.simplify": ("simplify",),
    "autoloss.training.execution": ("Execution",),
    "autoloss.training.training": ("Diverged", "Scored", "Stopped", "Training"),
    "autoloss.tasks.data": ("Data",),
    "autoloss.tasks.supervised": ("SupervisedTask",),
    "autoloss.tasks.task": ("Task", "check_training"),
    "autoloss.tasks.trainer_task": ("FullSchedule",),
    "autoloss.training.loop": ("fit", "seed_generators", "shuffle_batches"),
    "autoloss.training.recipe": ("Recipe",),
}
_NAMES = {name: module for module, names in _HOMES.items() for name in names}
_PACKAGES = ("tasks", "zoo")

__all__ = [
    "ActivatedBranch",
    "AgeingPopulation",
    "Alphabet",
    "Archive",
    "Branch",
    "Candidate",
    "Configuration",
    "Data",
    "Diverged",
    "Evolution",
    "Execution",
    "Explanation",
    "Expression",
    "FormulaError",
    "FullSchedule",
    "Kind",
    "Ladder",
    "Loss",
    "Machines",
    "Operator",
    "Outcome",
    "OwnedError",
    "PairBranch",
    "Plan",
    "Proposer",
    "Recipe",
    "Replay",
    "RequestError",
    "Role",
    "RunError",
    "Rung",
    "Sample",
    "Scored",
    "Search",
    "Stopped",
    "SupervisedTask",
    "Task",
    "TaskCheck",
    "Training",
    "View",
    "bind",
    "check",
    "check_training",
    "compare",
    "correlation_score",
    "explain",
    "export",
    "fit",
    "initial_expression",
    "offspring",
    "open_run",
    "parse",
    "replay",
    "resume",
    "retrain",
    "score",
    "search",
    "seed_generators",
    "shuffle_batches",
    "simplify",
    "tasks",
    "tune",
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
