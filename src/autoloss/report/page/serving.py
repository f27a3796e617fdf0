"""The live page: the report of a run that updates itself, served to this machine alone.

The store is opened read-only, and only while it is read. A run is read at most once a second with any number of open browsers, and
less often if reading takes long.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from autoloss.errors import RequestError, RunError
from autoloss.report.page.contents import gather_contents
from autoloss.report.page.rendering import main, page, policy
from autoloss.store.read import Reader

HOST, PORT = "127.0.0.1", 8642
LOOK_SECONDS = 1.0
"""Least time between two readings of a run."""
REST = 10.0
"""Least pause after a reading, as a multiple of its duration."""
CONNECTIONS = 64
"""Maximum number of open connections; a browser opens six."""
REQUEST_SECONDS = 20.0
"""Time allowed to a client from one request to the end of the next; a hidden page sends one every ten seconds."""
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
"""Pattern of a Host header: a name or an address, and the port."""


class Live:
    """The page of a run, kept up to date; its methods may be called by several threads.

    Raises:
        RequestError: There is no run in the directory, or it was stopped before it began.
        StoreError: The run cannot be read at all.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = Reader(directory)
        self._clock = clock
        self._lock = threading.Lock()
        # Another server on the same port may have served another run.
        self._session = secrets.token_hex(4)
        self._number = 0
        self._trouble = ""
        self._contents = gather_contents(self._reader, live=True)
        self._next_look = clock() + LOOK_SECONDS

    def whole(self) -> str:
        """Return the whole page, for its first load."""
        self.fragment()
        return page(self._contents)

    def fragment(self) -> tuple[str, str]:
        """Return the main part and its tag, which changes with the contents."""
        with self._lock:
            if self._clock() >= self._next_look:
                self._look()
            return f'"{self._session}-{self._number}"', main(self._contents, self._trouble)

    def _look(self) -> None:
        began = self._clock()
        try:
            trouble, changed = "", self._reader.look()
            if changed:
                self._contents = gather_contents(self._reader, live=True)
        except (RequestError, RunError) as error:
            # The last reading stays on the page, below the warning.
            trouble, changed = str(error), False
        self._number += changed or trouble != self._trouble
        self._trouble = trouble
        self._next_look = self._clock() + max(LOOK_SECONDS, REST * (self._clock() - began))


class Server(ThreadingHTTPServer):
    """Server of one run.

    Args:
        host: Address to listen on; by default, other machines cannot reach it.
        port: Port to listen on; 0 picks a free one.
    """

    daemon_threads = True
    request_queue_size = CONNECTIONS
    allow_reuse_address = os.name == "posix"

    def __init__(self, live: Live, host: str = HOST, port: int = PORT) -> None:
        self.live = live
        self.host = host
        self._open: dict[socket.socket, float] = {}
        self._guard = threading.RLock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            problem = f"The page cannot be served at {host}, port {port}: {reason}. Choose another one."
            raise RequestError(problem, argument="port") from None

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Accept a connection unless there are too many."""
        with self._guard:
            if len(self._open) >= CONNECTIONS:
                return False
            self.expect(request)
            return True

    def service_actions(self) -> None:
        """Close connections that take too long; called about twice a second."""
        now = time.monotonic()
        with self._guard:
            late = [connection for connection, end in self._open.items() if end < now]
        for connection in late:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection and close it."""
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def expect(self, connection: socket.socket, seconds: float | None = None) -> None:
        """Set the time that a connection has: by default, for reading an answer and sending the next request."""
        with self._guard:
            self._open[connection] = time.monotonic() + (REQUEST_SECONDS if seconds is None else seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that closes its connection before the answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """The URL of the page."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def knows(self, host: str) -> bool:
        """Return True if a request's Host is a name of this server; this prevents DNS rebinding."""
        found = _HOST.fullmatch(host)
        if found is None or int(found["port"] or 80) != self.port:
            return False
        name = (found["address"] or found["name"]).lower()
        address, own = _parse_address(name), _parse_address(self.host)
        if name in ("localhost", self.host) or (address and address.is_loopback):
            return True
        # A server for other machines is reached by its addresses and its own name.
        return not (own and own.is_loopback) and (address is not None or name == socket.gethostname().lower())


def _parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(name)
    return None


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page and for its main part."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "autoloss"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        # The time for making a page does not count for the client.
        self.server.expect(self.connection, math.inf)
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.knows(hosts[0].strip()):
            text = "Unknown host name; open the address that the command printed.\n"
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, text, kind="text/plain")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, self.server.live.whole())
        elif self.path == "/main":
            tag, html = self.server.live.fragment()
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, "", tag=tag)
            else:
                self._answer(HTTPStatus.OK, html, tag=tag)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "Not found: this server has / and /main only.\n", kind="text/plain")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: HTTPStatus, text: str, *, kind: str = "text/html", tag: str | None = None) -> None:
        body = text.encode()
        self.server.expect(self.connection)
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'")
        if tag is not None:
            self.send_header("ETag", tag)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        self.server.expect(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the user's."""


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
