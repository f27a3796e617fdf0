"""The jobs of workers and their results, as plain values: test attempts against the rejection protocol, and train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from autoloss.proposing.chance import derive_seed
from autoloss.proposing.records import Outcome
from autoloss.settings import Configuration
from autoloss.training.training import Training


@dataclass(frozen=True, slots=True)
class RejectionBatch:
    """Test attempts `first` to `first + count - 1` at one branch of a candidate, up to the first that passes, or the n-th.

    Args:
        kind: Value of the `Kind` by which the branch is made.
        parent: Text of the parent's tree, or None for a candidate drawn from nothing.
        known: The latest verdicts that the driver knows, as `pack_verdict` writes them; they are not simulated again.
        known_before: Number of bytes of older ones, which were sent with earlier batches.
        passes: n, the number of passing attempts after which the rest is not tested.
    """

    candidate: int
    branch: str
    kind: str
    parent: str | None
    first: int
    count: int
    known: bytes = b""
    known_before: int = 0
    passes: int = 1


class Attempt(NamedTuple):
    """The result of testing one attempt; a tuple, since batches hold thousands and frozen dataclasses are pickled slowly.

    Args:
        number: j, its number among the attempts at this branch of this candidate.
        formula: Text of the tree.
        reason: Name of the `Reason` for which it goes no further, or None.
        key: Its direction-aware key, where the gradient was computed.
        signature: Norms of the gradient, where the gradient was computed.
        simulated: Whether the protocol ran; if not, the driver looks the verdict up by the key.
        score: g.
        gains: Per sample.
        factor: What the tree is multiplied by in training, where the attempt may win.
    """

    number: int
    formula: str
    reason: str | None = None
    key: bytes = b""
    signature: tuple[str, ...] = ()
    simulated: bool = False
    score: float | None = None
    gains: tuple[float, ...] = ()
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Train:
    """Train with a loss and measure it.

    Args:
        loss: A formula, a loss of several branches, or a name in the zoo.
        candidate: The candidate whose training it is; None beside a search.
    """

    loss: str
    training: Training
    candidate: int | None = None


Job = RejectionBatch | Train


def make_training(configuration: Configuration, fidelity: float = 1.0, number: int = 0, fold: int = 0) -> Training:
    """Return a training of a search.

    Common random numbers: by default every training of a search has the same seed, which leaves less noise in selection.

    Args:
        number: Of the training seed.
    """
    settings = configuration.search
    return Training(
        seed=derive_seed(configuration.seed, "training", *([number] if number else [])),
        fold=fold,
        fidelity=fidelity,
        learning_rate=settings.learning_rate,
        step_rule=settings.step_rule,
        tuned_threshold=settings.tuned_threshold,
    )


@dataclass(frozen=True, slots=True)
class CompletedJob:
    """A job with its result, and how long it took."""

    ticket: int
    job: Job
    result: Outcome | list[Attempt]
    seconds: float
