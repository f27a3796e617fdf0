"""A loss taken home: one file of torch alone, with the value and gradient of the tree, whatever its title says."""

import ast
import dataclasses
import json
import math
import re
import runpy
import subprocess
import sys
from dataclasses import dataclass, field
from random import Random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import autoloss
from autoloss import zoo
from autoloss.errors import RequestError
from autoloss.formulas.python_file import to_python
from autoloss.formulas.statements import write_line
from autoloss.proposing.initialization import initial_expression
from autoloss.proposing.mutation import mutate
from autoloss.run.export import to_json
from autoloss.space.activated import ActivatedBranch, fitting
from autoloss.space.branch import Role
from autoloss.space.expression import CONSTANT, Alphabet, Expression, build, leaf
from autoloss.space.form import BranchForm
from autoloss.space.loss import Loss, bind
from autoloss.space.one_hot import LEAST
from autoloss.space.operators import OPERATORS, Operator, upcast
from autoloss.space.parsing import parse

ROLES = {"y": Role.TARGET, "p": Role.PREDICTION}
NAMES = (
    "seg/miou",
    "seg/fwiou",
    "seg/gacc",
    "seg/macc",
    "seg/biou",
    "seg/bf1",
    "baseline/ce",
    "baseline/bce",
    "baseline/mse",
)
BATCHES = 100


def grown(seed):
    """A tree as evolution makes them."""
    rng = Random(seed)
    alphabet = Alphabet(ROLES)
    tree = initial_expression(alphabet, rng.choice((2, 3, 3, 4)), rng)
    for _ in range(rng.randrange(6)):
        tree = mutate(tree, alphabet, rng)
    return tree


TREES = {f"tree {seed}": grown(seed) for seed in range(40)}
LOSSES = {name: zoo.get(name)["main"] for name in NAMES}


def classes(generator, shape, channels=3, ignored=0.0, dtype=torch.long):
    target = torch.randint(channels, shape, generator=generator)
    if ignored:
        target[torch.rand(shape, generator=generator) < ignored] = 255
    return target.to(dtype)


@dataclass(frozen=True)
class Use:
    """A branch and a way to draw its batches: a prediction's shape, and a target from a generator."""

    shape: tuple[int, ...]
    target: object
    options: dict = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    autocast: bool = False

    def batches(self, seed, count):
        generator = torch.Generator().manual_seed(seed)
        return [
            ((2 * torch.randn(self.shape, generator=generator)).to(self.dtype), self.target(generator))
            for _ in range(count)
        ]


MAPS, MAP = (2, 3, 6, 5), (2, 6, 5)
USES = {
    "softmax": Use(MAPS, lambda g: classes(g, MAP)),
    "sigmoid": Use(MAPS, lambda g: classes(g, MAP), {"activation": "sigmoid"}),
    "several labels": Use(MAPS, lambda g: classes(g, MAPS, 2), {"activation": "sigmoid"}),
    "several labels, some missing": Use(
        MAPS, lambda g: classes(g, MAPS, 2, 0.2), {"activation": "sigmoid", "ignore_index": 255, "divide_by": "valid"}
    ),
    "none": Use(MAPS, lambda g: torch.rand(MAPS, generator=g), {"activation": "none"}),
    "heatmaps in 16 bits": Use(
        MAPS, lambda g: torch.rand(MAPS, generator=g).half(), {"activation": "none"}, torch.half
    ),
    "numbers": Use((7,), lambda g: torch.randn(7, generator=g), {"activation": "none"}),
    "one logit": Use((2, 1, 6, 5), lambda g: classes(g, MAP, 2)),
    "one logit, sigmoid, floats": Use((9, 1), lambda g: torch.rand(9, 1, generator=g), {"activation": "sigmoid"}),
    "one logit, booleans": Use((9,), lambda g: classes(g, (9,), 2, dtype=torch.bool)),
    "ignored": Use(MAPS, lambda g: classes(g, MAP, 3, 0.2), {"ignore_index": 255}),
    "ignored, bytes": Use(MAPS, lambda g: classes(g, MAP, 3, 0.2, torch.uint8), {"ignore_index": 255}),
    "valid": Use(MAPS, lambda g: classes(g, MAP, 3, 0.2), {"ignore_index": 255, "divide_by": "valid", "weight": 0.3}),
    "valid, all ignored": Use(MAPS, lambda g: classes(g, MAP, 3, 1.1), {"ignore_index": 255, "divide_by": "valid"}),
    "valid, values": Use(
        MAPS, lambda g: torch.rand(MAPS, generator=g), {"ignore_index": 255, "divide_by": "valid", "activation": "none"}
    ),
    "edge": Use(MAPS, lambda g: classes(g, MAP, 3, 0.2), {"ignore_index": 255, "encoding": "edge"}),
    "band": Use(MAPS, lambda g: classes(g, MAP), {"encoding": "band", "tolerance": 2, "weight": 10.0}),
    "rows": Use((8, 3), lambda g: classes(g, (8,))),
    "series": Use((2, 3, 7), lambda g: classes(g, (2, 7), 3, 0.2), {"ignore_index": 255}),
    "double": Use(MAPS, lambda g: classes(g, MAP), dtype=torch.double),
    "bfloat16": Use(MAPS, lambda g: classes(g, MAP), dtype=torch.bfloat16, autocast=True),
}
# Every loss of the zoo in every use, and all on many batches where it was found; trees of all kinds beside them.
CASES = [(name, use, BATCHES if use == "softmax" else 2) for name in NAMES for use in USES]
CASES += [(name, list(USES)[number % len(USES)], 20) for number, name in enumerate(TREES)]

SCRIPT = """
import importlib.util, pathlib, sys, torch

def load(path):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return next(value for key, value in vars(module).items() if "Loss" in key)()

def measured(criterion, prediction, target, autocast):
    prediction = prediction.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = criterion(prediction, target)
    if value.requires_grad:
        value.backward()
    return value.detach(), torch.zeros_like(prediction) if prediction.grad is None else prediction.grad

folder = pathlib.Path(sys.argv[1])
criteria = {path.stem: load(path) for path in sorted(folder.glob("*.py"))}
results = {}
for stem, (autocast, predictions, targets) in torch.load(folder / "batches.pt").items():
    pairs = [measured(criteria[stem], *batch, autocast) for batch in zip(predictions, targets)]
    results[stem] = [torch.stack(found) for found in zip(*pairs)]
torch.save(results, folder / "results.pt")
assert not [name for name in sys.modules if name.split(".")[0] == "autoloss"]
"""


def tree_of(name):
    return {**LOSSES, **TREES}[name]


def branch_of(use):
    return ActivatedBranch(**USES[use].options)


def exported(tree, branch, title="a loss", **facts):
    return to_python(Loss(tree), {"main": branch.form()}, title=title, facts=facts)


@pytest.fixture(scope="module")
def exported_cases(tmp_path_factory):
    """All cases as files, and what they computed in a process that has no autoloss."""
    folder = tmp_path_factory.mktemp("exported")
    batches = {}
    for number, (name, use, count) in enumerate(CASES):
        text = exported(tree_of(name), branch_of(use), name, Use=use)
        # The shorter way of class indices, for these small batches too.
        text = text.replace(f"prediction.numel() >= {LEAST}", "prediction.numel() >= 0")
        (folder / f"case{number}.py").write_text(text, encoding="utf-8")
        predictions, targets = zip(*USES[use].batches(number, count), strict=True)
        batches[f"case{number}"] = (USES[use].autocast, torch.stack(predictions), torch.stack(targets))
    torch.save(batches, folder / "batches.pt")
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = torch.load(folder / "results.pt", weights_only=True)
    return folder, {case: (batches[f"case{n}"], results[f"case{n}"]) for n, case in enumerate(CASES)}


def measured(criterion, prediction, target, autocast):
    prediction = prediction.clone().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        value = criterion(prediction, target)
    if value.requires_grad:
        value.backward()
    return value.detach(), torch.zeros_like(prediction) if prediction.grad is None else prediction.grad


def by_the_tree(name, use, autocast, predictions, targets):
    bound = dataclasses.replace(bind({"main": tree_of(name)}, {"main": branch_of(use)})["main"], least=0)

    def criterion(prediction, target):
        return bound(prediction, {"target": fitting(target, prediction, branch_of(use).activation)})

    pairs = [measured(criterion, *batch, autocast) for batch in zip(predictions, targets, strict=True)]
    return [torch.stack(found) for found in zip(*pairs, strict=True)]


def test_value_and_gradient_are_the_trees(exported_cases):
    finite = 0
    for (name, use, _), (batches, results) in exported_cases[1].items():
        # Without constants to the last bit. A gradient that is zero but for rounding has no relative error.
        exact = CONSTANT not in tree_of(name).leaves
        tolerance = 0 if exact else 1e-9 if use == "double" else 1e-6
        for found, wanted in zip(results, by_the_tree(name, use, *batches), strict=True):
            assert found.dtype == wanted.dtype
            for one, other in zip(found, wanted, strict=True):
                scale = other.nan_to_num(0, 0, 0).abs().max().item()
                same = torch.allclose(one, other, rtol=0, atol=tolerance * max(scale, 0.1), equal_nan=True)
                assert same, f"{name} as {use}: {tree_of(name)}\n{one}\n{other}"
        finite += bool(results[1].isfinite().all() and results[1].any())
    assert finite > len(CASES) / 2


@pytest.mark.parametrize("name", ["seg/miou", "seg/gacc"])
@pytest.mark.parametrize("side", [8, 64])
def test_the_file_gives_what_criterion_gives(name, side, tmp_path):
    """Small predictions are evaluated at all channels, large ones are not."""
    generator = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(2, 3, side, side, generator=generator), classes(generator, (2, side, side))
    found = imported(exported(zoo.get(name)["main"], ActivatedBranch()), tmp_path / "file.py")
    for one, other in zip(
        measured(found, prediction, target, False),
        measured(zoo.get(name).criterion(), prediction, target, False),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_every_file_imports_torch_alone_and_is_checked_and_formatted(exported_cases):
    folder = exported_cases[0]
    for path in folder.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in imported} - {"math", "typing"} == {"torch"}
    assert ruff("check", "--select", "E4,E7,E9,F,I,B,UP,SIM,RET,PIE,RUF", folder) == ""
    for width in (88, 120):
        assert ruff("format", "--check", "--quiet", "--line-length", str(width), folder) == ""


def ruff(command, *options):
    """Run ruff as on a machine without any configuration; return what it complains about."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", command, "--isolated", "--no-cache", *map(str, options)],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


ALWAYS = {"upcast", "spatial", "to_logits", "activate", "fitting", "encode", "mark_counted", "check_range"}
"""What any file with prediction and target holds."""
ONE_HOT = {"index_classes", "separate_channels"}
"""What a file of a formula that is shorter for classes holds besides, with the class `SeparateSoftmax`."""


def functions(text):
    """All functions but those of autograd."""
    found = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    return found - {"setup_context", "backward"}


def test_a_file_holds_only_what_its_formula_needs():
    plain = ActivatedBranch(activation="none")
    assert functions(exported(parse("(p - y)**2"), plain)) == {*ALWAYS, "forward"}
    assert "EPSILON =" not in exported(parse("(p - y)**2"), plain)
    assert "max_pool" in functions(exported(parse("min_pool(p) * y"), plain))
    # A pool of a constant is that constant: its name in the docstring calls for no function.
    assert "max_pool" not in functions(exported(parse("y * p + max_pool(1)"), plain))
    assert "fitting" not in functions(exported(parse("p * p"), plain))


def statements(text):
    code = exported(parse(text), ActivatedBranch(activation="none"))
    found = code[code.index('not fit: {shapes}")') :].splitlines()[1:]
    return [line.strip() for line in found[: next(i for i, line in enumerate(found) if "positions" in line)]]


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("-y * log(p)", ["output = -(y * signed_log(p))"]),
        ("(1 - p)**2 * y", ["output = (1 - p) ** 2 * y"]),
        ("y + (p + (y - 0.5))", ["output = y + (p + (y - 0.5))"]),
        ("y * p / 3", ["output = 1 / 3 * (y * p)"]),
        ("(-p) * -(-y)", ["output = -p * -(-y)"]),
        ("exp(p) + log(p) * y", ["product = signed_log(p) * y", "output = torch.exp(p) + product"]),
        ("p * sqrt(y) + sqrt(y)", ["output = p * signed_sqrt(y) + signed_sqrt(y)"]),
        ("tanh(2) * p * y", ["output = torch.tanh(torch.full_like(y, 2)) * p * y"]),
        ("p * y + inv(1 - 1)", ["output = p * y + inverse(torch.full_like(y, 0))"]),
    ],
)
def test_statements_read_like_the_formula(formula, expected):
    assert statements(formula) == expected


def test_a_very_deep_tree_is_written_without_recursion():
    deep = Expression((OPERATORS["mul"], "y", *[OPERATORS["neg"]] * 1200, "p"))
    assert max(map(len, statements_of(exported(deep, ActivatedBranch())))) <= 88


def statements_of(text):
    return [line for line in text[text.index("class ") :].splitlines() if " = " in line]


HOSTILE = (
    '"""\nimport os\nos.abort()\n"""',
    "ends in a backslash \\",
    'ends in quotes """"',
    "\\N{BULLET} \\x41 \\",
    "\x00\x0c\u2028\x85\ud800\u202e",
    "# -*- coding: utf-7 -*-\n# -*- coding: utf-7 -*-",
    "{0} %s ${x} {{jinja}}",
    "'''",
    "",
    "12 🙂 été",
    "x" * 5000,
)


@pytest.mark.parametrize("title", HOSTILE)
def test_a_hostile_text_is_only_text(title, tmp_path):
    tree = parse("-y * log(p)")
    forms = {title: BranchForm(), "other": BranchForm()}
    for text, count in (
        (exported(tree, ActivatedBranch(), title, **{title: title}), 1),
        (to_python(Loss({title: tree, "other": tree}), forms, title=title, facts={title: title}), 2),
    ):
        found = ast.parse(text.encode("utf-8"))
        kinds = [type(node).__name__ for node in found.body]
        kinds.remove("ClassDef")
        functions = ["FunctionDef"] * (len(ALWAYS) + len(ONE_HOT) + 1)
        imports = ["Import", "ImportFrom", "Import", "ImportFrom"]
        assert sorted(kinds) == sorted(["Expr", *imports, "Assign", *functions, *["ClassDef"] * count])
        module = tmp_path / "hostile.py"
        module.write_bytes(text.encode("utf-8"))
        assert ruff("check", module) == ""
        assert ruff("format", "--check", "--quiet", module) == ""


def test_titles_and_facts_are_in_the_docstring_as_they_were():
    title, fact = 'a "quoted" \\path\\new', "C:\\runs\\x, \"seed\" '0'"
    docstring = ast.get_docstring(ast.parse(exported(parse("p * y"), ActivatedBranch(), title, Run=fact)))
    assert docstring.startswith(f"{title}: a loss")
    assert f"- Run: {fact}\n" in docstring
    assert "    p·y\n    = mul(p, y)\n" in docstring
    assert "criterion = AQuotedPathNewLoss()" in docstring


def test_a_loss_of_several_branches_has_a_class_for_each():
    loss = Loss({"mask": parse("-y * log(p)"), "heat_map": parse("(p - y)**2"), "heatMap": parse("p * y")})
    forms = {
        "mask": BranchForm(ignore_index=255),
        "heat_map": BranchForm(activation="none", weight=10.0),
        "heatMap": BranchForm(activation="none"),
    }
    text = to_python(loss, forms, title="toy #3", facts={})
    names = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert names == ["SeparateSoftmax", "Toy3MaskLoss", "Toy3HeatMapLoss", "Toy3HeatMapLoss2"]
    assert "return 10.0 * (output.sum() / positions)" in text


def imported(text, path):
    import importlib.util

    path.write_text(text, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return next(value for key, value in vars(module).items() if "Loss" in key)()


def test_a_branch_of_areas_gives_a_function_of_its_leaves(tmp_path):
    form = BranchForm(leaves=("i", "u", "e"), from_prediction=False, weight=10.0)
    loss = zoo.get("det/rcnn_reg")
    text = to_python(loss, {"main": form}, title="det/rcnn_reg", facts={})
    assert "def forward(self, i: Tensor, u: Tensor, e: Tensor) -> Tensor:" in text
    assert "    loss = 10.0 * criterion(i, u, e).sum() / positions\n" in text
    leaves = {name: torch.rand(5, 1, 1, 1, generator=torch.Generator().manual_seed(k)) for k, name in enumerate("iue")}
    found = imported(text, tmp_path / "areas.py")(**leaves)
    assert torch.equal(found, loss["main"].evaluate(leaves))
    assert ruff("check", tmp_path / "areas.py") == ""


def test_leaves_that_python_or_the_file_needs_get_another_name(tmp_path):
    tree = build("add", build("exp", leaf("lambda")), build("mul", leaf("F"), leaf("F")))
    form = BranchForm(leaves=("lambda", "F"), from_prediction=False)
    criterion = imported(to_python(Loss(tree), {"main": form}, title="odd", facts={}), tmp_path / "odd.py")
    ones = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    assert criterion(ones, F_=ones) == tree.evaluate({"lambda": ones, "F": ones})


@pytest.mark.parametrize(
    ("metric", "target", "band"), [("bf1", "edge", "inner_band(y, 1)"), ("biou", "band", "inner_band(y, 1)")]
)
def test_a_boundary_loss_takes_its_target_along(metric, target, band, tmp_path):
    """What a search for BF1 or BIoU stores of its branch makes edges or bands of class indices in the file too."""
    branch = autoloss.tasks.get("digits-seg", metric=metric, train=2, valid=1, test=1, size=32).branches["main"]
    assert branch.encoding == target
    stored = json.loads(json.dumps(branch.form().to_dict()))
    loss = zoo.get(f"seg/{metric}")
    text = to_python(loss, {"main": BranchForm(**stored)}, title="boundary", facts={})
    assert band in text
    prediction = torch.randn(1, 2, 12, 12, generator=torch.Generator().manual_seed(0))
    labels = (torch.arange(12) >= 6).long().expand(1, 12, 12)
    wanted = loss.criterion(target=target, tolerance=branch.tolerance)(prediction, labels)
    assert imported(text, tmp_path / f"{metric}.py")(prediction, labels) == wanted
    assert wanted != loss.criterion()(prediction, labels)


def test_wrong_shapes_are_refused_where_the_tree_refuses_them(tmp_path):
    criterion = imported(exported(parse("-y * log(p)"), ActivatedBranch()), tmp_path / "shapes.py")
    with pytest.raises(ValueError, match=r"\(2, 3, 4, 4\) and \(2, 1, 4, 4\)"):
        criterion(torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match=r"the shape \(1, 3, 2, 2, 2, 2\); expected \(N, C, D, H, W\)"):
        criterion(torch.zeros(1, 3, 2, 2, 2, 2), torch.zeros(1, 2, 2, 2, 2, dtype=torch.long))


def test_a_file_compiles_in_one_graph(tmp_path):
    script = (
        SCRIPT[: SCRIPT.index("folder =")]
        + """
criterion = load(pathlib.Path(sys.argv[1]))
compiled = torch.compile(criterion, backend="aot_eager", fullgraph=True)
prediction, target = torch.randn(2, 3, 6, 5), torch.randint(3, (2, 6, 5))
found, wanted = measured(compiled, prediction, target, True), measured(criterion, prediction, target, True)
torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7)
"""
    )
    path = tmp_path / "compiled.py"
    branch = ActivatedBranch(ignore_index=255, encoding="band", divide_by="valid")
    path.write_text(exported(LOSSES["seg/bf1"], branch), encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_infix_line_reads_back_to_the_same_function():
    generator = torch.Generator().manual_seed(0)
    leaves = {name: torch.rand(1, 2, 3, 3, generator=generator, dtype=torch.double) for name in ROLES}
    for name, tree in {**LOSSES, **TREES, **{str(seed): grown(seed) for seed in range(100, 300)}}.items():
        text = (
            re.sub(r"√(\w+)", r"sqrt(\1)", write_line(tree))
            .replace("√(", "sqrt(")
            .replace("·", "*")
            .replace("²", "**2")
        )
        found, wanted = parse(text).evaluate(leaves), tree.evaluate(leaves)
        torch.testing.assert_close(
            found, wanted, rtol=1e-6, atol=1e-6, equal_nan=True, msg=lambda t, n=name: f"{n}: {t}"
        )
    assert write_line(parse("-y * log(p)")) == "-y·log(p)"
    assert write_line(parse("-(-y) / (1 + p)")) == "-(-y) / (1 + p)"


def test_json_holds_all_that_the_file_is_made_of():
    form = ActivatedBranch(encoding="edge", ignore_index=255, weight=2.0).form()
    loss = Loss("-y * log(p)")
    values = to_json(loss, {"main": form}, id=7, score=float("nan"), facts={"Metric": "miou"})
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert (values["id"], values["score"], values["formula"], values["infix"]) == (7, None, str(loss), "-y·log(p)")
    texts = ("formula", "infix", "simplified", "latex")
    assert values["branches"]["main"]["latex"] == dict.fromkeys(("found", "simplified"), r"-y \cdot \log\left(p\right)")
    fields = {key: value for key, value in values["branches"]["main"].items() if key not in texts}
    assert BranchForm(**fields) == form
    assert values["facts"] == {"Metric": "miou"}


class Other(ActivatedBranch):
    """Overrides what decides the leaves."""

    def leaves(self, prediction, context):
        return dict.fromkeys(("y", "p"), prediction)


class Judged(ActivatedBranch):
    """Overrides only what a search needs."""

    def metric(self, prediction, context):
        return 0.0


def test_a_form_says_when_the_branch_is_no_activated_one():
    assert Judged(activation="sigmoid").form() == BranchForm(activation="sigmoid")
    assert Other(activation="none").form().activation == "none"
    form = Other().form()
    assert not form.from_prediction
    assert BranchForm(**json.loads(json.dumps(form.to_dict()))) == form


@pytest.mark.parametrize(
    "wrong",
    [
        {"leaves": ["p): import os #"]},
        {"leaves": []},
        {"ignore_index": "255; import os"},
        {"tolerance": 1.5},
        {"weight": float("nan")},
        {"weight": "heavy"},
        {"activation": "relu"},
        {"encoding": "x"},
        {"colour": 1},
    ],
)
def test_a_damaged_form_is_refused(wrong):
    with pytest.raises(RequestError):
        BranchForm(**wrong)


def root(x: torch.Tensor) -> torch.Tensor:
    return torch.sign(x) * x.abs() ** (1 / math.pi)


def closer(x: Tensor, y: Tensor) -> Tensor:
    return F.softplus(x - y)


def counted(x: torch.Tensor) -> torch.Tensor:
    return x * BATCHES


def test_own_operators_go_along_with_their_source(tmp_path):
    """Functions of torch are called by their names; a variable never takes a function's."""
    own = {"root": Operator("root", 1, root), "closer": Operator("closer", 2, closer)}
    own |= {"sine": Operator("sine", 1, torch.sin), "soft": Operator("soft", 1, F.softsign)}
    formula = "closer(p, y) * root(sqrt(y)) + root(sqrt(y)) * sine(p) + soft(closer(p, 2))"
    tree = parse(formula, operators={**OPERATORS, **own})
    text = exported(tree, ActivatedBranch())
    assert {"root", "closer"} <= functions(text)
    assert "torch.sin(p)" in text
    assert text.count("import math\n") == 1
    criterion = imported(text, tmp_path / "own.py")
    prediction, target = USES["softmax"].batches(0, 1)[0]
    wanted = Loss(tree).criterion()
    for found, expected in zip(
        measured(criterion, prediction, target, False), measured(wanted, prediction, target, False), strict=True
    ):
        torch.testing.assert_close(found, expected)
    assert ruff("check", tmp_path / "own.py") == ""


def FoundLoss(x: torch.Tensor) -> torch.Tensor:  # noqa: N802
    return 2 * x


def test_a_class_is_not_named_as_an_own_function(tmp_path):
    tree = build(Operator("twice", 1, FoundLoss), leaf("p"))
    text = to_python(Loss(tree), {"main": ActivatedBranch().form()}, title="Found", facts={})
    assert "criterion = FoundLoss2()" in text
    (tmp_path / "named.py").write_text(text, encoding="utf-8")
    criterion = runpy.run_path(str(tmp_path / "named.py"))["FoundLoss2"]()
    assert criterion(torch.zeros(3, 2), torch.zeros(3, dtype=torch.long)).item() == 2.0


def test_what_cannot_be_taken_home_is_refused():
    own = build(Operator("double", 1, lambda x: 2 * x, "2{0}"), leaf("p"))
    with pytest.raises(RequestError, match=r"Your operator 'double' cannot be exported.*not a function defined by def"):
        exported(own, ActivatedBranch())
    named_otherwise = build(Operator("shadow", 1, upcast), leaf("p"))
    with pytest.raises(RequestError, match=r"'upcast' of your operator 'shadow': the exported file uses that name"):
        exported(named_otherwise, ActivatedBranch())
    foreign = build(Operator("counted", 1, counted), leaf("p"))
    with pytest.raises(RequestError, match="it uses BATCHES; an exported file has only torch, F"):
        exported(foreign, ActivatedBranch())
    with pytest.raises(RequestError, match="has the leaves i"):
        exported(parse("i * p"), ActivatedBranch())
    with pytest.raises(RequestError, match="no form of the branch named 'main'"):
        to_python(Loss("p * y"), {}, title="", facts={})


@pytest.mark.parametrize("shape", [(6, 1), (6,)])
def test_counts_are_values_where_there_is_one_output(shape, tmp_path):
    branch = ActivatedBranch(activation="none")
    counts, prediction = torch.tensor([0, 3, 1, 0, 7, 2]), torch.tensor([0.5, 3.0, 2.0, 0.0, 7.0, 0.0]).reshape(shape)
    wanted = (prediction.flatten() - counts).square().mean()
    for found in (
        Loss("(p - y)**2").criterion("none"),
        imported(exported(parse("(p - y)**2"), branch), tmp_path / f"{len(shape)}.py"),
    ):
        for target in (counts, counts.reshape(shape), counts.float().reshape(shape), torch.zeros_like(counts)):
            expected = wanted if target.any() else prediction.square().mean()
            assert found(prediction, target).item() == pytest.approx(expected.item())


def test_a_loss_of_the_zoo_has_its_own_activation_and_encoding(tmp_path):
    values = torch.tensor([[2.0], [-3.0]])
    assert zoo.get("baseline/mse").criterion()(values, values).item() == 0
    for number, loss in enumerate(("baseline/mse", zoo.get("baseline/mse"))):
        path = autoloss.export(loss, tmp_path / f"squares_{number}.py")
        assert imported(path.read_text(), path)(values, values).item() == 0
    assert zoo.get("baseline/bce").criterion().branch.activation == "sigmoid"
    assert zoo.get("baseline/bce").criterion("softmax").branch.activation == "softmax"
    for folder in ("text", "tree"):
        (tmp_path / folder).mkdir()
    written = [
        autoloss.export(loss, tmp_path / name / "entropy.py").read_text()
        for name, loss in {"text": "-y * log(p)", "tree": autoloss.parse("-y * log(p)")}.items()
    ]
    assert written[0] == written[1]
    assert "inner_band(y, 1)" in autoloss.export("seg/bf1", tmp_path / "edges.py").read_text()
    for name in ("shelf/pair_brier", "det/rcnn_reg"):
        with pytest.raises(RequestError, match="This loss is for predictions of the kind"):
            zoo.get(name).criterion()
