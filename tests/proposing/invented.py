"""A history whose attempts and trainings are invented: thousands of candidates in a second, with twins, copies and divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from autoloss.proposing.chance import derive_generator
from autoloss.proposing.history import History
from autoloss.proposing.proposer import Plan, Proposer
from autoloss.proposing.records import Attempt, Candidate, Origin, Outcome, State
from autoloss.settings import Configuration

MAIN = ("main",)
Train = Callable[[Candidate], Outcome]


def invent_attempt(plan: Plan, branch: str, number: int, losses: int) -> Attempt:
    """An attempt that passes, as one of so many losses; its signature says how good the loss is."""
    drawn = derive_generator(0, "invented", plan.candidate, branch, number).randrange(losses)
    key = derive_generator(drawn, "key", plan.candidate, branch, number).randbytes(8)
    return Attempt(number, f"loss{drawn}", None, key, (str(drawn),), True, 0.7, (0.7,))


def train(candidate: Candidate) -> Outcome:
    """Score the numbers of the losses; every tenth diverges."""
    total = sum(float(text) for (text, *_) in candidate.signature.values())
    if total % 10 == 3:
        return Outcome(state=State.DIVERGED, reason="invented", fidelity=candidate.fidelity)
    return Outcome(state=State.SCORED, score=total / 1000 + candidate.fidelity, fidelity=candidate.fidelity)


def run(
    configuration: Configuration,
    branches: Sequence[str] = MAIN,
    *,
    proposer: Proposer | None = None,
    losses: int = 1000,
    train: Train = train,
    order: int | None = None,
) -> History:
    """Run a search to its end.

    Args:
        losses: Number of losses that there are to draw; few give many twins.
        order: Seed of the order in which trainings end; in that of the candidates when None.
    """
    history = History(branches, configuration, proposer)
    rng = None if order is None else Random(order)
    while True:
        while history.can_begin:
            draft = history.begin()
            for branch in list(draft.open):
                while draft.is_open(branch):
                    draft.decide(branch, invent_attempt(draft.plan, branch, draft.tried[branch], losses))
            history.complete()
        running = history.running
        if not running:
            assert history.end is not None
            return history
        k = running[0] if rng is None else rng.choice(running)
        history.tell(k, train(history.candidates[k]))


def trained(history: History) -> list[Candidate]:
    return [candidate for candidate in history.candidates if candidate.origin is Origin.TRAINED]
