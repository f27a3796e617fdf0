"""What a driver survives: the experiments of bench/reliability/faults.py in small. Each has been seen to fail: tests/mutants."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest import mock

import pytest
import torch

import faults
import faults_clients
import faults_driver
import faults_file
import faults_folders
import faults_outside
import faults_sharing
import toy
from autoloss.comparison import record
from autoloss.proposing.evolution import LEAST_OBSERVED
from autoloss.proposing.mutation import Kind
from crash_points import POINTS
from promise import Shown

RATES = {name: getattr(record, name) for name in ("LEARNING_RATES", "NEAR_RATES")}


@pytest.fixture(scope="module", autouse=True)
def one_rate() -> Iterator[None]:
    """Let the drivers, which are forked from here, tune at one rate: a third of their trainings would be those of the others."""
    with mock.patch.multiple(record, **dict.fromkeys(RATES, (1.0,))):
        yield


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return faults_driver.clean(tmp_path_factory.mktemp("known"), faults.EVALUATIONS)


def test_a_forked_driver_does_not_wait_for_threads_that_it_does_not_have():
    threads, inputs = torch.get_num_threads(), torch.zeros(64, 4096)
    torch.set_num_threads(3)
    try:
        inputs.softmax(1)
        driver = faults_driver.forked(lambda: print(inputs.softmax(1).sum()))
        assert faults_driver.waited(driver, patience=20) == 0
    finally:
        torch.set_num_threads(threads)


def assert_kept(shown: Shown) -> None:
    assert shown.violations == ()
    assert (shown.lost, shown.repeated) == (0, 0)
    assert shown.history_equal is not False


def test_twenty_kills_at_random_points_lose_nothing(known, tmp_path):
    shown = faults_driver.kills_at_random(tmp_path, known, 20)
    assert_kept(shown)
    assert shown.trials == 20


def test_kills_change_nothing_in_a_search_with_all_that_is_done_by_default(tmp_path):
    known = faults_driver.clean(tmp_path, faults.DEFAULT_EVALUATIONS, toy.BY_DEFAULT)
    kinds = [kind for line in known.history for kind in json.loads(line)["kinds"].values()]
    assert Kind.PROMOTION.value in kinds
    assert any("pool" in json.loads(line) for line in known.history)
    assert len(kinds) > LEAST_OBSERVED
    assert_kept(faults_driver.kills_at_random(tmp_path, known, 6))


def test_a_kill_at_every_named_point_loses_nothing(known, tmp_path):
    shown = faults_driver.kills_at_points(tmp_path, known)
    assert_kept(shown)
    assert shown.trials == len(POINTS)


def test_of_two_drivers_one_runs_and_the_other_names_it(tmp_path):
    assert_kept(faults_sharing.races(tmp_path, 4))


def test_readers_that_poll_hurt_no_commit(tmp_path):
    shown = faults_sharing.readers(tmp_path, count=20, commits=60)
    assert_kept(shown)
    assert shown.trials == 60


def test_flipped_bits_and_truncated_files_are_named(tmp_path):
    shown = faults_file.damaged(tmp_path, flips=120, truncations=30)
    assert_kept(shown)
    # Most of these change what is read; a bit that no page uses harms nobody.
    assert shown.more["found"]["flip: refused"] > 40
    assert shown.more["found"]["truncation: refused"] > 30


def test_a_full_disk_pauses_the_run_and_changes_nothing(known, tmp_path):
    shown = faults_file.full_disk(tmp_path, known, periods=2)
    assert_kept(shown)
    assert shown.trials >= 2


def test_clients_that_mean_harm_disturb_no_search(known, tmp_path, monkeypatch):
    monkeypatch.setattr(faults_clients, "REQUEST_SECONDS", 0.5)
    shown = faults_clients.hostile_clients(tmp_path, known, rounds=1)
    assert_kept(shown)
    assert shown.trials == len(faults_clients.ATTACKS)


def test_folders_that_are_copied_moved_or_locked_under_a_search_lose_nothing(known, tmp_path):
    shown = faults_folders.folders(tmp_path, known, times=1)
    assert_kept(shown)
    assert shown.trials == len(faults_folders.KINDS)


@pytest.mark.parametrize("kind", ["one line is read"])
def test_a_search_ends_as_it_would_have_whoever_reads_or_interrupts_it(kind, tmp_path):
    # Its driver is no fork, and tunes at all rates.
    with mock.patch.multiple(record, **RATES):
        known = faults_driver.clean(tmp_path / "known", faults.EVALUATIONS)
    assert_kept(faults_outside.outside(tmp_path, known, 1, [kind]))
