"""The live page: for this machine alone, new as soon as something changed, and no burden to who writes."""

from __future__ import annotations

import http.client
import shutil
import socket
import struct
import threading
import time
from contextlib import suppress

import pytest

from autoloss.errors import RequestError
from autoloss.report.page import serving
from autoloss.report.page.rendering import policy
from autoloss.report.page.serving import Live, Server
from autoloss.store.store import FILE, Store
from tests.report.written import CE, KEY, add, begin, candidate, scored, searched


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def directory(tmp_path):
    return searched(tmp_path / "run")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def server(directory, clock):
    with Server(Live(directory, clock), port=0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def asked(server: Server, path: str, method: str = "GET", **headers: str) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read().decode()
    finally:
        connection.close()


def test_the_page_and_its_main_part_are_served_with_a_policy(server):
    answer, text = asked(server, "/")
    assert answer.status == 200
    assert "<html" in text
    assert "data-live" in text
    assert answer.headers["Content-Security-Policy"] == f"{policy(live=True)}; frame-ancestors 'none'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    answer, part = asked(server, "/main")
    assert "<html" not in part
    assert part.strip() in text


def test_an_unchanged_page_is_not_sent_again_and_a_changed_one_is(server, directory, clock):
    answer, _ = asked(server, "/main")
    tag = answer.headers["ETag"]
    again, text = asked(server, "/main", **{"If-None-Match": tag})
    assert (again.status, text) == (304, "")
    with Store(directory, write=True) as store:
        store.add_training(CE, KEY, scored(0.95), 5)
    clock.now = 5.0
    changed, text = asked(server, "/main", **{"If-None-Match": tag})
    assert changed.status == 200
    assert "best so far is #5 with 0.9500" in text


@pytest.mark.parametrize("path", ["/run.sqlite", "/../run.sqlite", "/main/", "/?x"])
def test_nothing_else_is_there(path, server):
    answer, text = asked(server, path)
    assert answer.status == 404
    assert "SQLite" not in text


STRANGE = [
    "evil@127.0.0.1:{port}",
    "127.0.0.1:{port}@evil",
    "127.0.0.1:{port}/x",
    "127.0.0.1:{port}, evil",
    "127.0.0.1:+{port}",
]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "", "[::1", "10.0.0.1:{port}", *STRANGE]
)
def test_a_request_for_another_host_is_refused(host, server):
    answer, text = asked(server, "/", Host=host.format(port=server.port))
    assert answer.status == 421
    assert "<html" not in text


@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "LOCALHOST:{port}", "[::1]:{port}"])
def test_names_of_this_machine_are_answered(host, server):
    answer, _ = asked(server, "/main", Host=host.format(port=server.port))
    assert answer.status == 200


def raw(server: Server, request: bytes) -> bytes:
    """Send bytes and return all of the answer; the connection stays open until the server ends it."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(request)
        found = b""
        with suppress(ConnectionResetError):
            while chunk := client.recv(65536):
                found += chunk
        return found


@pytest.mark.parametrize("second", ["evil.example", "127.0.0.1:{port}"])
def test_two_hosts_are_refused(second, server):
    hosts = "".join(f"Host: {host.format(port=server.port)}\r\n" for host in ("127.0.0.1:{port}", second))
    answer = raw(server, f"GET /main HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 421")
    assert b"best so far" not in answer


def test_a_client_that_is_gone_before_its_answer_is_no_traceback(server, capfd):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            # Closed at once, with what was not read: the server's next write fails.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode() * 20)
    assert asked(server, "/main")[0].status == 200
    while server._open:
        time.sleep(0.01)
    assert capfd.readouterr().err == ""


def test_the_time_that_a_page_takes_is_not_the_clients(server, monkeypatch):
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 0.2)
    whole = server.live.whole

    def take_long() -> str:
        time.sleep(0.6)
        return whole()

    monkeypatch.setattr(server.live, "whole", take_long)
    answer, text = asked(server, "/")
    assert answer.status == 200
    assert "</html>" in text


def drip(client: socket.socket, seconds: float) -> float:
    """Send a byte now and then, so that no single wait is long; return when the server ended that."""
    began = time.monotonic()
    client.settimeout(0.1)
    with suppress(OSError):
        while time.monotonic() - began < seconds:
            client.sendall(b"G")
            with suppress(TimeoutError):
                if not client.recv(1):
                    break
    return time.monotonic() - began


def test_a_client_that_takes_its_time_is_left(server, monkeypatch):
    with monkeypatch.context() as patch:
        # Before the connection: its time begins when it is accepted.
        patch.setattr(serving, "REQUEST_SECONDS", 0.3)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            assert drip(client, 20) < 10
    assert asked(server, "/main")[0].status == 200


def test_a_client_that_asks_now_and_then_is_kept(server, monkeypatch):
    monkeypatch.setattr(serving, "REQUEST_SECONDS", 1.0)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    used = set()
    for _ in range(5):
        connection.request("GET", "/main")
        assert connection.getresponse().read()
        used.add(connection.sock)
        time.sleep(0.4)
    assert len(used) == 1
    connection.close()


def test_connections_are_counted(server, monkeypatch):
    monkeypatch.setattr(serving, "CONNECTIONS", 3)
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(3)]
    while len(server._open) < 3:
        time.sleep(0.01)
    assert raw(server, b"") == b""
    for client in clients:
        client.close()
    while server._open:
        time.sleep(0.01)
    assert asked(server, "/main")[0].status == 200


def test_other_methods_change_nothing(server):
    assert asked(server, "/", "POST")[0].status == 501
    answer, text = asked(server, "/", "HEAD")
    assert (answer.status, text) == (200, "")


def test_it_listens_to_this_machine_alone_unless_told(directory):
    live = Live(directory)
    with Server(live, port=0) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert not server.knows(f"10.0.0.1:{server.port}")
        with pytest.raises(RequestError, match="Choose another one"):
            Server(live, port=server.port)
    with pytest.raises(RequestError, match="The page cannot be served"):
        Server(live, "203.0.113.7", 0)


def test_a_run_is_read_once_a_second_however_many_ask(directory, clock):
    live = Live(directory, clock)
    tag, _ = live.fragment()
    add(directory, (candidate(6, CE), scored(0.99)))
    assert live.fragment()[0] == tag
    clock.now = 2.0
    assert live.fragment()[0] != tag


def test_a_run_that_vanishes_is_a_sentence_above_what_was_read(directory, clock):
    live = Live(directory, clock)
    shutil.move(directory / FILE, directory / "elsewhere")
    clock.now = 5.0
    tag, text = live.fragment()
    assert "There is no run in" in text
    assert "best so far is #1" in text
    shutil.move(directory / "elsewhere", directory / FILE)
    clock.now = 500.0
    again, text = live.fragment()
    assert "There is no run in" not in text
    assert again != tag


def test_readers_do_not_keep_the_writer_from_writing(tmp_path, clock):
    directory = begin(tmp_path / "run")
    live = Live(directory, clock)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            clock.now += 1000
            live.fragment()

    reader = threading.Thread(target=look)
    reader.start()
    try:
        with Store(directory, write=True) as store:
            for number in range(40):
                store.add_candidate(candidate(number), {})
                store.add_training(CE, KEY, scored(number / 50), number)
    finally:
        stop.set()
        reader.join()
    clock.now += 1000
    assert "best so far is #39" in live.fragment()[1]
