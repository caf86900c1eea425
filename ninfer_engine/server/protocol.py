"""HTTP/1.1 as uvicorn speaks it over httptools, but for three things: what is no HTTP at all gets our error body and a
request id too; a head that does not end is refused instead of kept; and a request that offers another protocol (Java's
client offers h2c with every one) keeps its body, which httptools would take for that protocol's first bytes."""

import json
import re

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ninfer_engine.server.errors import invalid
from ninfer_engine.server.identity import new_request_id

MAX_HEAD_BYTES = 64 * 1024
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)


class JsonErrorsProtocol(HttpToolsProtocol):
    """Used by name through uvicorn's configuration."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        """Bytes of the client's. httptools keeps a head of any length, so what came of one is counted here."""
        if self._in_head:
            self._head_bytes += len(data)
            data = _without_offer(data) if _UPGRADE.search(data) else data
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(f"the request's head is longer than {MAX_HEAD_BYTES} bytes")

    def on_headers_complete(self) -> None:
        """A head has ended; what follows is a body, which the route limits."""
        self._in_head, self._head_bytes = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request has ended; what follows is the next head."""
        self._in_head = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that could not be read as HTTP, then close."""
        body = json.dumps(invalid(msg).body()).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {new_request_id()}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def _without_offer(data: bytes) -> bytes:
    """The bytes of a head, and of what follows it, with the header Upgrade under another name."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrade-offered:", head) + end + rest
