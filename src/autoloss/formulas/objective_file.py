"""The Python file that a loss is exported to for gradient boosting: the formula's derivatives, and what hands them to a library."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

from autoloss.errors import RequestError
from autoloss.formulas.functions import select_functions
from autoloss.formulas.notations import Call, call_by_name
from autoloss.formulas.python_file import TITLE_LENGTH, check_forms, clean_text, describe_facts, wrap, write_docstring
from autoloss.formulas.statements import PYTHON, write_line
from autoloss.space import boosting, derivatives, objective
from autoloss.space.derivatives import differentiate
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss
from autoloss.space.operators import Operator

LIBRARIES = tuple(boosting.OBJECTIVES)
_USE = {
    "lightgbm": """\
    objective = make_objective(labels)
    data = lightgbm.Dataset(inputs, labels)
    booster = lightgbm.train({'objective': objective}, data, 200)
    booster = objective.finish(booster)
    booster.save_model('model.txt')

With weights: make_objective(labels, weight), and the same weight in the Dataset. With
several classes: 'num_class' in the parameters. To stop early: feval=objective.metric.
LGBMClassifier and LGBMRegressor take objective=objective.sklearn; then
objective.finish(model.booster_) predicts.""",
    "xgboost": """\
    objective = make_objective(labels)
    matrix = xgboost.DMatrix(inputs, labels)
    booster = xgboost.train(objective.parameters, matrix, 200, obj=objective)
    booster.save_model('model.json')

With weights: make_objective(labels, weight), and the same weight in the DMatrix. To stop
early: custom_metric=objective.metric. XGBClassifier and XGBRegressor take
objective=objective.sklearn, base_score=objective.parameters['base_score'].""",
    "catboost": """\
    objective = make_objective(labels)
    model = CatBoostClassifier(loss_function=objective, eval_metric=objective.metric)
    model.fit(inputs, labels)
    objective.finish(model).save_model('model.cbm')

With weights: make_objective(labels, weight), and the same sample_weight in fit. With two classes, give class_names=[0, 1] too.""",
}

_IMPORTS = """\
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any"""

_FORMULA = '''\
def formula(y: Jet, p: Jet) -> Jet:
    """Return the formula at each element."""
    return {line}'''

_MAKE = '''\
def make_objective(labels: Any, weight: Any = None, *, classes: int | None = None, **options: Any) -> {adapter}:
    """Return the objective for a training set, checked on its labels.

    Args:
        labels: {labels}
        weight: Of the rows.
        classes: The number of classes; found in the labels by default.
        options: hessian="true", "abs", "standard" or "ones"; floor=0.05, the least
            Hessian as a share of the standard one; scale="standard", "mean" or "none";
            start="loss", "standard" or numbers; standardise=True, of numbers.
    """
    link = choose_link("{library}", "{activation}", labels, classes)
    return {adapter}(prepare_objective(formula, link, labels, weight, classes=classes, **options))'''


def to_objective(
    loss: Loss, forms: Mapping[str, BranchForm], library: str, *, title: str, facts: Mapping[str, str]
) -> str:
    """Write a loss as a Python file that imports NumPy alone, with an objective of `lightgbm`, `xgboost` or `catboost`.

    Raises:
        RequestError: A form is missing or lacks a leaf, or the loss cannot be an objective of rows.

    >>> from autoloss import Loss
    >>> from autoloss.space.form import BranchForm
    >>> text = to_objective(Loss("-y * log(p)"), {"main": BranchForm()}, "lightgbm", title="Cross entropy", facts={})
    >>> "def make_objective" in text, "import torch" in text
    (True, False)
    """
    check_forms(loss, forms)
    if len(loss) != 1:
        raise RequestError(f"This loss has the branches {', '.join(loss)}; an objective for boosting is for one.")
    ((branch, tree),) = loss.items()
    form = forms[branch]
    if not form.from_prediction or form.encoding != "one_hot" or form.kind not in ("classes", "labels", "values"):
        raise RequestError(f"The branch {branch!r} is of boxes, pairs or borders; an objective needs plain rows.")
    differentiate(tree)
    adapter = boosting.OBJECTIVES[library].__name__
    labels = "Numbers." if form.activation == "none" else "0 and 1, or the numbers of the classes."
    make = _MAKE.format(adapter=adapter, labels=labels, library=library, activation=form.activation)
    formula = _FORMULA.format(line=write_line(tree, replace(PYTHON, call=_call_jet)))
    functions, used = select_functions(f"{formula}\n{make}", _read_sources())
    constants = [
        f"{name} = {value!r}".replace("'", '"')
        for name, value in {**vars(derivatives), **vars(objective)}.items()
        if name.isupper() and name in used
    ]
    kind = "values" if form.activation == "none" else "classes"
    paragraphs = [
        wrap(f"{clean_text(title, TITLE_LENGTH)}: an objective of {library}, for {kind}."),
        wrap(write_line(tree), "    ") + wrap(f"= {tree}", "    "),
        describe_facts(facts),
        ["Use:"],
        _USE[library].splitlines(),
    ]
    said = [line for paragraph in paragraphs if paragraph for line in [*paragraph, ""]][:-1]
    imports = ("from __future__ import annotations", _IMPORTS, "import numpy as np")
    head = "\n\n".join([write_docstring(said), *imports, "\n".join(constants)])
    return "\n\n\n".join([head, *functions, formula, make]) + "\n"


def _read_sources() -> dict[str, str]:
    """Return the sources of what the package itself runs, by name."""
    found = {
        name: inspect.getsource(member)
        for module in (derivatives, objective, boosting)
        for name, member in vars(module).items()
        if (inspect.isclass(member) or inspect.isfunction(member)) and member.__module__ == module.__name__
    }
    return {name: text.replace("RequestError", "ValueError") for name, text in found.items()}


def _call_jet(operator: Operator) -> Call:
    return call_by_name("absolute" if operator.name == "abs" else operator.name, operator.arity)
