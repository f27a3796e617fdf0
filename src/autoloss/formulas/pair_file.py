"""The class of a loss over pairs in an exported file: from scores and targets to a scalar."""

from __future__ import annotations

from autoloss.formulas.statements import Statements
from autoloss.space.expression import Expression
from autoloss.space.form import BranchForm, PairForm

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


def list_parameters(pairs: PairForm) -> str:
    return ", ".join([f"{name}: Tensor" for name in list_arguments(pairs)] + ["groups: Tensor | None = None"])


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
    lines = [
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
