"""A loss exported for boosting: one file of NumPy alone that does in each library what the package's own objective does."""

import ast
import subprocess
import sys

import numpy as np
import pytest

import autoloss
from autoloss.errors import RequestError
from autoloss.formulas.objective_file import LIBRARIES, to_objective
from autoloss.space.form import BranchForm, PairForm
from autoloss.space.loss import Loss

FOCAL = "-(1 - p)**2 * y * log(p)"
TRAIN = {
    "lightgbm": """
import lightgbm
options = {"objective": objective, "verbose": -1, "num_threads": 1, "num_class": 3}
objective.finish(lightgbm.train(options, lightgbm.Dataset(inputs, labels), 4)).save_model("model")
found = lightgbm.Booster(model_file="model").predict(inputs)
""",
    "xgboost": """
import xgboost
matrix = xgboost.DMatrix(inputs, labels)
xgboost.train({"nthread": 1, **objective.parameters}, matrix, 4, obj=objective).save_model("model.json")
found = xgboost.Booster(model_file="model.json").predict(matrix)
""",
    "catboost": """
import catboost
options = {"thread_count": 1, "verbose": 0, "allow_writing_files": False, "iterations": 4, "random_seed": 0}
model = catboost.CatBoostClassifier(loss_function=objective, eval_metric=objective.metric, **options)
objective.finish(model.fit(inputs, labels.astype(int))).save_model("model")
found = catboost.CatBoostClassifier().load_model("model").predict_proba(inputs)
""",
}
SCRIPT = """
import sys, runpy, numpy as np
make_objective = runpy.run_path("objective.py")["make_objective"]
assert not {{"torch", "autoloss", "lightgbm", "xgboost", "catboost", "numba"}} & set(sys.modules)
inputs, labels = np.load("table.npz").values()
objective = make_objective(labels)
{train}
np.save("found.npy", found)
"""


def draw_table():
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(90, 3))
    return inputs, np.digitize(inputs[:, 0] + rng.normal(0, 0.5, 90), [-0.3, 0.6]).astype(float)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_file_alone_trains_the_model_of_the_package(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    inputs, labels = draw_table()
    np.savez("table.npz", inputs, labels)
    autoloss.export(FOCAL, "objective.py", library=library)
    (tmp_path / "script.py").write_text(SCRIPT.format(train=TRAIN[library]), encoding="utf-8")
    subprocess.run([sys.executable, "-I", "script.py"], check=True, capture_output=True, timeout=120)
    names = {"inputs": inputs, "labels": labels, "objective": Loss(FOCAL).objective(library, labels)}
    expected = train_here(library, **names)
    np.testing.assert_allclose(np.load("found.npy"), expected, rtol=1e-6)


def train_here(library, inputs, labels, objective):
    if library == "lightgbm":
        import lightgbm

        options = {"objective": objective, "verbose": -1, "num_threads": 1, "num_class": 3}
        return objective.finish(lightgbm.train(options, lightgbm.Dataset(inputs, labels), 4)).predict(inputs)
    if library == "xgboost":
        import xgboost

        matrix = xgboost.DMatrix(inputs, labels)
        return xgboost.train({"nthread": 1, **objective.parameters}, matrix, 4, obj=objective).predict(matrix)
    import catboost

    options = {"thread_count": 1, "verbose": 0, "allow_writing_files": False, "iterations": 4, "random_seed": 0}
    model = catboost.CatBoostClassifier(loss_function=objective, eval_metric=objective.metric, **options)
    return objective.finish(model.fit(inputs, labels.astype(int))).predict_proba(inputs)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("formula", "activation"),
    [(FOCAL, "softmax"), ("(p - y)**2", "none"), ("y + p", "none"), ("exp(tanh(p * y)) / sqrt(abs(p - y))", "sigmoid")],
)
def test_a_file_imports_numpy_alone_and_is_formatted(library, formula, activation):
    text = to_objective(
        Loss(formula), {"main": BranchForm(activation=activation)}, library, title='A "loss"', facts={"a": "b"}
    )
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    assert {name for name in modules if name.split(".")[0] not in sys.stdlib_module_names} == {"numpy"}
    assert "RequestError" not in text
    checked = ["ruff", "check", "--isolated", "--select", "F,E7,E9", "-"]
    done = subprocess.run([sys.executable, "-m", *checked], input=text, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("formula", "form", "message"),
    [
        ("-y * log(p) / mean_nhw(y)", BranchForm(), "holds mean_nhw, which mixes rows"),
        ("-y * log(p)", BranchForm(encoding="edge"), "needs plain rows"),
        ("-y * log(p)", BranchForm(activation="sigmoid", pairs=PairForm()), "needs plain rows"),
        ("1 - i / u", BranchForm(leaves=("i", "u", "e"), from_prediction=False), "needs plain rows"),
    ],
)
def test_losses_that_are_of_no_rows_are_refused(formula, form, message):
    with pytest.raises(RequestError, match=message):
        to_objective(Loss(formula), {"main": form}, "lightgbm", title="A loss", facts={})


def test_wrong_formats_and_libraries_are_refused(tmp_path):
    with pytest.raises(RequestError, match="no library to export for named 'sklearn'"):
        autoloss.export("p", tmp_path / "a.py", library="sklearn")
    with pytest.raises(RequestError, match="lightgbm needs a Python file; found the format latex"):
        autoloss.export("p", tmp_path / "a.tex", library="lightgbm")
    with pytest.raises(RequestError, match=r"path is '2'; expected a file name that ends in \.py, \.tex, \.json"):
        autoloss.export("p", "2")
    forms = {"a": BranchForm(), "b": BranchForm()}
    with pytest.raises(RequestError, match="branches a, b; an objective for boosting is for one"):
        to_objective(Loss({"a": "p", "b": "p"}), forms, "lightgbm", title="A loss", facts={})
