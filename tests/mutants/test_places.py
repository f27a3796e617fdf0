"""The default run leaves mutants out, so it checks here that the text that each of them changes still stands in the package."""

from __future__ import annotations

import pytest

from tests.mutants import test_driver_mutants, test_worker_experiments

from .mutating import mutated


@pytest.mark.parametrize(
    "table", [test_driver_mutants.MUTANTS, test_worker_experiments.MUTANTS], ids=["driver", "worker"]
)
def test_every_mutant_finds_the_text_that_it_changes(table):
    for mutant in table.values():
        with mutated(mutant.function, mutant.changes):
            pass
