"""Small web servers that strangers may reach: a visitor that is slow or hangs up does no harm."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECONDS = 10.0
"""How long a visitor may stay silent."""


class Listener(ThreadingHTTPServer):
    """A web server with a thread for each visit; nothing waits for these threads."""

    def handle_error(self, *visit: Any) -> None:
        """Print nothing: visitors may hang up."""


class Visit(BaseHTTPRequestHandler):
    """A visitor's request."""

    timeout = SECONDS

    def reply(self, status: int, content: bytes, kind: str = "application/json") -> None:
        """Send a page."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Print nothing about visits."""
