"""Small web servers that strangers may reach: who is slow, or hangs up, costs nothing."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECONDS = 10.0
"""How long a visitor may say nothing."""


class Listener(ThreadingHTTPServer):
    """Each visit has a thread of its own, which nobody waits for."""

    def handle_error(self, *visit: Any) -> None:
        """Say nothing: visitors may hang up."""


class Visit(BaseHTTPRequestHandler):
    """What a visitor asks for."""

    timeout = SECONDS

    def reply(self, status: int, content: bytes, kind: str = "application/json") -> None:
        """Send a page."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Say nothing of who looked."""
