"""Objectives in the three libraries: the models of the built-in objectives, links, starts, weights, and what is refused."""

import importlib.metadata
import pickle

import numpy as np
import pytest

from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.space.boosting import check_release
from autoloss.space.loss import Loss

BINARY = Loss("-y*log(p) - (1-y)*log(1-p)")
SQUARES = Loss("(p - y)**2")
ROUNDS = 100
IN_CAT = {"thread_count": 1, "verbose": 0, "allow_writing_files": False, "learning_rate": 0.1, "random_seed": 0}
IN_LIGHT = {"verbose": -1, "num_threads": 1, "deterministic": True, "lambda_l2": 0.1}


def draw_table(classes=2, rows=600):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(rows, 5))
    score = inputs[:, 0] + inputs[:, 1] * inputs[:, 2] + rng.normal(0, 0.7, rows)
    labels = (
        np.digitize(score, np.quantile(score, [0.7, 0.9][: classes - 1])).astype(float) if classes else score * 9 + 40
    )
    return inputs, labels, rng.uniform(0.5, 2, rows)


INPUTS, LABELS, WEIGHT = draw_table()
_, CLASSES, _ = draw_table(3)
_, VALUES, _ = draw_table(0)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_lightgbm_learns_the_model_of_its_built_in_objective(weight, tmp_path):
    lightgbm = pytest.importorskip("lightgbm")
    for loss, labels, name, activation in (
        (BINARY, LABELS, "binary", "softmax"),
        (Loss("-y * log(p)"), LABELS, "binary", "softmax"),
        (SQUARES, VALUES, "regression", "none"),
    ):
        objective = loss.objective("lightgbm", labels, weight, activation=activation)
        expected = lightgbm.train(
            {**IN_LIGHT, "objective": name}, lightgbm.Dataset(INPUTS, labels, weight=weight), ROUNDS
        )
        found = lightgbm.train(
            {**IN_LIGHT, "objective": objective}, lightgbm.Dataset(INPUTS, labels, weight=weight), ROUNDS
        )
        objective.finish(found).save_model(tmp_path / "model.txt")
        loaded = lightgbm.Booster(model_file=tmp_path / "model.txt")
        np.testing.assert_allclose(loaded.predict(INPUTS), expected.predict(INPUTS), rtol=1e-6, atol=1e-6)


def test_weights_count_as_the_libraries_keep_them():
    """A start that differs by 1e-9 turned splits between nearly equal gains."""
    starts = [
        BINARY.objective("lightgbm", LABELS, weight).objective.start for weight in (WEIGHT, WEIGHT.astype(np.float32))
    ]
    np.testing.assert_array_equal(*starts)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_xgboost_learns_the_model_of_its_built_in_objective(weight, tmp_path):
    xgboost = pytest.importorskip("xgboost")
    parameters = {"nthread": 1, "max_depth": 4}
    for loss, labels, name, activation in (
        (BINARY, LABELS, "binary:logistic", "softmax"),
        (SQUARES, VALUES, "reg:squarederror", "none"),
    ):
        matrix = xgboost.DMatrix(INPUTS, labels, weight=weight)
        objective = loss.objective("xgboost", labels, weight, activation=activation)
        base = float(np.average(labels, weights=weight))
        expected = xgboost.train({**parameters, "objective": name, "base_score": base}, matrix, ROUNDS)
        found = xgboost.train({**parameters, **objective.parameters}, matrix, ROUNDS, obj=objective)
        found.save_model(tmp_path / "model.json")
        loaded = xgboost.Booster(model_file=tmp_path / "model.json")
        np.testing.assert_allclose(loaded.predict(matrix), expected.predict(matrix), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_catboost_learns_the_model_of_its_built_in_objective(weight, tmp_path):
    catboost = pytest.importorskip("catboost")
    options = {
        **IN_CAT,
        "iterations": ROUNDS,
        "leaf_estimation_method": "Newton",
        "leaf_estimation_iterations": 1,
        "bootstrap_type": "No",
        "random_strength": 0,
    }
    objective = BINARY.objective("catboost", LABELS, weight)
    (start,) = objective.objective.start
    pool = catboost.Pool(INPUTS, LABELS.astype(int), weight=weight, baseline=np.full(len(LABELS), start))
    expected = catboost.CatBoostClassifier(loss_function="Logloss", boost_from_average=False, **options).fit(pool)
    found = catboost.CatBoostClassifier(loss_function=objective, eval_metric=objective.metric, **options)
    found.fit(INPUTS, LABELS.astype(int), sample_weight=weight)
    objective.finish(found).save_model(str(tmp_path / "model.cbm"))
    loaded = catboost.CatBoostClassifier().load_model(str(tmp_path / "model.cbm"))
    raw = expected.predict(INPUTS, prediction_type="RawFormulaVal") + start
    np.testing.assert_allclose(loaded.predict_proba(INPUTS)[:, 1], 1 / (1 + np.exp(-raw)), atol=1e-6)
    with pytest.raises(RequestError, match="call finish once"):
        objective.finish(found)


def test_several_classes_in_all_three_libraries():
    """Each model is better than the classes' shares, and its predictions are probabilities that begin at the start."""
    lightgbm, xgboost, catboost = map(pytest.importorskip, ("lightgbm", "xgboost", "catboost"))
    focal, rows = Loss("-(1 - p)**2 * y * log(p)"), np.arange(len(CLASSES))
    predictions = {}
    light = focal.objective("lightgbm", CLASSES)
    for name, objective in (
        ("softmax", light),
        ("sigmoid", focal.objective("lightgbm", CLASSES, activation="sigmoid")),
    ):
        options = {**IN_LIGHT, "objective": objective, "num_class": 3}
        booster = objective.finish(lightgbm.train(options, lightgbm.Dataset(INPUTS, CLASSES), 20))
        predictions[name] = booster.predict(INPUTS)
        start = objective.objective.predict(objective.objective.start[None])
        untrained = {**options, "learning_rate": 1e-12}
        booster = objective.finish(lightgbm.train(untrained, lightgbm.Dataset(INPUTS, CLASSES), 1))
        np.testing.assert_allclose(booster.predict(INPUTS[:2]), np.repeat(start, 2, axis=0), atol=1e-6)
    boost = focal.objective("xgboost", CLASSES)
    matrix = xgboost.DMatrix(INPUTS, CLASSES)
    predictions["xgboost"] = xgboost.train({"nthread": 1, **boost.parameters}, matrix, 20, obj=boost).predict(matrix)
    cat = focal.objective("catboost", CLASSES)
    model = catboost.CatBoostClassifier(loss_function=cat, eval_metric=cat.metric, iterations=20, **IN_CAT)
    predictions["catboost"] = cat.finish(model.fit(INPUTS, CLASSES.astype(int))).predict_proba(INPUTS)
    shares = np.bincount(CLASSES.astype(int)) / len(CLASSES)
    entropy = -np.log(shares[CLASSES.astype(int)]).mean()
    for name, found in predictions.items():
        if name != "sigmoid":
            np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-5)
        assert -np.log(found[rows, CLASSES.astype(int)]).mean() < 0.9 * entropy, name


def test_a_loss_of_the_zoo_has_its_own_activation():
    pytest.importorskip("lightgbm")
    assert zoo.get("baseline/mse").objective("lightgbm", VALUES).objective.link == "none"
    assert zoo.get("baseline/bce").objective("lightgbm", CLASSES).objective.link == "sigmoid"
    assert zoo.get("baseline/bce").objective("lightgbm", CLASSES, activation="softmax").objective.link == "softmax"
    with pytest.raises(RequestError, match="This loss is for predictions of the kind"):
        zoo.get("det/rcnn_reg").objective("lightgbm", VALUES)


def test_the_scikit_learn_interfaces_learn_the_same():
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    objective = BINARY.objective("lightgbm", LABELS, WEIGHT)
    model = lightgbm.LGBMClassifier(objective=objective.sklearn, n_estimators=10, n_jobs=1, verbose=-1)
    model.fit(INPUTS, LABELS, sample_weight=WEIGHT)
    options = {"objective": objective, "verbose": -1, "num_threads": 1}
    trained = lightgbm.train(options, lightgbm.Dataset(INPUTS, LABELS, weight=WEIGHT), 10)
    found, expected = objective.finish(model.booster_).predict(INPUTS), objective.finish(trained).predict(INPUTS)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    objective = BINARY.objective("xgboost", LABELS, WEIGHT)
    base = objective.parameters["base_score"]
    model = xgboost.XGBClassifier(objective=objective.sklearn, base_score=base, n_estimators=10, n_jobs=1)
    model.fit(INPUTS, LABELS, sample_weight=WEIGHT)
    matrix = xgboost.DMatrix(INPUTS, LABELS, weight=WEIGHT)
    trained = xgboost.train({"nthread": 1, **objective.parameters}, matrix, 10, obj=objective)
    np.testing.assert_allclose(model.predict_proba(INPUTS)[:, 1], trained.predict(matrix), rtol=1e-5)
    # A fitted model is saved with its objective.
    loaded, again = pickle.loads(pickle.dumps((model, objective.objective)))  # noqa: S301 - our own
    np.testing.assert_array_equal(loaded.predict_proba(INPUTS), model.predict_proba(INPUTS))
    scores = VALUES[:, None]
    np.testing.assert_array_equal(
        again.differentiate(scores, LABELS), objective.objective.differentiate(scores, LABELS)
    )


def test_metrics_are_the_mean_loss_and_stop_early():
    lightgbm, xgboost, catboost = map(pytest.importorskip, ("lightgbm", "xgboost", "catboost"))
    history = {}
    light = Loss("-(y * log(p)) / 2").objective("lightgbm", LABELS)
    data = lightgbm.Dataset(INPUTS[:400], LABELS[:400])
    booster = lightgbm.train(
        {**IN_LIGHT, "objective": light, "metric": "none", "learning_rate": 0.5},
        data,
        ROUNDS,
        valid_sets=[lightgbm.Dataset(INPUTS[400:], LABELS[400:], reference=data)],
        feval=light.metric,
        callbacks=[lightgbm.early_stopping(3, verbose=False), lightgbm.record_evaluation(history)],
    )
    finished = light.finish(booster)
    assert 0 < finished.best_iteration < ROUNDS
    probability = finished.predict(INPUTS[400:])
    loss = -np.log(np.where(LABELS[400:] > 0, probability, 1 - probability)).mean()
    assert history["valid_0"]["loss"][finished.best_iteration - 1] == pytest.approx(loss, rel=1e-5)
    boost, history = BINARY.objective("xgboost", LABELS), {}
    matrix = xgboost.DMatrix(INPUTS, LABELS)
    model = xgboost.train(
        {"nthread": 1, **boost.parameters},
        matrix,
        3,
        obj=boost,
        custom_metric=boost.metric,
        evals=[(matrix, "train")],
        evals_result=history,
        verbose_eval=False,
    )
    loss = -np.log(np.where(LABELS > 0, model.predict(matrix), 1 - model.predict(matrix))).mean()
    assert history["train"]["loss"][-1] == pytest.approx(loss, rel=1e-5)
    cat = BINARY.objective("catboost", LABELS)
    model = catboost.CatBoostClassifier(loss_function=cat, eval_metric=cat.metric, iterations=3, **IN_CAT)
    (history,) = model.fit(INPUTS, LABELS.astype(int)).get_evals_result()["learn"].values()
    found = cat.finish(model).predict_proba(INPUTS)[np.arange(len(LABELS)), LABELS.astype(int)]
    assert history[-1] == pytest.approx(-np.log(found).mean(), rel=1e-5)


def test_another_number_of_scores_than_that_of_the_classes_is_refused():
    lightgbm = pytest.importorskip("lightgbm")
    for loss, labels, given, message in (
        (Loss("-y * log(p)"), CLASSES, {}, "has 1 scores for each row; .* need 3. Give num_class=3"),
        (BINARY, LABELS, {"num_class": 3}, "has 3 scores for each row; .* need 1. Leave num_class out"),
    ):
        options = {**IN_LIGHT, "objective": loss.objective("lightgbm", labels), **given}
        with pytest.raises(RequestError, match=message):
            lightgbm.train(options, lightgbm.Dataset(INPUTS, labels), 2)


def test_a_start_of_another_hand_is_noticed():
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    objective = BINARY.objective("xgboost", LABELS)
    with pytest.raises(RequestError, match=r"Train with the parameters \{\*\*parameters, \*\*objective.parameters\}"):
        xgboost.train({"nthread": 1}, xgboost.DMatrix(INPUTS, LABELS), 2, obj=objective)
    light = BINARY.objective("lightgbm", LABELS)
    data = lightgbm.Dataset(INPUTS, LABELS, init_score=np.full(len(LABELS), -1.0))
    options = {"objective": light, "verbose": -1, "num_threads": 1}
    with pytest.raises(RequestError, match="Remove init_score and init_model"):
        lightgbm.train(options, data, 2)
    trained = light.finish(lightgbm.train(options, lightgbm.Dataset(INPUTS, LABELS), 2))
    with pytest.raises(RequestError, match="Remove init_score and init_model"):
        lightgbm.train(options, lightgbm.Dataset(INPUTS, LABELS, free_raw_data=False), 2, init_model=trained)
    model = lightgbm.LGBMClassifier(objective=light.sklearn, n_estimators=2, n_jobs=1, verbose=-1)
    with pytest.raises(RequestError, match="Leave out init_score; the objective adds the start"):
        model.fit(INPUTS, LABELS, init_score=np.full(len(LABELS), -1.0))


def test_a_rare_class_and_first_trees_without_a_split_are_no_start_of_another_hand():
    xgboost = pytest.importorskip("xgboost")
    rare = np.ones(20_000)
    rare[:2] = 0
    inputs = np.random.default_rng(0).normal(size=(len(rare), 2))
    for table, labels, options, start in (
        (inputs, rare, {}, "loss"),
        (INPUTS, LABELS, {"gamma": 1e6}, 0.0),
        (INPUTS, LABELS, {"gamma": 1e6, "subsample": 0.5}, "loss"),
    ):
        objective = BINARY.objective("xgboost", labels, start=start)
        parameters = {"nthread": 1, **options, **objective.parameters}
        booster = xgboost.train(parameters, xgboost.DMatrix(table, labels), 3, obj=objective)
        assert np.isfinite(booster.predict(xgboost.DMatrix(table[:2]))).all()


def test_catboost_with_one_score_for_several_classes_is_refused():
    pytest.importorskip("catboost")
    objective = BINARY.objective("catboost", CLASSES)
    with pytest.raises(RequestError, match=r"for several classes, set eval_metric=objective\.metric"):
        objective.calc_ders_range(np.zeros(4), np.arange(4), None)


def test_a_booster_that_cannot_be_finished_is_refused():
    lightgbm = pytest.importorskip("lightgbm")
    objective = BINARY.objective("lightgbm", LABELS)
    booster = lightgbm.train(
        {"objective": objective, "verbose": -1, "num_threads": 1}, lightgbm.Dataset(INPUTS, LABELS), 2
    )
    finished = objective.finish(booster)
    with pytest.raises(RequestError, match="is finished already"):
        objective.finish(finished)


def test_a_table_without_a_split_predicts_the_start():
    lightgbm = pytest.importorskip("lightgbm")
    objective = BINARY.objective("lightgbm", LABELS)
    options = {"objective": objective, "verbose": -1, "num_threads": 1, "min_gain_to_split": 1e9}
    booster = lightgbm.train(options, lightgbm.Dataset(INPUTS, LABELS), 2)
    np.testing.assert_allclose(objective.finish(booster).predict(INPUTS[:2]), LABELS.mean())


def test_a_missing_or_old_library_is_named(monkeypatch):
    def find_nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("autoloss.space.boosting.version", find_nothing)
    with pytest.raises(RequestError, match=r"lightgbm is not installed.*pip install 'autoloss\[boosting\]'"):
        BINARY.objective("lightgbm", LABELS)
    monkeypatch.setattr("autoloss.space.boosting.version", lambda name: "2.1.4")
    with pytest.raises(RequestError, match=r"xgboost 2\.1\.4 is installed, .*; expected 3\.1 or later"):
        check_release("xgboost")


def test_wrong_requests_are_refused():
    for library in ("lightgbm", "xgboost", "catboost"):
        pytest.importorskip(library)
    with pytest.raises(RequestError, match=r"no boosting library named 'lightgmb'. Did you mean 'lightgbm'"):
        BINARY.objective("lightgmb", LABELS)
    with pytest.raises(RequestError, match="no option of an objective named 'hesian'"):
        BINARY.objective("lightgbm", LABELS, hesian="abs")
    with pytest.raises(RequestError, match="no activation named 'relu'"):
        BINARY.objective("lightgbm", LABELS, activation="relu")
    with pytest.raises(RequestError, match="branches cls, reg; an objective is for one"):
        Loss({"cls": "-y * log(p)", "reg": "p - y"}).objective("lightgbm", LABELS)
    with pytest.raises(RequestError, match="xgboost has no sigmoid per class"):
        BINARY.objective("xgboost", CLASSES, activation="sigmoid")
    with pytest.raises(RequestError, match="holds mean_nhw"):
        Loss("-y * log(p) / mean_nhw(y)").objective("lightgbm", LABELS)
