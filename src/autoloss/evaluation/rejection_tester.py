"""Tests losses on one branch inside a worker: size and structure, gradient, then the rejection protocol (Section 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from autoloss.proposing.records import Attempt
from autoloss.rejection.engine import Engine, Gradient
from autoloss.rejection.reasons import Reason
from autoloss.rejection.scale import ScaleMeasure
from autoloss.rejection.screen import screen_losses
from autoloss.settings import Configuration
from autoloss.space.expression import Alphabet, Expression
from autoloss.space.operators import OPERATORS, Operator
from autoloss.space.parsing import parse

REMEMBERED = 50_000
"""Formulas whose test result a worker remembers."""


class RejectionTester:
    """Tests losses on one branch, and remembers the results by canonical text.

    Args:
        engine: Computes gradients and verdicts; it decides for how many trees at once (`batch_size`).
        operators: All that a formula may hold, by name.
        scale: Brings losses to the scale of the standard one; None keeps their own.
        partly: An engine whose samples have partly right predictions (`move_to_ideal`), where losses that have one gradient at the
            first predictions may have others later (`Branch.overshoots`).
    """

    def __init__(
        self,
        engine: Engine,
        configuration: Configuration,
        operators: Mapping[str, Operator] = OPERATORS,
        scale: ScaleMeasure | None = None,
        partly: Engine | None = None,
    ) -> None:
        self.scale, self._partly = scale, partly
        self.engine = engine
        branch, off = engine.branch, set(configuration.space.without)
        if configuration.evolution.valid_draws:
            off |= branch.find_idle_operators(engine.reference.samples)
        drawn = tuple(operator for name, operator in operators.items() if name not in off)
        self.alphabet = Alphabet(branch.leaves_and_roles, drawn)
        self._operators = operators
        self._maximum = configuration.evolution.maximum_operators
        self._decide = partial(screen_losses, engine) if engine.allows_early_stops else engine.verdicts
        self._known: dict[bytes, bool] = {}
        self._tested: dict[str, Attempt] = {}

    def parse(self, text: str) -> Expression:
        """Parse a formula of the branch, in which the run's own operators may stand."""
        return parse(text, self.alphabet.leaves_and_roles, self._operators)

    def learn(self, verdicts: Mapping[bytes, bool]) -> None:
        """Add verdicts that the driver knows: key → whether the losses with it pass."""
        self._known.update(verdicts)

    def passes(self, attempt: Attempt) -> bool:
        """Return True if a tested attempt passes; the driver's verdict has priority."""
        return bool(attempt.key) and self._known.get(attempt.key, attempt.simulated and attempt.reason is None)

    def test(self, first: int, trees: Sequence[Expression]) -> list[Attempt]:
        """Test a batch of trees: size and structure, then the gradient, then the protocol.

        Args:
            first: Number of the first tree among the attempts; the others follow.

        Returns:
            One result per tree, in order, each equal to what testing the tree alone returns.
        """
        reasons = [self._check_form(tree) for tree in trees]
        valid = [tree.canonical() for tree, reason in zip(trees, reasons, strict=True) if reason is None]
        tested = iter(self._test_canonical(valid))
        return [
            (next(tested) if reason is None else Attempt(0, "", reason.name))._replace(number=number, formula=str(tree))
            for number, (tree, reason) in enumerate(zip(trees, reasons, strict=True), first)
        ]

    def _check_form(self, tree: Expression) -> Reason | None:
        if len(tree.operators) > self._maximum:
            return Reason.SIZE
        return None if tree.holds(self.engine.branch.leaves_and_roles) else Reason.STRUCTURE

    def _test_canonical(self, trees: Sequence[Expression]) -> list[Attempt]:
        """Test canonical trees, each text once."""
        names = [str(tree) for tree in trees]
        new = {name: tree for name, tree in zip(names, trees, strict=True) if not self._is_tested(name)}
        found = dict(zip(new, self._test_new(list(new.values())), strict=True))
        results = [found[name] if name in found else self._tested[name] for name in names]
        if len(self._tested) >= REMEMBERED:
            self._tested.clear()
        self._tested.update(found)
        return results

    def _is_tested(self, name: str) -> bool:
        """Check whether a result is remembered; one without a verdict counts only while its key is known."""
        tested = self._tested.get(name)
        return tested is not None and (tested.simulated or bool(tested.reason) or tested.key in self._known)

    def _test_new(self, trees: Sequence[Expression]) -> list[Attempt]:
        gradients = self.engine.gradients(trees)
        results = [self._check_gradient(tree, gradient) for tree, gradient in zip(trees, gradients, strict=True)]
        rest = [i for i, one in enumerate(results) if one.reason is None and one.key not in self._known]
        for i, verdict in zip(rest, self._decide([trees[i] for i in rest]), strict=True):
            reason = verdict.reason.name if verdict.reason else None
            results[i] = results[i]._replace(reason=reason, simulated=True, score=verdict.score, gains=verdict.gains)
        if self.scale is not None:
            # All that may win: the driver's verdict counts where it knows the key by now, also of what was rejected here. A
            # verdict that was told does not change.
            for i, attempt in enumerate(results):
                if attempt.key and self._known.get(attempt.key, True):
                    factor, signature = self.scale.measure(trees[i], gradients[i])
                    results[i] = attempt._replace(signature=signature, factor=factor)
        return results

    def _check_gradient(self, tree: Expression, gradient: Gradient) -> Attempt:
        """Reject a gradient that is zero or not finite; give any other its key."""
        if not gradient.finite or gradient.zero:
            return Attempt(0, "", (Reason.NO_GRADIENT if gradient.finite else Reason.NOT_FINITE).name)
        if self._partly is not None:
            (later,) = self._partly.gradients([tree])
            gradient = Gradient((*gradient.norms, *later.norms), (*gradient.products, *later.products))
        return Attempt(0, "", None, gradient.key(str(tree)), gradient.signature)
