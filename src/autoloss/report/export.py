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
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from itertools import count
from keyword import iskeyword
from typing import Any

import torch

from autoloss.errors import RequestError, unknown
from autoloss.space.activated import ActivatedBranch, Divisor, Encoding, fitting, inner_band
from autoloss.space.branch import Activation, Branch
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.loss import MAIN, Loss
from autoloss.space.operators import EPSILON, OPERATORS, Operator, raised

LINE = 88
"""Characters of a line, the default of the common formatters."""
TITLE = 50
"""Characters of a title, which shares a line with other words; the rest gives way to an ellipsis."""
INLINE = 52
"""Characters of a formula that still stands in one statement, so that no statement needs a second line."""
EXACT = 2**24
"""Natural numbers up to here are exact in float32."""

SUM, PRODUCT, SIGN, POWER, ATOM = range(5)
"""How tightly a text binds."""

_NOUNS = {
    "add": "total",
    "mul": "product",
    "neg": "negated",
    "abs": "magnitude",
    "inv": "reciprocal",
    "log": "logarithm",
    "exp": "exponential",
    "tanh": "squashed",
    "square": "squared",
    "sqrt": "root",
    "mean_nhw": "mean",
    "mean_c": "channel_mean",
    "max_pool": "maximum",
    "min_pool": "minimum",
}
"""What a statement calls the result of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchForm:
    """What the export of a branch's tree needs to know of the branch; stored with a run, so that no task is needed.

    Args:
        leaves: Names of the leaves, in the branch's order.
        from_prediction: The exported module takes raw prediction and target, as `ActivatedBranch` does. Otherwise (boxes) it
            takes the leaves, and the other arguments but `weight` mean nothing.

    Raises:
        RequestError: A value that no branch has; none of them can bring foreign text into a file.
    """

    leaves: tuple[str, ...] = ("y", "p")
    from_prediction: bool = True
    activation: Activation = "softmax"
    encoding: Encoding = "one_hot"
    tolerance: int = 5
    ignore_index: int | None = None
    divide_by: Divisor = "all"
    weight: float = 1.0

    def __post_init__(self) -> None:
        strange = [name for name in self.leaves if not _is_name(name)]
        whole = [self.tolerance] if self.ignore_index is None else [self.tolerance, self.ignore_index]
        if strange or not self.leaves:
            raise RequestError(f"A branch's leaves need names that Python can use; found {self.leaves!r}.")
        if any(type(number) is not int for number in whole) or not _is_number(self.weight):
            raise RequestError(f"tolerance and ignore_index are whole numbers, weight a finite one; found {self}.")
        if self.from_prediction:
            # The branch itself knows its options and refuses others.
            self._branch()

    @classmethod
    def of(cls, branch: Branch) -> BranchForm:
        """Read the form off a branch; one that overrides what `ActivatedBranch` does is known by its leaves only."""
        decisive = ("leaves", "encoded", "mask", "divisor")
        leaves, weight = tuple(branch.leaves_and_roles), float(branch.weight)
        if not isinstance(branch, ActivatedBranch) or any(
            getattr(type(branch), name) is not getattr(ActivatedBranch, name) for name in decisive
        ):
            return cls(leaves=leaves, from_prediction=False, weight=weight)
        return cls(
            leaves=leaves,
            activation=branch.activation,
            encoding=branch.encoding,
            tolerance=int(branch.tolerance),
            ignore_index=None if branch.ignore_index is None else int(branch.ignore_index),
            divide_by=branch.divide_by,
            weight=weight,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can hold."""
        return {**asdict(self), "leaves": list(self.leaves)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> BranchForm:
        """Read what `to_dict` returned.

        Raises:
            RequestError: An unknown field, or a value that no branch has.
        """
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                raise unknown("field of a branch's form", name, known)
        return cls(**{**values, "leaves": tuple(values.get("leaves", ("y", "p")))})

    def _branch(self) -> ActivatedBranch:
        return ActivatedBranch(
            activation=self.activation,
            encoding=self.encoding,
            tolerance=self.tolerance,
            ignore_index=self.ignore_index,
            divide_by=self.divide_by,
        )


def to_python(loss: Loss, forms: Mapping[str, BranchForm], *, title: str, facts: Mapping[str, str]) -> str:
    """Write a loss as a Python file, formatted, with one `nn.Module` for each branch; to be saved as UTF-8.

    Args:
        forms: One for each branch of the loss.
        title: What the loss is called; classes are named after it.
        facts: What else the file says about the loss, such as score, metric and run: label → text. Any text is safe.

    Raises:
        RequestError: A form is missing or lacks a leaf, or a tree holds an operator that is not of Table 1.
    """
    _check(loss, forms)
    names = _class_names(title, list(loss))
    classes = [_class(names[branch], branch, tree, forms[branch]) for branch, tree in loss.items()]
    functions, used = _functions("\n\n\n".join(classes))
    imports = ["import torch", "from torch import Tensor, nn"]
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
    return {
        "id": id,
        "formula": str(loss),
        "infix": infix(loss),
        "score": score if score is None or math.isfinite(score) else None,
        "branches": {
            name: {"formula": str(tree), "infix": infix(tree), **forms[name].to_dict()} for name, tree in loss.items()
        },
        "facts": dict(facts),
    }


def infix(formula: Loss | Expression) -> str:
    """Return a formula as one line for readers, `-y·log(p)`; numbers made of the constant 1 are computed."""
    if isinstance(formula, Loss):
        single = len(formula) == 1 and MAIN in formula
        return infix(formula[MAIN]) if single else "; ".join(f"{name}: {infix(tree)}" for name, tree in formula.items())
    stack: list[_Piece] = []
    for symbol in reversed(formula.symbols):
        if isinstance(symbol, str):
            stack.append(_Piece(symbol, ATOM, number=Fraction(1) if symbol == CONSTANT else None))
            continue
        parts = tuple(stack.pop() for _ in range(symbol.arity))
        number = _number(symbol, parts)
        if number is None:
            text, level = _infix(symbol, parts)
        else:
            text, level = str(number), ATOM if number.denominator == 1 and number >= 0 else PRODUCT
        stack.append(_Piece(text, level, number, symbol.name, parts))
    return stack.pop().text


@dataclass(frozen=True, slots=True)
class _Piece:
    """A subtree as text.

    Args:
        number: Its value where it is a rational constant.
        operator: Name of its root; empty for a leaf and for what a statement has named.
        builds: To evaluate the text adds to autograd's graph.
    """

    text: str
    level: int
    number: Fraction | None = None
    operator: str = ""
    parts: tuple[_Piece, ...] = ()
    builds: bool = False
    name: str = ""

    def within(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


def _number(operator: Operator, parts: Sequence[_Piece]) -> Fraction | None:
    """Return the value of a constant subtree where it is a rational number that float32 takes well."""
    numbers = [part.number for part in parts if part.number is not None]
    if len(numbers) < len(parts):
        return None
    first, last = numbers[0], numbers[-1]
    match operator.name:
        case "add":
            value = first + last
        case "mul":
            value = first * last
        case "neg":
            value = -first
        case "abs":
            value = abs(first)
        case "square":
            value = first**2
        case "inv" if first:
            value = 1 / first
        case "max_pool" | "min_pool":
            value = first
        # A sum of equal integers is exact, one of other numbers is not.
        case "mean_nhw" | "mean_c" if first.denominator == 1:
            value = first
        case _:
            return None
    return value if max(abs(value.numerator), value.denominator) <= EXACT else None


def _sum(left: _Piece, right: _Piece, negative: str) -> str:
    """Write a sum, or a difference where the right operand is negative; `negative` is its number without the sign."""
    if right.number is not None and right.number < 0:
        return f"{left.text} - {negative}"
    if right.operator == "neg" and right.number is None:
        return f"{left.text} - {right.parts[0].within(PRODUCT)}"
    return f"{left.text} + {right.within(PRODUCT)}"


def _infix(operator: Operator, parts: Sequence[_Piece]) -> tuple[str, int]:
    first, last = parts[0], parts[-1]
    match operator.name:
        case "add":
            return _sum(first, last, str(-last.number) if last.number is not None else ""), SUM
        case "mul" if last.operator == "inv" and last.number is None:
            return f"{first.within(PRODUCT)} / {last.parts[0].within(POWER)}", PRODUCT
        case "mul":
            return f"{first.within(PRODUCT)}·{last.within(POWER)}", PRODUCT
        case "inv":
            return f"1 / {first.within(POWER)}", PRODUCT
        case "neg":
            return f"-{first.within(PRODUCT)}", SUM
        case "square":
            return f"{first.within(ATOM)}²", POWER
        case "sqrt":
            return f"√{first.text}" if first.text.isalnum() else f"√({first.text})", ATOM
        case _:
            return f"{operator.name}({', '.join(part.text for part in parts)})", ATOM


class _Code:
    """Writes a tree as Python: statements in the order in which the tree is evaluated, and one last expression.

    Args:
        constant: Leaves that carry no gradient.
        like: The leaf whose shape constants take.
    """

    def __init__(self, tree: Expression, constant: Iterable[str], like: str) -> None:
        self.tree = tree
        constant = {*constant, CONSTANT}
        self.carries = [
            any(isinstance(symbol, str) and symbol not in constant for symbol in tree.symbols[node : tree.end(node)])
            for node in range(len(tree.symbols))
        ]
        self.like = like
        self.statements: list[str] = []
        self.taken = Counter(tree.leaves)
        self.stack: list[_Piece] = []

    def expression(self) -> str:
        """Write all statements; return the expression that is left."""
        repeated = self.repeated()
        ends = {self.tree.end(node) - 1: node for node in repeated}
        known: dict[str, _Piece] = {}
        node = len(self.tree.symbols) - 1
        while node >= 0:
            start = ends.get(node)
            if start is not None and repeated[start] in known:
                self.stack.append(known[repeated[start]])
                node = start
            else:
                piece = self.piece(node)
                if node in repeated and piece.number is None:
                    piece = known[repeated[node]] = self.stored(piece)
                self.stack.append(piece)
            node -= 1
        return self.tensor(self.stack.pop()).text

    def repeated(self) -> dict[int, str]:
        """Return the largest subtrees without gradient that come more than once: position → text."""
        texts: dict[int, str] = {}
        parents: dict[int, int] = {}
        for node, symbol in enumerate(self.tree.symbols):
            if isinstance(symbol, Operator):
                position = node + 1
                for _ in range(symbol.arity):
                    parents[position] = node
                    position = self.tree.end(position)
                if not self.carries[node]:
                    texts[node] = str(self.tree.subtree(node))
        times = Counter(texts.values())
        above = {node: texts.get(parents.get(node, -1), "") for node in texts}
        return {node: text for node, text in texts.items() if times[text] > max(1, times[above[node]])}

    def piece(self, node: int) -> _Piece:
        symbol = self.tree.symbols[node]
        if isinstance(symbol, str):
            return _literal(Fraction(1)) if symbol == CONSTANT else _Piece(_safe(symbol), ATOM, name=symbol)
        parts = [self.stack.pop() for _ in range(symbol.arity)]
        number = _number(symbol, parts)
        if number is not None and self.is_exact(node, number):
            return _literal(number)
        if all(part.number is not None for part in parts):
            parts[0] = self.tensor(parts[0])
        if len(parts) == 2 and parts[0].builds and parts[1].builds:
            parts[1] = self.stored(parts[1])
        for position in reversed(range(len(parts))):
            if len(_code(symbol, parts)[0]) > INLINE and parts[position].operator:
                parts[position] = self.stored(parts[position])
        text, level = _code(symbol, parts)
        short = f"{symbol.name}_{parts[0].name}" if len(parts) == 1 and parts[0].name else ""
        name = short if 0 < len(short) <= 16 else _NOUNS[symbol.name]
        return _Piece(text, level, None, symbol.name, tuple(parts), self.carries[node], name)

    def is_exact(self, node: int, number: Fraction) -> bool:
        """Say whether the tree too arrives at this number in float32, step by step."""
        reached = self.tree.subtree(node).evaluate({self.like: torch.ones(1, 1, 1, 1)})
        return bool(reached == torch.tensor(float(number)))

    def tensor(self, piece: _Piece) -> _Piece:
        if piece.number is None:
            return piece
        return _Piece(f"torch.full_like({_safe(self.like)}, {piece.text})", ATOM, operator="constant", name="constant")

    def stored(self, piece: _Piece) -> _Piece:
        """Give the piece a statement of its own, after all that the tree evaluates before it."""
        if piece.builds:
            self.stack[:] = [self.assigned(earlier) if earlier.builds else earlier for earlier in self.stack]
        return self.assigned(piece)

    def assigned(self, piece: _Piece) -> _Piece:
        self.taken[piece.name] += 1
        times = self.taken[piece.name]
        name = piece.name if times == 1 else f"{piece.name}_{times}"
        self.statements.append(f"{name} = {piece.text}")
        return _Piece(name, ATOM, name=name)


def _literal(number: Fraction) -> _Piece:
    decimal = str(number) if number.denominator == 1 else repr(float(number))
    if len(decimal) <= 8 and Fraction(decimal) == number:
        return _Piece(decimal, ATOM if number >= 0 else SIGN, number)
    return _Piece(f"{number.numerator} / {number.denominator}", PRODUCT, number)


def _code(operator: Operator, parts: Sequence[_Piece]) -> tuple[str, int]:
    first, last = parts[0], parts[-1]
    match operator.name:
        case "add":
            return _sum(first, last, _literal(-last.number).text if last.number is not None else ""), SUM
        case "mul":
            return f"{first.within(PRODUCT)} * {last.within(SIGN)}", PRODUCT
        case "neg":
            return f"-{first.within(POWER)}", SIGN
        case "square":
            return f"{first.text}**2" if first.text.isidentifier() else f"{first.within(ATOM)} ** 2", POWER
        case "abs" | "exp" | "tanh":
            return f"torch.{operator.name}({first.text})", ATOM
        case _:
            return f"{operator.function.__name__}({first.text})", ATOM


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


def _functions(code: str) -> tuple[list[str], set[str]]:
    """Return the functions that the code needs, directly or not, and all names that occur."""
    needed: list[str] = []
    while True:
        used = {node.id for node in ast.walk(ast.parse("\n".join([*needed, code]))) if isinstance(node, ast.Name)}
        found = [source.rstrip() for name, source in _FUNCTIONS.items() if name in used]
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
    writer = _Code(tree, ("y",), "y" if "y" in tree.leaves else "p")
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
    if form.ignore_index is None:
        lines.append("            classes = F.one_hot(target, channels)")
    else:
        lines += [
            f"            ignored = target == {form.ignore_index}",
            "            classes = F.one_hot(target.masked_fill(ignored, 0), channels)",
            "            classes = classes.masked_fill(ignored.unsqueeze(-1), 0)",
        ]
    lines.append("            values = spatial(classes.movedim(-1, 1).float())")
    lines.append(f"        return values{'' if width is None else f' * inner_band(values, {width})'}")
    return "\n".join(lines) + "\n"


def _forward_of_leaves(tree: Expression, form: BranchForm) -> list[str]:
    used = [name for name in form.leaves if name in tree.leaves] or [form.leaves[0]]
    writer = _Code(tree, (), used[0])
    result = writer.expression()
    return [
        f"    def forward(self, {', '.join(f'{_safe(name)}: Tensor' for name in form.leaves)}) -> Tensor:",
        '        """Return one value for each element, (N, C, H, W), as the leaves have them.',
        "",
        "        The search took their sum over elements that count, divided it by the branch's",
        f"        number of positions, and gave it the weight {float(form.weight)!r}.",
        '        """',
        "        # Small numbers vanish in 16 bits, so this part of mixed precision is off.",
        f"        with torch.autocast({_safe(used[0])}.device.type, enabled=False):",
        *(f"            {_safe(name)} = raised({_safe(name)})" for name in used),
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
    called = "prediction, target" if forms[first].from_prediction else ", ".join(map(_safe, forms[first].leaves))
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


_RESERVED = frozenset({"self", "torch", "nn", "F", "Tensor", "EPSILON", *_FUNCTIONS})


def _safe(leaf: str) -> str:
    """Return the variable of a leaf."""
    return f"{leaf}_" if iskeyword(leaf) or leaf in _RESERVED else leaf


def _check(loss: Loss, forms: Mapping[str, BranchForm]) -> None:
    for name, tree in loss.items():
        if name not in forms:
            raise unknown("form of the branch", name, forms)
        if strange := sorted(tree.leaves - {CONSTANT} - set(forms[name].leaves)):
            raise RequestError(
                f"{str(tree)!r} has the leaves {', '.join(strange)}; the branch {name!r} has {', '.join(forms[name].leaves)}."
            )
        for operator in tree.operators:
            if operator.name not in OPERATORS or operator.function is not OPERATORS[operator.name].function:
                raise RequestError(
                    f"The operator {operator.name!r} is your own, so a file that imports torch alone cannot hold it; "
                    f"use the loss with autoloss.Loss instead. Known: {', '.join(OPERATORS)}."
                )


def _is_name(leaf: object) -> bool:
    return isinstance(leaf, str) and leaf.isidentifier()


def _is_number(weight: object) -> bool:
    return isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
