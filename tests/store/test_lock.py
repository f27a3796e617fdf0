"""One driver per run, and a name for whoever is kept out."""

from __future__ import annotations

import fcntl
import os
import socket
import threading

import pytest

from autoloss.errors import OwnedError, RequestError
from autoloss.store.store import LOCK, lock_run, refuse_owned

NOBODY = 2**22 + 1
"""Beyond what Linux numbers processes with."""


def test_an_owner_is_named_and_gone_when_it_closes(tmp_path):
    owner = lock_run(tmp_path)
    with pytest.raises(OwnedError, match=rf"driven by process {os.getpid()} on {socket.gethostname()}\. Wait for it"):
        lock_run(tmp_path)
    owner.close()
    lock_run(tmp_path).close()


def test_the_owner_before_is_not_taken_for_the_new_one(tmp_path):
    path = tmp_path / LOCK
    path.write_text(f"process {NOBODY} on {socket.gethostname()}\n")
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # It has the lock and has not signed yet.
        signing = threading.Timer(0.1, path.write_text, [f"process {os.getppid()} on {socket.gethostname()}\n"])
        signing.start()
        with pytest.raises(OwnedError, match=f"driven by process {os.getppid()} on"):
            lock_run(tmp_path)
        signing.join()


def test_an_owner_on_another_host_is_believed(tmp_path):
    path = tmp_path / LOCK
    path.write_text(f"process {NOBODY} on elsewhere\n")
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OwnedError, match=f"driven by process {NOBODY} on elsewhere"):
            lock_run(tmp_path)


def test_looking_early_leaves_nothing_behind(tmp_path):
    refuse_owned(tmp_path)
    refuse_owned(tmp_path / "none")
    assert not list(tmp_path.iterdir())
    lock_run(tmp_path).close()
    refuse_owned(tmp_path)
    owner = lock_run(tmp_path)
    with pytest.raises(OwnedError):
        refuse_owned(tmp_path)
    owner.close()


def test_a_folder_that_cannot_be_written_is_a_wrong_request(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(RequestError, match=r"owner.lock cannot be written: Is a directory"):
        lock_run(tmp_path)
