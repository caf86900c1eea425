"""HTTP/1.1 as uvicorn speaks it, but for one reply: what is no HTTP at all gets our error body and a request id too."""

import json

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ninfer_engine.server.errors import invalid
from ninfer_engine.server.identity import new_request_id


class JsonErrorsProtocol(H11Protocol):
    """Used by name through uvicorn's configuration."""

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that could not be read as HTTP, then close."""
        body = json.dumps(invalid(msg).body()).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", new_request_id().encode()),
            (b"connection", b"close"),
        ]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
