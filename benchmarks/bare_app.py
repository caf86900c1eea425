"""The floor of overhead_bench: an app that does nothing, under the same uvicorn as the server.

`python -m benchmarks.bare_app` listens on a free port and prints it. The header `x-reply: BYTES STREAMED` says how long
the reply's body is to be, and whether it comes in chunks.
"""

import json

import uvicorn
from starlette.types import Receive, Scope, Send

from ninfer_engine.server.protocol import JsonErrorsProtocol
from ninfer_engine.server.serve import bind


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the request, answer as many bytes as it asks for."""
    size, streamed = (int(word) for word in dict(scope["headers"])[b"x-reply"].split())
    while (await receive()).get("more_body"):
        pass
    length = [] if streamed else [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": b"x" * size})


def main() -> None:
    """Serve until told to stop."""
    listener = bind("127.0.0.1", 0)
    print(json.dumps({"port": listener.getsockname()[1]}), flush=True)
    config = uvicorn.Config(app, http=JsonErrorsProtocol, loop="uvloop", ws="none", lifespan="off", log_config=None,
                            access_log=False, server_header=False, proxy_headers=False)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
