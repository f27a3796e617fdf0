"""Whether a network learns anything: its score against those of the untrained network and of the best constant prediction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoloss.evaluation.evaluator import Evaluator
from autoloss.numbers import figure

NOTHING_TO_LEARN = (
    "No prediction scores above that constant: the metric does not ask for what tells examples apart. "
    "Combine it with another."
)
ROUNDING = 1e-6
"""A score that is behind the ideal one by no more of the way from the untrained network to it has reached it."""
NEAR = 0.01
"""A score that is behind that of a constant prediction by no more of the way from the untrained network to it is of a constant."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The scores of networks that have learned nothing from their inputs.

    Args:
        untrained: The best of some untrained networks; None where the task cannot tell.
        constant: The best of predictions that are the same for all examples; None where it is not known.
        networks: Number of untrained networks.
        ideal: The score of the targets as predictions; None where it is not known.
    """

    untrained: float | None
    constant: float | None
    networks: int = 1
    ideal: float | None = None

    @property
    def score(self) -> float | None:
        """The higher of both; None where neither is known."""
        return max((one for one in (self.untrained, self.constant) if one is not None), default=None)

    @property
    def is_ideal(self) -> bool:
        """True if a constant prediction scores as high as the targets themselves.

        >>> Floor(-0.3, -1e-9, ideal=0.0).is_ideal, Floor(-2e-8, -1e-8, ideal=0.0).is_ideal
        (True, False)
        """
        if self.constant is None or self.ideal is None:
            return False
        way = 0.0 if self.untrained is None else self.ideal - self.untrained
        return self.ideal - self.constant <= ROUNDING * way

    def is_beaten(self, score: float | None, noise: float = 0.0) -> bool:
        """Return True if a network with this score has learned something from its inputs, or where there is no floor.

        It is ahead of the untrained network, and either ahead of the best constant prediction or not near it. A network that has
        learned nothing ends as a constant prediction; one that is ahead of the untrained network, but behind a constant, has
        learned what its loss asks for and not what the metric does: means where a quantile counts, or rare labels too rarely.

        Args:
            score: None for trainings without one.
            noise: Standard error of a score; one that is behind a constant has to be ahead of the untrained network by more.

        >>> Floor(0.1, 0.5).is_beaten(0.51), Floor(None, None).is_beaten(0.0)
        (True, True)
        >>> Floor(0.1, 0.5).is_beaten(0.4), Floor(0.1, 0.5).is_beaten(0.499), Floor(0.1, 0.5).is_beaten(0.1)
        (True, False, False)
        >>> Floor(0.10, 0.12).is_beaten(0.11, noise=0.02), Floor(-0.5, 0.5).is_beaten(0.48, noise=0.1)
        (False, True)
        """
        if score is None or (self.untrained is not None and score <= self.untrained):
            return False
        if self.constant is None or score > self.constant:
            return True
        if self.untrained is None or score <= self.untrained + noise:
            return False
        return self.constant - score > NEAR * (self.constant - self.untrained)

    def is_clearly_beaten(self, score: float | None, noise: float) -> bool:
        """Return True if it is beaten, and both scores differ from this one by more than the noise.

        The best of many trainings is a little ahead by chance.

        >>> Floor(0.1, 0.5).is_clearly_beaten(0.52, noise=0.05), Floor(0.1, 0.5).is_clearly_beaten(0.52, noise=0.01)
        (False, True)
        >>> Floor(-0.5, 0.5).is_clearly_beaten(0.48, noise=0.1)
        False
        """
        known = [one for one in (self.untrained, self.constant) if one is not None]
        return score is not None and self.is_beaten(score, noise) and all(abs(score - one) > noise for one in known)

    def measure_gain(self, score: float | None) -> float | None:
        """Return the lead of a score over the higher one that it is ahead of, or else over the lower one; None without one.

        >>> round(Floor(0.1, 0.5).measure_gain(0.52), 2), round(Floor(0.1, 0.5).measure_gain(0.4), 2)
        (0.02, 0.3)
        """
        gains = [] if score is None else [score - one for one in (self.untrained, self.constant) if one is not None]
        return min((gain for gain in gains if gain > 0), default=max(gains, default=None))

    def describe(self) -> str:
        """Describe both scores.

        >>> Floor(0.1, 0.5, networks=3).describe()
        'the best of 3 untrained networks scores 0.1000, the best constant prediction 0.5000'
        """
        networks = "the untrained network" if self.networks == 1 else f"the best of {self.networks} untrained networks"
        parts = [] if self.untrained is None else [f"{networks} scores {figure(self.untrained)}"]
        if self.constant is not None:
            parts.append(f"the best constant prediction{'' if parts else ' scores'} {figure(self.constant)}")
        return ", ".join(parts)


def measure_floor(evaluator: Evaluator, seeds: Iterable[int]) -> Floor:
    """Measure untrained networks of these training seeds, and constant predictions, on the valid split."""
    untrained = [score for seed in seeds if (score := evaluator.measure_untrained(seed)) is not None]
    return Floor(max(untrained, default=None), evaluator.measure_constant(), len(untrained), evaluator.measure_ideal())
