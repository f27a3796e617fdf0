"""Answers in place of workers: trees drawn as always, verdicts and scores drawn by hash, so that all else can be measured alone.

The shares are those of real searches on segmentation: of the trees that hold both leaves about one in eleven passes, one training
in twenty diverges. Equal losses get equal answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from autoloss import recipes
from autoloss.proposing.mutation import Kind, draw_attempt
from autoloss.proposing.records import Attempt, Candidate, Job, Outcome, RejectionBatch, State, Train
from autoloss.rejection.reasons import Reason
from autoloss.settings import Configuration
from autoloss.space.activated import ActivatedBranch
from autoloss.space.expression import Alphabet
from autoloss.space.parsing import parse
from autoloss.training.training import CURVE_POINTS, Training

PASSING = 1 / 11
"""Share among the trees that hold a prediction and a target."""
DIVERGING = 1 / 20
ALPHABET = Alphabet(ActivatedBranch().leaves_and_roles)
BRANCHES = ("main",)
DEFAULT = {**recipes.DEFAULT, "evolution.start": ()}
"""The default recipe without known losses to start from, which are names until a task resolves them."""


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of workers to jobs, with verdicts and scores from a hash of the loss."""

    configuration: Configuration

    def perform(self, job: Job) -> list[Attempt] | Outcome:
        return self.train(job) if isinstance(job, Train) else self.test(job)

    def test(self, job: RejectionBatch) -> list[Attempt]:
        settings, seed = self.configuration.evolution, self.configuration.seed
        parent = None if job.parent is None else parse(job.parent)
        found: list[Attempt] = []
        passing = 0
        for number in range(job.first, job.first + job.count):
            tree = draw_attempt(job.candidate, job.branch, Kind(job.kind), number, parent, ALPHABET, settings, seed)
            if len(tree.operators) > settings.maximum_operators:
                found.append(Attempt(number, str(tree), Reason.SIZE.name))
            elif not tree.holds(ALPHABET.leaves_and_roles):
                found.append(Attempt(number, str(tree), Reason.STRUCTURE.name))
            else:
                found.append(self._simulated(number, str(tree), str(tree.canonical())))
                passing += found[-1].reason is None
                if passing == job.passes:
                    break
        return found

    def _simulated(self, number: int, text: str, canonical: str) -> Attempt:
        digest = self._digest("test", canonical)
        signature = tuple(f"{1 + byte / 32:.1e}" for byte in digest[8:13])
        if _share(digest) >= PASSING:
            return Attempt(number, text, Reason.LOW_GAIN.name, digest[:8], signature, True, 0.1, (0.1,) * 5)
        return Attempt(number, text, None, digest[:8], signature, True, 0.8, (0.8,) * 5)

    def train(self, job: Train) -> Outcome:
        fidelity = job.training.fidelity
        share = _share(self._digest("train", job.loss))
        if fidelity < 1:
            # Short trainings rank much as whole ones do.
            share = 0.8 * share + 0.2 * _share(self._digest("train shortly", job.loss))
        if share < DIVERGING:
            return Outcome(state=State.DIVERGED, step=19, reason="loss is not finite")
        curve = tuple((step, share + 1 / (1 + step)) for step in range(CURVE_POINTS))
        return Outcome(state=State.SCORED, score=share, also={"loss": share / 3}, curve=curve, fidelity=fidelity)

    def _digest(self, purpose: str, text: str) -> bytes:
        return hashlib.blake2b(f"{self.configuration.seed} {purpose} {text}".encode(), digest_size=16).digest()


class Nowhere:
    """A record of a run that keeps nothing: the history is compared in memory."""

    def add_candidate(self, candidate: Candidate, rejected: Mapping[tuple[str, int], tuple[str, str]]) -> None: ...

    def add_training(self, loss: str, training: Training, outcome: Outcome, candidate: int | None) -> None: ...


def _share(digest: bytes) -> float:
    return int.from_bytes(digest[:6]) / 2**48
