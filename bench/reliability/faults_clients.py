"""Clients that mean harm to `watch`: they are refused or left, and the search that is watched loses nothing."""

from __future__ import annotations

import http.client
import io
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from autoloss.errors import RequestError, RunError
from autoloss.report.page import serving
from autoloss.report.page.serving import Live, Server
from faults_driver import Clean, compared_with, driven_here, forked, waited
from promise import Shown

REQUEST_SECONDS = 1.0
"""In place of the usual time for a request, so that slow clients are many."""
PATIENCE_SECONDS = 20.0
"""Extra time allowed on a busy machine."""
LATE_SECONDS = 3.0
"""Delay beyond that within which a slow client must be disconnected."""
ALSO = 6
"""Connections beyond those that are served."""
REFUSED = b"HTTP/1.1 421"
OWN = "127.0.0.1:{port}"
HOSTS = {
    "two hosts": (OWN, "evil.example"),
    "its own host twice": (OWN, OWN),
    "a user before the host": (f"evil@{OWN}",),
    "a host after the host": (f"{OWN}@evil.example",),
    "another host": ("evil.example:{port}",),
    "no host": (),
}


def hostile_clients(folder: Path, known: Clean, rounds: int, kinds: Collection[str] = ()) -> Shown:
    """Serve a run while a driver writes it, and let every kind of client try so many times.

    Args:
        kinds: Of clients; all when empty.
    """
    directory, violations, tried = folder / "watched", [], Counter()
    driver = forked(partial(driven_here, directory, known.evaluations, known.settings))
    with mock.patch.object(serving, "REQUEST_SECONDS", REQUEST_SECONDS), _served(directory) as (server, raised):
        beyond = [] if server.server_address[0] == serving.HOST else [f"it listens at {server.server_address[0]}"]
        for number in range(rounds):
            for kind, attack in ATTACKS.items():
                if kinds and kind not in kinds:
                    continue
                tried[kind] += 1
                violations += [f"{kind}: {text}" for text in attack(server, random.Random(number))]
                if _ask(server)[0] != http.client.OK:
                    violations.append(f"{kind}: nobody else is answered afterwards")
        ended = waited(driver)
        left = _wait_for(lambda: not server._open)
    violations += [*beyond, *(f"a traceback: {text}" for text in raised)]
    if ended != 0:
        violations.append(f"the driver ended with {ended}")
    if not left:
        violations.append("connections are left")
    return Shown(
        promise="clients of the live page that mean harm get nothing and cost nothing",
        trials=tried.total(),
        history_equal=ended == 0 and compared_with(known, directory),
        violations=tuple(dict.fromkeys(violations)),
        more={"kinds": dict(tried)},
    )


@contextmanager
def _served(directory: Path) -> Iterator[tuple[Server, list[str]]]:
    """Serve a run as soon as there is one; also gives the errors of which a traceback was printed."""
    raised: list[str] = []

    class Watched(Server):
        def handle_error(self, request: Any, client_address: Any) -> None:
            said = io.StringIO()
            with redirect_stderr(said):
                super().handle_error(request, client_address)
            raised.extend(said.getvalue().strip().splitlines()[-2:-1])

    lives: list[Live] = []

    def begins() -> bool:
        with suppress(RequestError, RunError):
            lives.append(Live(directory))
        return bool(lives)

    if not _wait_for(begins):
        raise RuntimeError(f"No run began in {directory}.")
    with Watched(lives[0], port=0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server, raised
        finally:
            server.shutdown()
            thread.join()


def _wait_for(holds: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    end = time.monotonic() + seconds
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def _connect(server: Server) -> socket.socket:
    return socket.create_connection((serving.HOST, server.port), timeout=PATIENCE_SECONDS)


def _ask(server: Server) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(serving.HOST, server.port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", "/main")
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


def _raw(server: Server, request: bytes) -> bytes:
    """Send bytes and return all of the answer."""
    found = b""
    with _connect(server) as client, suppress(OSError):
        client.sendall(request)
        while chunk := client.recv(1 << 16):
            found += chunk
    return found


def _drip(server: Server, rng: random.Random) -> list[str]:
    """Send a byte now and then, so that no single wait is long."""
    allowed, began = REQUEST_SECONDS + LATE_SECONDS, time.monotonic()
    with _connect(server) as client, suppress(OSError):
        client.settimeout(0.1)
        while time.monotonic() - began < allowed:
            client.sendall(rng.choice([b"G", b"E", b" "]))
            with suppress(TimeoutError):
                if not client.recv(1 << 16):
                    break
    return ["a client that takes its time is kept"] if time.monotonic() - began >= allowed else []


def _crowd(server: Server, rng: random.Random) -> list[str]:
    """Open more connections than are served, and leave them open for a while."""
    clients, most = [], 0

    def count() -> bool:
        nonlocal most
        most = max(most, len(server._open))
        return most > serving.CONNECTIONS

    try:
        for _ in range(serving.CONNECTIONS + ALSO):
            with suppress(OSError):
                clients.append(_connect(server))
        # The last of them may still be on their way in.
        _wait_for(count, REQUEST_SECONDS)
    finally:
        for client in clients:
            client.close()
    _wait_for(lambda: len(server._open) == 0)
    return [f"{most} connections were open"] if most > serving.CONNECTIONS else []


def _hosts(names: tuple[str, ...], server: Server, rng: random.Random) -> list[str]:
    path = rng.choice(["/", "/main"])
    lines = "".join(f"Host: {name.format(port=server.port)}\r\n" for name in names)
    answer = _raw(server, f"GET {path} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
    return [] if answer.startswith(REFUSED) and b"best so far" not in answer else [f"was answered with {answer[:40]!r}"]


def _garbage(server: Server, rng: random.Random) -> list[str]:
    """Send what is no request, or one without end."""
    bodies = [rng.randbytes(200), b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 500, b"GET /" + b"x" * 100_000, b"\r\n" * 1000]
    answers = [_raw(server, body + b"\r\n\r\n") for body in bodies]
    return ["was answered with the page" for answer in answers if b"200 OK" in answer]


def _leave(server: Server, rng: random.Random) -> list[str]:
    """Ask and be gone before the answer, without a farewell."""
    for _ in range(5):
        with _connect(server) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1, 0, 0, 0, 0, 0, 0, 0]))
            client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % server.port * 20)
    return []


Attack = Callable[[Server, random.Random], list[str]]
ATTACKS: dict[str, Attack] = {
    "drips bytes": _drip,
    "opens many connections": _crowd,
    "sends no request": _garbage,
    "leaves before the answer": _leave,
    **{kind: partial(_hosts, names) for kind, names in HOSTS.items()},
}
"""Behaviour of a client → the function that does it, and returns what it got and should not."""
