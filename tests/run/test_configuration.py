"""Every setting can be changed by name, and a wrong one is answered in a sentence."""

from __future__ import annotations

import re

import pytest

from autoloss.errors import RequestError
from autoloss.settings import Configuration, setting_names


def test_the_defaults_are_the_papers():
    configuration = Configuration()
    assert configuration.evaluations == 500
    assert configuration.evolution.initial == 20
    assert configuration.evolution.depth == 3
    assert configuration.evolution.tournament == 0.05
    assert configuration.evolution.population == 2500
    assert (configuration.offspring.copy, configuration.offspring.fresh) == (0.1, 0.5)
    assert configuration.rejection.samples == 5
    assert configuration.rejection.threshold == 0.6
    assert (configuration.rejection.steps, configuration.rejection.learning_rate) == (500, 0.001)
    assert configuration.rejection.momentum == 0.9


def test_a_configuration_survives_its_text():
    changed = Configuration().changed({"evolution.lag": "7", "limits.explored": "1000", "evaluations": 3})
    assert Configuration.from_json(changed.to_json()) == changed
    assert changed.evolution.lag == 7
    assert changed.limits.explored == 1000


@pytest.mark.parametrize("text", ["200", " 200 ", "2e2", "2E+2", "200.0", "20000e-2", "+2_00"])
def test_a_whole_number_is_read_in_every_notation(text):
    evaluations = Configuration().changed({"evaluations": text}).evaluations
    assert (evaluations, type(evaluations)) == (200, int)


@pytest.mark.parametrize(
    "text", ["2.5e0", "200.5", "2e-2", "1e-400", "1e-999999999", "9007199254740992.5", "inf", "nan"]
)
def test_a_number_that_is_not_whole_is_no_whole_number(text):
    with pytest.raises(RequestError, match=f"evaluations is '?{re.escape(text)}'?; expected a whole number"):
        Configuration().changed({"evaluations": text})


def test_a_whole_number_is_not_rounded():
    assert Configuration().changed({"seed": "9007199254740993.0"}).seed == 9007199254740993


@pytest.mark.parametrize("name", setting_names())
def test_every_setting_takes_its_own_value_as_text(name):
    configuration = Configuration()
    value = configuration
    for part in name.split("."):
        value = getattr(value, part)
    assert (
        configuration.changed({name: str(value).lower() if value in (None, True, False) else str(value)})
        == configuration
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evolution.lagg": "2"}, "no setting named 'evolution.lagg'. Did you mean 'evolution.lag'"),
        ({"lag": "2"}, "no setting named 'lag'"),
        ({1: 2}, "no setting named 1. Known: "),
        ({"evolution.lag": "two"}, "evolution.lag is 'two'; expected a whole number"),
        ({"evolution.lag": "0"}, "evolution.lag is 0; expected .* at least 1"),
        ({"evolution.tournament": "1.5"}, "evolution.tournament is 1.5; expected .* at most 1"),
        ({"rejection.unit": "abs"}, "rejection.unit is 'abs'; expected 'relative' or 'absolute'"),
        ({"rejection.momentum": "1"}, "rejection.momentum is 1.0; expected .* below 1"),
        ({"offspring.copy": "-0.1"}, "offspring.copy is -0.1; expected .* at least 0"),
        ({"evolution.one_branch": "perhaps"}, "evolution.one_branch is 'perhaps'; expected true or false"),
        ({"limits.wall_clock_seconds": "0"}, "limits.wall_clock_seconds is 0.0; expected .* above 0"),
        ({"evaluations": "0"}, "evaluations is 0"),
        ({"seed": "-1"}, "seed is -1"),
        ({"final.confirm": "-2"}, "final.confirm is -2"),
    ],
)
def test_a_wrong_setting_is_answered_in_a_sentence(settings, message):
    with pytest.raises(RequestError, match=message):
        Configuration().changed(settings)
