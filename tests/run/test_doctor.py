"""Forty mistakes of people with a task of their own: each is recognised, named, and told the way out of, in one screen."""

from __future__ import annotations

import pytest

import autoloss
from autoloss.cli import main
from autoloss.errors import RequestError
from tests.screens import CHARACTERS, LINES, screen

TASK = """
import torch
from torch import nn
import autoloss
from autoloss.training.recipe import Recipe

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(256, 4, generator=generator)
targets = inputs[:, :3].argmax(dim=1)
train, valid = (inputs[:192], targets[:192]), (inputs[192:], targets[192:])
activation, options = "softmax", {{}}
recipe = Recipe(epochs=2, batch_size=16, learning_rate=0.3)

def network():
    return nn.Linear(4, 3)

def metric(prediction, target):
    return (prediction.argmax(dim=1) == target).float().mean().item()

def r2(prediction, target):
    return 1 - ((prediction - target) ** 2).mean().item() / target.var().item()

def labels(prediction, target):
    return ((prediction > 0.5) == (target > 0.5)).float().mean().item()

{change}
task = autoloss.SupervisedTask(network, train, valid, activation, metric, recipe=recipe, **options)
"""
MULTI_LABEL = """
train, valid = (inputs[:192], (inputs[:192, :3] > 0).float()), (inputs[192:], (inputs[192:, :3] > 0).float())
activation, metric = "sigmoid", labels
"""
REGRESSION = """
train, valid = (inputs[:192], inputs[:192, :1] * 2), (inputs[192:], inputs[192:, :1] * 2)
activation, metric = "none", r2
def network():
    return nn.Linear(4, 1)
"""

REFUSED: dict[str, tuple[str, str, str]] = {
    # What it is called: the change, what was found, the way out.
    "a metric where lower is better": (
        "def metric(prediction, target):\n    return nn.functional.nll_loss(prediction.log(), target).item()",
        "lower for the target itself",
        "return its negative",
    ),
    "a metric that compares logits with 0": (
        MULTI_LABEL
        + "def metric(prediction, target):\n    return ((prediction > 0) == (target > 0.5)).float().mean().item()",
        "for the network's prediction and for the target itself",
        "compare them with 0.5, not with 0",
    ),
    "a network in double precision": (
        "def network():\n    return nn.Linear(4, 3).double()",
        "weights in float64",
        ".float()",
    ),
    "a metric that is constant": (
        "def metric(prediction, target):\n    return 0.5",
        "has the same value, 0.5 for the first, for the network's prediction and for the target itself",
        "it needs to depend on the prediction",
    ),
    "a metric that is NaN": (
        "def metric(prediction, target):\n    return float('nan')",
        "undefined",
        "NaN or infinite for each of them",
    ),
    "a metric that is infinite": (
        "def metric(prediction, target):\n    return float('inf')",
        "undefined",
        "NaN or infinite for each of them",
    ),
    "training targets of one class": (
        "train = (train[0], torch.zeros_like(train[1]))\ndef metric(prediction, target):\n    return 1.0 * len(target.unique())",
        "has the same value, 1 for the first, for the network's prediction and for the target itself",
        "the targets need to differ",
    ),
    "a metric that is text": ("def metric(prediction, target):\n    return 'good'", "returned a str", "one number"),
    "a metric that returns nothing": ("def metric(prediction, target):\n    0.5", "returned None", "one number"),
    "a metric of each class": (
        "def metric(prediction, target):\n    return prediction.mean(dim=0)",
        "returned a Tensor of shape (3,)",
        "Average over classes",
    ),
    "a metric with chance in it": (
        "def metric(prediction, target):\n"
        "    return (prediction.argmax(1) == target).float().mean().item() + 0.1 * torch.rand(()).item()",
        "for the same predictions and targets",
        "Leave chance out of it",
    ),
    "a metric that raises": (
        "def metric(prediction, target):\n    return (prediction == target).float().mean().item()",
        "in task.py, line 27: return (prediction == target).float()",
        "shapes (64, 3) and (64,)",
    ),
    "a metric of one argument": (
        "def metric(prediction):\n    return 1.0",
        "metric() takes 1 positional argument but 2 were given",
        "(prediction, target)",
    ),
    "a metric that is a number": ("metric = 0.5", "metric is 0.5", "a function (prediction, target)"),
    "further metrics as a list": ("options = {'also': [metric]}", "also is [<function metric", "expected a dictionary"),
    "float class targets": (
        "train, valid = (train[0], train[1].float()), (valid[0], valid[1].float())",
        "class indices in floating point",
        ".long()",
    ),
    "class targets with a column": (
        "train, valid = (train[0], train[1][:, None]), (valid[0], valid[1][:, None])",
        "shape (2, 1)",
        "squeeze",
    ),
    "classes counted from 1": (
        "train, valid = (train[0], train[1] + 1), (valid[0], valid[1] + 1)",
        "class indices from 1 to 3",
        "Subtract 1",
    ),
    "a mask of 0 and 255": (
        "train, valid = (train[0], 255 * (train[1] > 0)), (valid[0], 255 * (valid[1] > 0))\n"
        "def network():\n    return nn.Linear(4, 2)",
        "class indices from 0 to 255",
        "targets // 255",
    ),
    "fewer channels than classes": (
        "def network():\n    return nn.Linear(4, 2)",
        "class indices from 0 to 2",
        "one channel per class",
    ),
    "NaN in the inputs": (
        "train[0][17, 2] = torch.nan",
        "train inputs are not finite in 1 row, first in row 17",
        "Fill",
    ),
    "infinity in the inputs": (
        "valid[0][3] = torch.inf",
        "valid inputs are not finite in 1 row, first in row 3",
        "Fill",
    ),
    "NaN in the targets": (
        REGRESSION + "train[1][5] = torch.nan",
        "train targets are not finite in 1 row, first in row 5",
        "Fill",
    ),
    "text as inputs": ("train = ([['a', 'b']] * 192, targets[:192])", "not numeric", "encode"),
    "fewer targets than inputs": ("train = (inputs, targets[:192])", "256 inputs and 192 targets", "the same row"),
    "no examples": ("valid = (inputs[:0], targets[:0])", "valid data holds no examples", "at least one"),
    "a folder instead of data": ("train = 'data/train'", "train data is a str", "a pair (inputs, targets)"),
    "a network of another width": (
        "def network():\n    return nn.Linear(5, 3)",
        "cannot process the train inputs, torch.float32 of shape (2, 4)",
        "so that they fit",
    ),
    "bytes as inputs": (
        "train, valid = ((train[0] * 9).byte(), train[1]), ((valid[0] * 9).byte(), valid[1])",
        "torch.uint8",
        ".float()",
    ),
    "a class instead of a network": ("network = nn.Linear", "network cannot be built", "without arguments"),
    "a network that is a number": ("network = 3", "is an int", "nn.Module"),
    "a network that returns a dictionary": (
        "class Net(nn.Linear):\n    def forward(self, x):\n        return {'a': super().forward(x), 'b': x}\n"
        "def network():\n    return Net(4, 3)",
        "keys a, b",
        "output=…",
    ),
    "a network of NaN": (
        "def network():\n    found = nn.Linear(4, 3)\n    nn.init.constant_(found.bias, torch.nan)\n    return found",
        "prediction is not finite",
        "weights",
    ),
    "a network without weights to train": (
        "def network():\n    return nn.Linear(4, 3).requires_grad_(False)",
        "no weights that can be trained",
        "requires_grad",
    ),
    "an unknown activation": ("activation = 'Softmax'", "'Softmax'", "Did you mean 'softmax'"),
    "an unknown standard loss": (
        "options = {'standard': 'baseline/cee'}",
        "'baseline/cee'",
        "Did you mean 'baseline/ce'",
    ),
    "a learning rate as text": ("recipe = Recipe(learning_rate='fast')", "recipe.learning_rate is 'fast'", "a number"),
    "a learning rate as torch calls it": (
        "recipe = Recipe(lr=0.1)",
        "no option named 'recipe.lr'",
        "Did you mean 'recipe.learning_rate'?",
    ),
    "classes in the last dimension": (
        "train, valid = ((inputs[rows].view(-1, 1, 4).repeat(1, 2, 1), targets[rows].view(-1, 1).repeat(1, 2))\n"
        "    for rows in (slice(192), slice(192, None)))\nmetric = lambda prediction, target: 0.5",
        "channel",
        "movedim(-1, 1)",
    ),
    "half an epoch": ("recipe = Recipe(epochs=0.5)", "recipe.epochs is 0.5", "a whole number"),
    "a recipe as a dictionary": ("recipe = {'epochs': 3}", "recipe is {'epochs': 3}", "an autoloss.Recipe"),
    "rows as text": (
        "options = {'data': autoloss.Data(rows_per_sample='many')}",
        "rows_per_sample is 'many'",
        "a whole number",
    ),
    "a number as name": ("options = {'name': 3}", "name is 3", "text"),
    "an unknown device": ("options = {'device': 'gpu'}", "'gpu'", "Name cpu, cuda"),
    "a tensor as ignored index": (
        "options = {'data': autoloss.Data(ignore_index='dog')}",
        "ignore_index is 'dog'",
        "a whole number or none",
    ),
}
WARNED: dict[str, tuple[str, str, str]] = {
    "a trainer that does not follow the seed": (
        "import random\n"
        "def fit(network, loss, training):\n"
        "    optimizer = torch.optim.SGD(network.parameters(), lr=0.3)\n"
        "    for _ in range(round(100 * training.fidelity)):\n"
        "        rows = random.SystemRandom().sample(range(192), 16)\n"
        "        optimizer.zero_grad()\n"
        "        loss(network(inputs[rows]), targets[rows]).backward()\n"
        "        optimizer.step()\n"
        "options = {'trainer': fit}",
        "Two trainings with the same seed differ",
        "from training.seed",
    ),
    "weights drawn elsewhere, of a task that cannot be cut short": (
        "import random\n"
        "class Whole(autoloss.SupervisedTask):\n    shortens = False\n"
        "autoloss.SupervisedTask = Whole\n"
        "def network():\n"
        "    layer = nn.Linear(4, 3)\n"
        "    nn.init.constant_(layer.bias, random.SystemRandom().random())\n"
        "    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(random.SystemRandom().randrange(10**6)))\n"
        "    return layer\n"
        "def metric(prediction, target):\n"
        "    return -nn.functional.nll_loss(prediction.clamp(1e-6).log(), target).item()",
        "Two trainings with the same seed differ: their scores are",
        "from training.seed",
    ),
    "a network that ends in softmax": (
        "def network():\n    return nn.Sequential(nn.Linear(4, 3), nn.Softmax(dim=1))",
        "add up to 1",
        "before its softmax",
    ),
    "several labels under softmax": (
        MULTI_LABEL + "activation = 'softmax'\ntrain = (train[0], train[1].long())",
        "The train targets do not add up to 1 over the channels",
        "use the activation sigmoid",
    ),
    "a network that ends in sigmoid": (
        MULTI_LABEL + "def network():\n    return nn.Sequential(nn.Linear(4, 3), nn.Sigmoid())",
        "between 0 and 1",
        "autoloss applies sigmoid.",
    ),
    "a network that ends in a rectifier": (
        "def network():\n    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())",
        "never negative",
        "without an activation",
    ),
    "a class that no training example has": (
        "keep = targets[:192] != 2\ntrain = (inputs[:192][keep], targets[:192][keep])",
        "class 2 is in the valid data and not in the train data",
        "Split",
    ),
    "a class that the valid data lacks": (
        "keep = targets[192:] != 1\nvalid = (inputs[192:][keep], targets[192:][keep])",
        "class 1 is in the train data and not in the valid data",
        "Split",
    ),
    "train targets that are all equal": (
        "train = (train[0], torch.zeros_like(train[1]))",
        "All train targets are 0",
        "nothing can be learned from them",
    ),
    "inputs in hundreds": (
        "train, valid = (train[0] * 255, train[1]), (valid[0] * 255, valid[1])",
        "The train inputs reach",
        "about 1",
    ),
    "a metric that takes logits": (
        "def metric(prediction, target):\n    return -nn.functional.cross_entropy(prediction, target).item()",
        "The metric is higher for the targets as logits",
        "apply no softmax or sigmoid",
    ),
    "a metric that takes the logits of labels": (
        MULTI_LABEL
        + "def metric(prediction, target):\n"
        + "    return -nn.functional.binary_cross_entropy_with_logits(prediction, target).item()",
        "The metric is higher for the targets as logits",
        "the metric gets probabilities",
    ),
    "values in thousands": (
        "activation = 'none'\nmetric = lambda prediction, target: -(prediction - target).abs().mean().item()\n"
        "train, valid = ((one, 5000 * nn.functional.one_hot(other, 3).float()) for one, other in (train, valid))",
        "The train targets are of size 2.",
        "Divide the targets by",
    ),
    "class indices without an activation": (
        "activation = 'none'",
        "targets are class indices, and the activation is none",
        "softmax",
    ),
}
QUICK = ["--set", "rejection.engine=reference", "--set", "rejection.steps=15", "--set", "rejection.samples=2"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_named_with_the_way_out(mistake, elsewhere, capsys):
    change, found, advice = REFUSED[mistake]
    (elsewhere / "task.py").write_text(TASK.format(change=change))
    said = screen(capsys, "check", "task.py:task", *QUICK)
    assert found in said
    assert advice in said


def test_data_that_cannot_be_read_is_named_with_its_line(elsewhere, capsys):
    items = (
        "class Items(torch.utils.data.Dataset):\n    def __len__(self): return 192\n    def __getitem__(self, at):\n"
    )
    items += "        if at == 90: raise OSError('image 90 is truncated')\n        return inputs[at], targets[at]\ntrain = Items()"
    (elsewhere / "task.py").write_text(TASK.format(change=items))
    with pytest.raises(SystemExit) as ended:
        main(["check", "task.py:task", *QUICK])
    complained = capsys.readouterr().err
    assert ended.value.code == 1
    assert "Drawing samples of the task fails: OSError: image 90 is truncated" in complained
    assert "in task.py, line" in complained
    assert len(complained.splitlines()) <= LINES


@pytest.mark.parametrize("mistake", WARNED)
def test_a_doubt_is_said_and_the_check_goes_on(mistake, elsewhere, capsys):
    change, found, advice = WARNED[mistake]
    (elsewhere / "task.py").write_text(TASK.format(change=change))
    with pytest.raises(SystemExit) as ended:
        main(["check", "task.py:task", "--no-rates", *QUICK])
    said, complained = capsys.readouterr()
    assert ended.value.code == 0, complained
    assert found in said
    assert advice in said
    assert len(said.splitlines()) <= LINES
    assert len(said) <= CHARACTERS


REQUESTED: dict[str, tuple[list[str], str, str]] = {
    # What it is called: the arguments, what was found, the way out.
    "a file without the name of the task": (["task.py"], "task.py is a file", "task.py:task"),
    "a file that is not there": (["tusk.py"], "no file tusk.py", "file.py:name"),
    "another name": (["task.py:tusk"], "'tusk'", "Did you mean 'task'?"),
    "a name of what the file imports": (["task.py:nosuch"], "no task in task.py named 'nosuch'", "Known: "),
    "an option of a task that is no function": (["task.py:task", "--set", "size=3"], "takes no options", "size"),
    "a setting without its group": (
        ["task.py:task", "--set", "learning_rate=3"],
        "found learning_rate",
        "search.learning_rate",
    ),
    "a setting that is text": (["task.py:task", "--set", "rejection.steps=many"], "'many'", "a whole number"),
    "an option of a task given as one of the command": (["task.py:task", "--target", "y"], "--target", "--set target="),
    "an option with a typo": (["task.py:task", "--evaluation=3"], "--evaluation.", "Did you mean --evaluations?"),
}


@pytest.mark.parametrize("command", ["check", "search"])
@pytest.mark.parametrize("mistake", REQUESTED)
def test_a_mistake_of_the_request_is_named(command, mistake, elsewhere, capsys):
    arguments, found, advice = REQUESTED[mistake]
    (elsewhere / "task.py").write_text(TASK.format(change=""))
    said = screen(capsys, command, *arguments)
    assert found in said
    assert advice in said
    # What a file only imports is no task.
    assert "torch" not in said


def test_a_file_without_a_task_is_told_what_to_write(elsewhere, capsys):
    (elsewhere / "task.py").write_text("epochs = 3\n")
    assert "task.py defines no task. Define one, and name it as in task.py:task." in screen(
        capsys, "check", "task.py:task"
    )


def test_more_than_forty_mistakes_are_known():
    assert len(REFUSED) + len(WARNED) + len(REQUESTED) > 40


def test_a_search_says_its_doubts_before_it_draws(elsewhere, capsys):
    (elsewhere / "task.py").write_text(TASK.format(change=WARNED["a network that ends in softmax"][0]))
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "search",
                "task.py:task",
                "--evaluations",
                "1",
                "--workers",
                "0",
                "--no-final",
                "--recipe",
                "paper",
                *QUICK,
            ]
        )
    said = capsys.readouterr().out
    assert ended.value.code == 0, said
    assert "Check the task: The network's predictions are never negative and add up to 1" in said
    assert said.index("Check the task") < said.index("Best losses")


def test_a_task_without_mistakes_raises_no_doubts(elsewhere, capsys):
    for change in ("", MULTI_LABEL, REGRESSION):
        (elsewhere / "task.py").write_text(TASK.format(change=change))
        with pytest.raises(SystemExit):
            main(["check", "task.py:task", "--no-rates", *QUICK])
        said = capsys.readouterr().out
        assert "Check:" not in said
        assert "the metric is ξ₀ = " in said


@pytest.mark.parametrize(("bias", "ends"), [(0.2, ""), (-0.1, ", nn.Sigmoid()"), (0.1, ", nn.Sigmoid()")])
def test_small_positive_outputs_are_no_sigmoid(bias, ends, elsewhere, capsys):
    """Untrained networks differ in one constant; around 0 it may be positive by chance."""
    network = (
        "def network():\n"
        f"    made = nn.Sequential(nn.Linear(4, 3){ends})\n"
        f"    nn.init.constant_(made[0].bias, {bias})\n"
        "    nn.init.uniform_(made[0].weight, -0.01, 0.01)\n"
        "    return made"
    )
    (elsewhere / "task.py").write_text(TASK.format(change=MULTI_LABEL + network))
    with pytest.raises(SystemExit):
        main(["check", "task.py:task", "--no-rates", *QUICK])
    assert ("between 0 and 1" in capsys.readouterr().out) == bool(ends)


def test_check_says_what_a_search_does_by_itself_at_another_rate(elsewhere, capsys):
    (elsewhere / "task.py").write_text(
        TASK.format(change="recipe = Recipe(epochs=12, batch_size=16, learning_rate=0.003)")
    )
    with pytest.raises(SystemExit):
        main(["check", "task.py:task", "--rates", *QUICK])
    said = capsys.readouterr().out
    assert "ways to train with the standard loss were tried, as a search does first:" in said
    assert "Best with the standard loss: " in said
    assert "× the learning rate" in said or "Adam's usual rate" in said
    # Such a setting would switch off what a search does by itself.
    assert "search.learning_rate" not in said


def test_a_task_without_a_standard_loss_has_no_rates_to_try(elsewhere, capsys):
    (elsewhere / "task.py").write_text(TASK.format(change="recipe = Recipe(epochs=5)") + "task.standard = {}\n")
    with pytest.raises(SystemExit):
        main(["check", "task.py:task", "--rates", *QUICK])
    assert "not tried: the task names no standard loss" in capsys.readouterr().out


@pytest.mark.parametrize(("rate", "learns"), [(0.1, True), (1e4, False)])
def test_a_recipe_that_learns_nothing_is_named_and_none_of_its_rates_advised(elsewhere, capsys, rate, learns):
    change = (
        f"recipe = Recipe(epochs=5, learning_rate={rate})\ndef network():\n"
        "    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))"
    )
    (elsewhere / "task.py").write_text(TASK.format(change=change))
    with pytest.raises(SystemExit):
        main(["check", "task.py:task", "--rates", *QUICK])
    said = capsys.readouterr().out
    assert (
        "The network hardly learns in any of these: the best of 5 untrained networks scores 0." in said
    ) is not learns


def test_a_recipe_at_which_every_training_diverges_is_not_told_to_learn_nothing(elsewhere, capsys):
    (elsewhere / "task.py").write_text(TASK.format(change="recipe = Recipe(epochs=5, learning_rate=1e30)"))
    with pytest.raises(SystemExit) as ended:
        main(["check", "task.py:task", "--rates", *QUICK])
    said, complained = capsys.readouterr()
    assert ended.value.code == 1
    assert "No training with the standard loss has a score. With the recipe as given: diverged at step" in complained
    assert "has no score at any rate or step rule that was tried. First lower the learning rate in the recipe" in said
    assert "hardly learns" not in said


def test_a_metric_that_fails_on_the_whole_split_is_one_sentence(elsewhere, capsys):
    change = (
        "def metric(prediction, target):\n    assert len(target) == 64, 'too long'\n"
        "    return (prediction.argmax(dim=1) == target).float().mean().item()\n"
        "valid = (inputs[190:], targets[190:])"
    )
    (elsewhere / "task.py").write_text(TASK.format(change=change))
    with pytest.raises(SystemExit) as ended:
        main(["check", "task.py:task", "--no-rates", *QUICK])
    said = capsys.readouterr().err
    assert ended.value.code in (1, 2)
    assert "Traceback" not in said
    assert "AssertionError: too long, in task.py, line 27" in said


def test_a_value_of_the_wrong_type_is_named_from_python():
    with pytest.raises(RequestError, match="evaluations is 'many'; expected a whole number"):
        autoloss.search("tabular", evaluations="many")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"There is no device 'tpu:x'.*argument device of the task"):
        autoloss.SupervisedTask(lambda: None, [], [], "softmax", device="tpu:x")
