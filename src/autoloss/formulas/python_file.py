"""The Python file that a loss is exported to: a docstring, the functions that the loss needs, and a class for each branch."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import count

from autoloss.errors import RequestError, unknown
from autoloss.formulas.functions import read_own_functions, select_functions
from autoloss.formulas.statements import Statements, get_variable, write_line
from autoloss.space.activated import ActivatedBranch
from autoloss.space.boxes import BoxRegression
from autoloss.space.branch import Branch
from autoloss.space.expression import CONSTANT, Expression
from autoloss.space.form import BranchForm, PairForm
from autoloss.space.loss import MAIN, Loss
from autoloss.space.one_hot import LEAST, USUAL, OneHotTree, shorten
from autoloss.space.operators import EPSILON
from autoloss.space.pairs import PairBranch

LINE_LENGTH = 88
"""The default of the common formatters."""
TITLE_LENGTH = 50
"""Characters of a title, which shares a line with other words; the rest gives way to an ellipsis."""

_CLASS = '''\
class {name}(nn.Module):
{summary}

    def forward(self, {parameters}) -> Tensor:
        """{documentation}
        """
        # Small numbers vanish in 16 bits, so this part of mixed precision is off.
        with torch.autocast({device}.device.type, enabled=False):
{body}'''

_OTHERS = '''

    def others(self, {parameters}) -> Tensor:
        """Return the formula at channels that are not the target's: y is 0."""
{body}'''

_OF_PREDICTION = """Sum channels and average over positions.

        Args:
            prediction: Raw, (N, C, H, W), (N, C, D, H, W), (N, C, L), (N, C) or (N,).
            target: Class indices without the channel dimension, or values of the
                prediction's shape."""

_OF_LEAVES = """Return one value for each element, (N, C, H, W), as the leaves have them.

        The search took their sum over elements that count, divided it by the number of
        positions, N·H·W of the branch's prediction, and gave it the weight {weight!r}."""


def to_python(loss: Loss, forms: Mapping[str, BranchForm], *, title: str, facts: Mapping[str, str]) -> str:
    """Write a loss as a Python file that imports torch alone, with one `nn.Module` for each branch; to be saved as UTF-8.

    Value and gradient are those of `Loss.criterion` to the last bit; with constants, to rounding in float32.

    Args:
        forms: One for each branch of the loss.
        title: What the loss is called; classes are named after it.
        facts: What else the file says about the loss, such as score, metric and run: label → text. Any text is safe.

    Raises:
        RequestError: A form is missing or lacks a leaf, or a tree holds an operator of a person's own that a file cannot hold.

    >>> from autoloss import Loss
    >>> from autoloss.space.form import BranchForm
    >>> text = to_python(Loss("-y * log(p)"), {"main": BranchForm()}, title="Cross entropy", facts={})
    >>> "class CrossEntropyLoss(nn.Module):" in text, "output = -(y * signed_log(p))" in text
    (True, True)
    """
    check_forms(loss, forms)
    own = read_own_functions(loss)
    names = _name_classes(title, list(loss), own)
    classes = [_write_class(names[branch], branch, tree, forms[branch]) for branch, tree in loss.items()]
    functions, used = select_functions("\n\n\n".join(classes), own)
    standard = ["import math"] * ("math" in used) + ["from typing import Any"] * ("Any" in used)
    imports = [*standard, *[""] * bool(standard), "import torch", "from torch import Tensor, nn"]
    imports += ["from torch.nn import functional as F"] * ("F" in used)
    head = [write_docstring(_describe(loss, forms, names, title, facts)), "\n".join(imports)]
    head += [f"EPSILON = {EPSILON!r}"] * ("EPSILON" in used)
    return "\n\n\n".join(["\n\n".join(head), *functions, *classes]) + "\n"


def check_forms(loss: Loss, forms: Mapping[str, BranchForm]) -> None:
    """Refuse a loss without a form for each branch, or with leaves that a form lacks."""
    for name, tree in loss.items():
        if name not in forms:
            raise unknown("form of the branch", name, forms)
        if strange := sorted(tree.leaves - {CONSTANT} - set(forms[name].leaves)):
            raise RequestError(
                f"{str(tree)!r} has the leaves {', '.join(strange)}; the branch {name!r} has {', '.join(forms[name].leaves)}."
            )


def _write_class(name: str, branch: str, tree: Expression, form: BranchForm) -> str:
    of_branch = "" if branch == MAIN else f", for the branch {clean_text(branch, TITLE_LENGTH)}"
    typed = ""
    if form.pairs is not None:
        typed = ", ".join([f"{name}: Tensor" for name in list_arguments(form.pairs)] + ["groups: Tensor | None = None"])
        others, parameters = "", ["scores"]
        documentation, body = describe_call(form.pairs), write_pair_criterion(tree, form, form.pairs)
    elif form.from_prediction:
        made = make_branch(form)
        short = None if made is None else shorten(tree, made)
        parameters, documentation, body = ["prediction", "target"], _OF_PREDICTION, _write_criterion(tree, form, short)
        others = "" if short is None or short.others.root == "y" else _write_others(short)
    else:
        others, used = "", _find_used_leaves(tree, form)
        parameters, documentation = [*map(get_variable, form.leaves)], _OF_LEAVES.format(weight=float(form.weight))
        statements = Statements(tree, (), used[0])
        raised = [f"{name} = upcast({name})" for name in map(get_variable, used)]
        body = [*raised, *statements.lines, f"return {statements.result}"]
    return (
        _CLASS.format(
            name=name,
            # Only the first line of a docstring may follow its quotes.
            summary=write_docstring(wrap(f"{write_line(tree)}{of_branch}.", "    "), "    "),
            parameters=typed or ", ".join(f"{each}: Tensor" for each in parameters),
            documentation=documentation,
            device=parameters[0] if typed or form.from_prediction else get_variable(_find_used_leaves(tree, form)[0]),
            body=textwrap.indent("\n".join(body), " " * 12),
        )
        + others
    )


def _write_criterion(tree: Expression, form: BranchForm, short: OneHotTree | None) -> list[str]:
    """Write what turns prediction and target into leaves, evaluates the tree, and takes the mean."""
    has_target = "y" in tree.leaves
    statements = Statements(tree, ("y",), "y" if has_target else "p")
    lines = [f'target = fitting(target, prediction, "{form.activation}")'] * (
        form.ignore_index is not None or has_target
    )
    leaves = [f'p = activate(spatial(prediction), "{form.activation}")']
    if has_target:
        leaves.append(f'y = encode(target, p.shape[1], "{form.activation}", {form.ignore_index})')
        if form.encoding != "one_hot":
            leaves.append(f"y = inner_band(y, {1 if form.encoding == 'edge' else form.tolerance})")
        leaves += [
            "y = y.to(p.dtype)",
            "if y.shape != p.shape:",
            '    shapes = f"{tuple(prediction.shape)} and {tuple(target.shape)}"',
            '    raise ValueError(f"prediction and target do not fit: {shapes}")',
        ]
    counted = [
        f"valid = mark_counted(target, {form.ignore_index})",
        "output = torch.where(valid, output, torch.zeros_like(output))",
        *["positions = valid.sum().clamp(min=1) / valid.shape[1]"] * (form.divide_by == "valid"),
    ] * (form.ignore_index is not None)
    if short is not None:
        leaves = [
            f"is_short = not target.is_floating_point() and prediction.numel() >= {LEAST}",
            "if is_short:",
            "    # y is 1 at one channel, and 0 at all others.",
            *_indent(_write_one_hot(short, form)),
            "else:",
            *_indent(leaves),
        ]
    lines += [*leaves, *statements.lines, f"output = {statements.result}", "positions = p.numel() // p.shape[1]"]
    if short is not None and short.others.root != "y":
        lines += ["if is_short:", "    output = output + others"]
    mean = "output.sum() / positions"
    return [*lines, *counted, f"return {mean}" if form.weight == 1 else f"return {float(form.weight)!r} * ({mean})"]


def _write_one_hot(short: OneHotTree, form: BranchForm) -> list[str]:
    """Write what takes y and p from the target's channels alone, and the formula's sum over the others."""
    lines = [
        f'logits, is_softmax = to_logits(spatial(prediction), "{form.activation}")',
        f"classes = index_classes(target, logits, {form.ignore_index})",
        f"picked, p = separate_channels(logits, classes, is_softmax, {short.usual})",
    ]
    if form.ignore_index is not None:
        lines.append(f"valid = mark_counted(target, {form.ignore_index})")
        lines.append(f"picked = torch.where(valid, picked, {USUAL[0]})")
    if short.others.root != "y":
        call = f"self.others({', '.join(_find_parameters(short))})"
        lines += ["y = logits.new_zeros(())"] * ("y" in _find_parameters(short))
        if short.usual is None:
            lines.append(f"others = (logits.shape[1] - 1) * {call}")
        else:
            lines.append(f"usual = {call.replace('p)', f'logits.new_full((), {short.usual}))')}")
            lines.append(f"others = {call}.sum(dim=1, keepdim=True) - usual")
    return [*lines, "y, p = logits.new_ones(()), picked"]


def _write_others(short: OneHotTree) -> str:
    """Write the method of the formula where y is 0."""
    parameters = _find_parameters(short)
    statements = Statements(short.others, ("y",), parameters[0])
    return _OTHERS.format(
        parameters=", ".join(f"{each}: Tensor" for each in parameters),
        body=textwrap.indent("\n".join([*statements.lines, f"return {statements.result}"]), " " * 8),
    )


def _find_parameters(short: OneHotTree) -> list[str]:
    return [name for name in ("y", "p") if name in short.others.leaves] or ["y"]


def _indent(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _find_used_leaves(tree: Expression, form: BranchForm) -> list[str]:
    """Return the leaves that occur, or the first one, which gives constants their shape."""
    return [name for name in form.leaves if name in tree.leaves] or [form.leaves[0]]


def describe_facts(facts: Mapping[str, str]) -> list[str]:
    """Return the lines that say what else is known of the loss."""
    said = (wrap(f"- {clean_text(label)}: {clean_text(text)}", "  ", "") for label, text in facts.items())
    return [line for wrapped in said for line in wrapped]


def _describe(
    loss: Loss, forms: Mapping[str, BranchForm], names: Mapping[str, str], title: str, facts: Mapping[str, str]
) -> list[str]:
    """Return the lines that say what the loss is, where it comes from and how to call it."""
    paragraphs = [wrap(f"{clean_text(title, TITLE_LENGTH)}: a loss function for PyTorch.")]
    for branch, tree in loss.items():
        heading = "" if list(loss) == [MAIN] else f"Branch {clean_text(branch, TITLE_LENGTH)}, class {names[branch]}:"
        paragraphs.append(wrap(heading) + wrap(write_line(tree), "    ") + wrap(f"= {tree}", "    "))
    paragraphs += [describe_facts(facts)] * bool(facts)
    branch, form = next((branch, forms[branch]) for branch in loss)
    factor = "" if form.weight == 1 else f"{float(form.weight)!r} * "
    call = f"{factor}criterion({', '.join(map(get_variable, form.leaves))}).sum() / positions"
    if form.pairs is not None:
        call = f"criterion({', '.join(list_arguments(form.pairs))})"
    paragraphs += [
        ["In a training loop:"],
        [
            f"    criterion = {names[branch]}()",
            f"    loss = {'criterion(prediction, target)' if form.from_prediction else call}",
            "    loss.backward()",
        ],
    ]
    if len(loss) > 1:
        paragraphs.append(["Call each class as its forward says where the network computes its branch; add them up."])
    return [line for paragraph in paragraphs for line in [*paragraph, ""]][:-1]


def write_docstring(lines: Sequence[str], indent: str = "") -> str:
    """Quote lines of cleaned text; whatever they hold, nothing of it can end the string or escape a character."""
    quoted = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    end = f'\n{indent}"""' if len(quoted) > 1 else '"""'
    return "\n".join([f'{indent}"""{quoted[0].strip()}', *quoted[1:]]) + end


def clean_text(text: str, limit: int = 1000) -> str:
    """Return a person's text as one line of printable characters."""
    line = "".join(character if character.isprintable() else "?" for character in " ".join(str(text).split()))
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def wrap(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """Return a text as lines of a docstring."""
    return textwrap.wrap(
        text,
        # Quotes, and a mark or two that escaping adds.
        LINE_LENGTH - 6,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )


def _name_classes(title: str, branches: Sequence[str], functions: Collection[str]) -> dict[str, str]:
    """Name the class of each branch after the title, in CamelCase; the word `Loss` keeps it from any name but own functions'."""
    names: dict[str, str] = {}
    for branch in branches:
        text = f"{clean_text(title, TITLE_LENGTH)} {'' if branch == MAIN else clean_text(branch, TITLE_LENGTH)}"
        ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        words = [word[0].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", ascii_text)]
        stem = re.sub(r"^\d+", "", "".join(words))[:TITLE_LENGTH] or "Found"
        stem = stem[0].upper() + stem[1:] + ("" if "Loss" in stem else "Loss")
        numbered = (stem if number == 1 else f"{stem}{number}" for number in count(1))
        names[branch] = next(name for name in numbered if name not in {*names.values(), *functions})
    return names


_DOCUMENTATION = """Return the mean over the pairs that can be compared, 0 if there is none.

        Args:
            scores: Raw, (N,) or (N, 1).
            target: {target}, (N,) or (N, 1).{events}{weights}
            groups: Query or stratum of each item, (N,), whose items are compared with
                one another; None if all are."""
_EVENTS = """
            events: 1 where the event was observed at that time, 0 where the observation
                ended before, (N,)."""
_WEIGHTS = """
            weights: Weight of each item, (N,), for the pairs in which it comes first."""


def list_arguments(pairs: PairForm) -> list[str]:
    """Return the names of what the module is called with, without the groups."""
    events, weights = "event" in pairs.columns, pairs.weigh == "item"
    return ["scores", "target", *["events"] * events, *["weights"] * weights]


def describe_call(pairs: PairForm) -> str:
    """Return the docstring of the method that is called."""
    events = "event" in pairs.columns
    return _DOCUMENTATION.format(
        target="Time of each item" if events else "Relevance of each item; the larger one should come first",
        events=_EVENTS if events else "",
        weights=_WEIGHTS if pairs.weigh == "item" else "",
    )


def write_pair_criterion(tree: Expression, form: BranchForm, pairs: PairForm) -> list[str]:
    """Write what finds the pairs, makes their leaves, evaluates the tree, and takes the mean."""
    statements = Statements(tree, ("y", "w"), "p")
    events = "events.flatten()" if "event" in pairs.columns else "None"
    others = ", ".join([*list_arguments(pairs)[1:], "groups"])
    lines = [
        f"if any(other is not None and other.numel() != scores.numel() for other in ({others})):",
        f'    raise ValueError(f"Expected {others} to hold one number for each of {{scores.numel()}} scores.")',
        "scores, target = upcast(scores).flatten(), target.flatten()",
        "groups = None if groups is None else groups.flatten()",
        f"first, second = find_pairs(target, {events}, groups, {pairs.limit}, {pairs.seed})",
        "difference = scores.index_select(0, first) - scores.index_select(0, second)",
        f"p = difference{'.sigmoid()' if form.activation == 'sigmoid' else ''}.reshape(-1, 1, 1, 1)",
    ]
    if "y" in tree.leaves:
        lines.append("y = torch.ones_like(p.detach())")
    if "w" in tree.leaves and pairs.weigh == "ndcg":
        lines.append("w = weigh_by_ndcg(scores, target.to(scores.dtype), groups, first, second)")
    elif "w" in tree.leaves:
        lines.append("w = weights.flatten()[first]")
    lines += ["w = w.to(p.dtype).reshape(p.shape)"] * ("w" in tree.leaves)
    mean = "output.sum() / max(1, len(first))"
    mean = mean if form.weight == 1 else f"{float(form.weight)!r} * ({mean})"
    return [*lines, *statements.lines, f"output = {statements.result}", f"return {mean}"]


def make_branch(form: BranchForm, channels: int | None = None) -> Branch | None:
    """Make a branch with this form; None where the form does not tell how it makes its leaves.

    Args:
        channels: Of the raw prediction, which the ideal prediction needs.
    """
    if form.from_prediction:
        options = ("activation", "encoding", "tolerance", "ignore_index", "divide_by", "weight")
        return ActivatedBranch(channels=channels, **{name: getattr(form, name) for name in options})
    if form.pairs is not None and form.activation != "softmax":
        return PairBranch(activation=form.activation, weight=form.weight, **asdict(form.pairs))
    return None if form.unit is None else BoxRegression(unit=form.unit, weight=form.weight)
