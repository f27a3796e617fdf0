"""Numbers as text for people."""

import pytest

from autoloss.numbers import difference, figure


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.91234, "0.9123"),
        (0.0, "0.0000"),
        (-0.5, "-0.5000"),
        (12.3, "12.3000"),
        (0.00031234, "0.000312"),
        (-3.1e-7, "-3.1e-07"),
        (float("nan"), "–"),
        (None, "–"),
    ],
)
def test_a_metric_of_small_units_shows_three_digits(value: float | None, text: str):
    assert figure(value) == text


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (0.0123, 0.0034, "+0.0123 ± 0.0034"),
        (1e-5, 0.01, "+0.0000 ± 0.0100"),
        (-1.234e-5, 2e-6, "−1.23e-05 ± 2e-06"),
        (0.02, None, "+0.0200"),
        (0.0, 0.0, "+0.0000 ± 0.0000"),
    ],
)
def test_a_difference_shows_the_digits_that_its_interval_gives_a_meaning(value: float, half: float | None, text: str):
    assert difference(value, half) == text
