"""A found loss to take home: one Python file that imports torch alone, with the value and gradient of the tree.

Autograd adds up gradients in the order in which operations ran, and a tree evaluates its right operands first. Statements
are written in that order, and subtrees that carry a gradient are not merged, so value and gradient agree to the last bit.
Constants are plain numbers for the reader's sake: they lack the memory layout of `y`, so sums may round in another order.
Subtrees of the target alone are computed once. Functions are the package's own source: there is one definition of each.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from autoloss.errors import RequestError, unknown
from autoloss.formulas.infix import infix
from autoloss.formulas.own_source import call, is_own, source
from autoloss.formulas.simplify import latex, simplified
from autoloss.formulas.statements import RESERVED, Statements, variable
from autoloss.space.activated import fitting, inner_band
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.form import BranchForm
from autoloss.space.loss import MAIN, Loss
from autoloss.space.operators import EPSILON, OPERATORS, raised

LINE = 88
"""Characters of a line, the default of the common formatters."""
TITLE = 50
"""Characters of a title, which shares a line with other words; the rest gives way to an ellipsis."""


LOCAL = ("prediction", "target", "output", "positions", "valid", "shapes")
"""Variables of the methods that are written."""


def to_python(loss: Loss, forms: Mapping[str, BranchForm], *, title: str, facts: Mapping[str, str]) -> str:
    """Write a loss as a Python file, formatted, with one `nn.Module` for each branch; to be saved as UTF-8.

    Args:
        forms: One for each branch of the loss.
        title: What the loss is called; classes are named after it.
        facts: What else the file says about the loss, such as score, metric and run: label → text. Any text is safe.

    Raises:
        RequestError: A form is missing or lacks a leaf, or a tree holds an operator of a person's own that a file cannot hold.
    """
    _check(loss, forms)
    own = _own_functions(loss)
    names = _class_names(title, list(loss))
    classes = [_class(names[branch], branch, tree, forms[branch]) for branch, tree in loss.items()]
    functions, used = _functions("\n\n\n".join(classes), own)
    imports = ["import math\n"] * ("math" in used) + ["import torch", "from torch import Tensor, nn"]
    if "F" in used:
        imports.append("from torch.nn import functional as F")
    head = [_module_docstring(loss, forms, names, title, facts), "\n".join(imports)]
    if "EPSILON" in used:
        head.append(f"EPSILON = {EPSILON!r}")
    return "\n\n".join(head) + "\n\n\n" + "\n\n\n".join([*functions, *classes]) + "\n"


def to_json(
    loss: Loss, forms: Mapping[str, BranchForm], *, id: int | None, score: float | None, facts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a loss as plain values that JSON can hold; a score that is no number becomes None.

    Raises:
        RequestError: As `to_python`.
    """
    _check(loss, forms)
    shorter = simplified(loss, forms)
    return {
        "id": id,
        "formula": str(loss),
        "infix": infix(loss),
        "score": score if score is None or math.isfinite(score) else None,
        "branches": {
            name: {
                "formula": str(tree),
                "infix": infix(tree),
                "simplified": str(shorter[name]),
                "latex": {"found": latex(tree), "simplified": latex(shorter[name])},
                **forms[name].to_dict(),
            }
            for name, tree in loss.items()
        },
        "facts": dict(facts),
    }


_SPATIAL = '''\
def spatial(x: Tensor) -> Tensor:
    """View a tensor as (N, C, H, W), with H = W = 1 where there is no space."""
    if not 1 <= x.ndim <= 4:
        raise ValueError(f"expected (N, C, H, W) or fewer dimensions: {tuple(x.shape)}")
    return raised(x).reshape(*x.shape, *[1] * (4 - x.ndim))
'''

_FUNCTIONS = {
    **{function.__name__: inspect.getsource(function) for function in (raised,)},
    "spatial": _SPATIAL,
    **{function.__name__: inspect.getsource(function) for function in (fitting, inner_band)},
    **{
        row.function.__name__: inspect.getsource(row.function)
        for row in OPERATORS.values()
        if inspect.isfunction(row.function)
    },
}
"""All functions that a file may need, in the order in which it defines them."""


def _own_functions(loss: Loss) -> dict[str, str]:
    """Return the sources of a person's own operators, by the name of the function.

    Raises:
        RequestError: A file cannot hold one, or its name means something else there.
    """
    found: dict[str, str] = {}
    tree_leaves = frozenset[str]().union(*(tree.leaves for tree in loss.values()))
    for operator in (operator for tree in loss.values() for operator in tree.operators if is_own(operator)):
        text, name = source(operator), call(operator)
        if text and (name in {*RESERVED, *LOCAL, *tree_leaves} or found.get(name, text) != text):
            raise RequestError(
                f"The function {name!r} of your operator {operator.name!r} has a name that means something else in the file; "
                "give it another one."
            )
        if text:
            found[name] = text
    return found


def _functions(code: str, own: Mapping[str, str]) -> tuple[list[str], set[str]]:
    """Return the functions that the code needs, directly or not, and all names that occur."""
    known = {**_FUNCTIONS, **own}
    needed: list[str] = []
    while True:
        used = {node.id for node in ast.walk(ast.parse("\n".join([*needed, code]))) if isinstance(node, ast.Name)}
        found = [text.rstrip() for name, text in known.items() if name in used]
        if found == needed:
            return found, used
        needed = found


_PROBABILITIES = {
    "softmax": '''
    @staticmethod
    def activated(prediction: Tensor) -> Tensor:
        """Softmax over channels; one logit z stands for the two channels (0, z)."""
        logits = spatial(prediction)
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
        return logits.softmax(dim=1)
''',
    "sigmoid": '''
    @staticmethod
    def activated(prediction: Tensor) -> Tensor:
        """Sigmoid of each channel; one logit z stands for the softmax of (0, z)."""
        logits = spatial(prediction)
        if logits.shape[1] == 1:
            logits = torch.cat([torch.zeros_like(logits), logits], dim=1)
            return logits.softmax(dim=1)
        return logits.sigmoid()
''',
    "none": "",
}


def _class(name: str, branch: str, tree: Expression, form: BranchForm) -> str:
    of_branch = "" if branch == MAIN else f", for the branch {_clean(branch, TITLE)}"
    # Only the first line of a docstring may follow its quotes.
    summary = _wrapped(f"{infix(tree)}{of_branch}.", "    ")
    head = [f"class {name}(nn.Module):", *_docstring(summary, "    "), ""]
    return "\n".join(head + (_forward(tree, form) if form.from_prediction else _forward_of_leaves(tree, form)))


_HEAD = '''\
    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Sum channels and average over positions.

        Args:
            prediction: Raw, (N, C, H, W), (N, C, L), (N, C) or (N,).
            target: Class indices without the channel dimension, or values of the
                prediction's shape.
        """
        # Small numbers vanish in 16 bits, so this part of mixed precision is off.
        with torch.autocast(prediction.device.type, enabled=False):'''


def _forward(tree: Expression, form: BranchForm) -> list[str]:
    """Write the methods of a class that takes prediction and target."""
    writer = Statements(tree, ("y",), "y" if "y" in tree.leaves else "p")
    result = writer.expression()
    body = [f"p = {'spatial' if form.activation == 'none' else 'self.activated'}(prediction)"]
    if form.ignore_index is not None or "y" in tree.leaves:
        body.insert(0, "target = fitting(target, prediction)")
    if "y" in tree.leaves:
        body += [
            "y = self.encoded(target, p.shape[1]).to(p.dtype)",
            "if y.shape != p.shape:",
            '    shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"',
            '    raise ValueError(f"prediction and target do not fit: {shapes}")',
        ]
    body += [*writer.statements, f"output = {result}", *_reduction(form)]
    encoded = _encoded(form) if "y" in tree.leaves else ""
    return [
        *_HEAD.splitlines(),
        *(f"            {line}" for line in body),
        *(_PROBABILITIES[form.activation] + encoded).rstrip().splitlines(),
    ]


def _reduction(form: BranchForm) -> list[str]:
    lines = ["positions = p.numel() // p.shape[1]"]
    if form.ignore_index is not None:
        lines += [
            "if not target.is_floating_point():",
            f"    valid = spatial(target.unsqueeze(1)) != {form.ignore_index}",
            "    output = torch.where(valid, output, torch.zeros_like(output))",
            *(["    positions = valid.sum().clamp(min=1)"] if form.divide_by == "valid" else []),
        ]
    mean = "output.sum() / positions"
    return [*lines, f"return {mean}" if form.weight == 1 else f"return {float(form.weight)!r} * ({mean})"]


def _encoded(form: BranchForm) -> str:
    """Write the method that turns a target into y (N, C, H, W)."""
    width = {"one_hot": None, "edge": 1, "band": form.tolerance}[form.encoding]
    kind = "one-hot classes" if width is None else f"classes within {width} px of their border"
    lines = [
        "",
        "    @staticmethod",
        "    def encoded(target: Tensor, channels: int) -> Tensor:",
        f'        """Return {kind}, or values, as (N, C, H, W)."""',
        "        if target.is_floating_point():",
        "            values = spatial(target)",
    ]
    if form.activation != "none":
        lines += [
            "            if channels == 2 and values.shape[1] == 1:",
            "                values = torch.cat([1 - values, values], dim=1)",
        ]
    lines.append("        else:")
    known = "(target >= 0) & (target < channels)"
    if form.ignore_index is not None:
        lines.append(f"            ignored = target == {form.ignore_index}")
        known = f"({known}) | ignored"
    lines += [
        f"            known = {known}",
        "            if not torch.compiler.is_compiling() and not bool(known.all()):",
        '                raise ValueError(f"expected class indices below {channels}")',
        "            indices = torch.arange(channels, device=target.device)",
        "            indices = indices.view(-1, *[1] * (target.ndim - 1))",
        "            classes = target.unsqueeze(1) == indices",
        *(["            classes = classes & ~ignored.unsqueeze(1)"] if form.ignore_index is not None else []),
        "            values = spatial(classes.float())",
    ]
    lines.append(f"        return values{'' if width is None else f' * inner_band(values, {width})'}")
    return "\n".join(lines) + "\n"


def _forward_of_leaves(tree: Expression, form: BranchForm) -> list[str]:
    used = [name for name in form.leaves if name in tree.leaves] or [form.leaves[0]]
    writer = Statements(tree, (), used[0])
    result = writer.expression()
    return [
        f"    def forward(self, {', '.join(f'{variable(name)}: Tensor' for name in form.leaves)}) -> Tensor:",
        '        """Return one value for each element, (N, C, H, W), as the leaves have them.',
        "",
        "        The search took their sum over elements that count, divided it by the branch's",
        f"        number of positions, and gave it the weight {float(form.weight)!r}.",
        '        """',
        "        # Small numbers vanish in 16 bits, so this part of mixed precision is off.",
        f"        with torch.autocast({variable(used[0])}.device.type, enabled=False):",
        *(f"            {variable(name)} = raised({variable(name)})" for name in used),
        *(f"            {line}" for line in writer.statements),
        f"            return {result}",
    ]


def _module_docstring(
    loss: Loss, forms: Mapping[str, BranchForm], names: Mapping[str, str], title: str, facts: Mapping[str, str]
) -> str:
    """Say what the loss is, where it comes from and how to call it."""
    paragraphs = [_wrapped(f"{_clean(title, TITLE)}: a loss function for PyTorch.", "")]
    for branch, tree in loss.items():
        heading = "" if list(loss) == [MAIN] else f"Branch {_clean(branch, TITLE)}, class {names[branch]}:"
        paragraphs.append(_wrapped(heading, "") + _wrapped(infix(tree), "    ") + _wrapped(f"= {tree}", "    "))
    known = [_wrapped(f"- {_clean(label)}: {_clean(text)}", "  ", "") for label, text in facts.items()]
    if known:
        paragraphs.append([line for lines in known for line in lines])
    paragraphs.append(["In a training loop:"])
    first = next(iter(loss))
    called = "prediction, target" if forms[first].from_prediction else ", ".join(map(variable, forms[first].leaves))
    ending = "" if forms[first].from_prediction else ".sum()"
    paragraphs.append(
        [f"    criterion = {names[first]}()", f"    loss = criterion({called}){ending}", "    loss.backward()"]
    )
    if len(loss) > 1:
        paragraphs.append(["Call each class where the network computes its branch; add up what they return."])
    lines = [line for paragraph in paragraphs for line in [*paragraph, ""]]
    return "\n".join(_docstring(lines[:-1], ""))


def _docstring(lines: Sequence[str], indent: str) -> list[str]:
    """Quote lines of cleaned text; whatever they hold, nothing of it can end the string or escape a character."""
    quoted = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    if len(quoted) == 1:
        return [f'{indent}"""{quoted[0].strip()}"""']
    return [f'{indent}"""{quoted[0].strip()}', *quoted[1:], f'{indent}"""']


def _clean(text: str, limit: int = 1000) -> str:
    """Return a person's text as one line of printable characters."""
    line = "".join(character if character.isprintable() else "?" for character in " ".join(str(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _wrapped(text: str, indent: str, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text,
        # Quotes, and a mark or two that escaping adds.
        LINE - 6,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _class_names(title: str, branches: Sequence[str]) -> dict[str, str]:
    """Name the class of each branch after the title, in CamelCase; the word `Loss` keeps it from any other name."""
    names: dict[str, str] = {}
    for branch in branches:
        text = f"{_clean(title, TITLE)} {'' if branch == MAIN else _clean(branch, TITLE)}"
        ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        words = [word[0].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", ascii_text)]
        stem = re.sub(r"^\d+", "", "".join(words))[:TITLE] or "Found"
        stem = stem[0].upper() + stem[1:] + ("" if "Loss" in stem else "Loss")
        numbered = (stem if number == 1 else f"{stem}{number}" for number in count(1))
        names[branch] = next(name for name in numbered if name not in names.values())
    return names


def _check(loss: Loss, forms: Mapping[str, BranchForm]) -> None:
    for name, tree in loss.items():
        if name not in forms:
            raise unknown("form of the branch", name, forms)
        if strange := sorted(tree.leaves - {CONSTANT} - set(forms[name].leaves)):
            raise RequestError(
                f"{str(tree)!r} has the leaves {', '.join(strange)}; the branch {name!r} has {', '.join(forms[name].leaves)}."
            )
