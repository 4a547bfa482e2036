"""Small web servers that strangers may reach: a visitor that is slow or hangs up does no harm."""

import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

EVERYWHERE = "::" if socket.has_dualstack_ipv6() else ""
"""All addresses of this host, of IPv6 and of IPv4."""
SECONDS = 10.0
"""How long a visitor may stay silent."""


class Listener(ThreadingHTTPServer):
    """A web server with a thread for each visit; nothing waits for these threads."""

    def __init__(self, address: tuple[str, int], visit: type["Visit"]) -> None:
        """Listen at a host, or at ``EVERYWHERE``."""
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, visit)

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
