"""The live page: the report of a run that looks again by itself, served to this machine alone.

The store is opened read-only, for as long as a look takes. However many browsers are open, a run is read again once a second
at most, and less often where that takes long.
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
from autoloss.report.page.contents import Contents, gathered
from autoloss.report.page.rendering import apology, main, page, policy
from autoloss.store.read import Reader

HOST, PORT = "127.0.0.1", 8642
LOOK_SECONDS = 1.0
"""A run is not looked at more often."""
REST = 10.0
"""After a look the reader rests so many times as long as it took."""
CONNECTIONS = 64
"""The most connections at a time; a browser opens six."""
REQUEST_SECONDS = 20.0
"""How long a client may take from one request to the end of the next, in how many bytes whatever; a hidden page asks every ten."""


_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
"""A Host header: a name or an address, and the port."""


class Live:
    """What is served of a run; its methods may be called by several threads.

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
        self._contents: Contents = gathered(self._reader, live=True)
        self._next_look = clock() + LOOK_SECONDS

    def whole(self) -> str:
        """Return the page as it is first loaded."""
        self.fragment()
        return page(self._contents)

    def fragment(self) -> tuple[str, str]:
        """Return the main part and its tag, which is another one as soon as something changed."""
        with self._lock:
            if self._clock() >= self._next_look:
                self._look()
            html = apology(self._trouble) if self._trouble else ""
            return f'"{self._session}-{self._number}"', html + main(self._contents)

    def _look(self) -> None:
        began = self._clock()
        try:
            trouble, changed = "", self._reader.look()
            if changed:
                self._contents = gathered(self._reader, live=True)
        except (RequestError, RunError) as error:
            # What was read stays on the page, below the sentence.
            trouble, changed = str(error), False
        self._number += changed or trouble != self._trouble
        self._trouble = trouble
        self._next_look = self._clock() + max(LOOK_SECONDS, REST * (self._clock() - began))


class Server(ThreadingHTTPServer):
    """Serves one run; `address` is where.

    Args:
        host: Where it listens; other machines reach it only if it is told so.
        port: 0 takes a free one.

    Raises:
        RequestError: It cannot listen there.
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
            raise RequestError(
                f"The page cannot be served at {host}, port {port}: {reason}. Choose another one.", argument="port"
            ) from None

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Take a connection while there are not too many."""
        with self._guard:
            if len(self._open) >= CONNECTIONS:
                return False
            self.expect(request)
            return True

    def service_actions(self) -> None:
        """End what takes too long; called about twice a second."""
        now = time.monotonic()
        with self._guard:
            late = [connection for connection, end in self._open.items() if end < now]
        for connection in late:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def expect(self, connection: socket.socket, seconds: float | None = None) -> None:
        """Give a connection time for its next step: by default, for reading an answer and sending the next request."""
        with self._guard:
            self._open[connection] = time.monotonic() + (REQUEST_SECONDS if seconds is None else seconds)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that is gone before its answer."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/"

    def knows(self, host: str) -> bool:
        """Say whether a request's Host is a name of this server; a page elsewhere that had its own name point here is refused."""
        found = _HOST.fullmatch(host)
        if found is None or int(found["port"] or 80) != self.port:
            return False
        name = (found["address"] or found["name"]).lower()
        if name in ("localhost", self.host) or _is_loopback(name):
            return True
        # Told to serve others, it is reached by its addresses and its own name.
        return not _is_loopback(self.host) and (_is_address(name) or name == socket.gethostname().lower())


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the page and for its main part."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "autoloss"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        # The time that a page takes is not the client's.
        self.server.expect(self.connection, math.inf)
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.knows(hosts[0].strip()):
            self._answer(
                HTTPStatus.MISDIRECTED_REQUEST,
                "Unknown host name; open the address that the command printed.\n",
                kind="text/plain",
            )
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
        """Say nothing: the terminal is the user's."""


_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
