"""A stand-in for the engine that misbehaves on request: `fake_engine_server.py BEHAVIOUR serve --port N ...`.

Standard library only, so that it runs in a bare container. It speaks /health, /v1/ninfer/status, the smallest reply of
/v1/responses, and no more.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def say(text, flush=False):
    sys.stdout.write(text + "\n")
    if flush:
        sys.stdout.flush()


def parse_options(argv):
    """`--a b --c` as {"a": "b", "c": True}."""
    options, index = {}, 0
    while index < len(argv):
        name = argv[index].removeprefix("--")
        has_value = index + 1 < len(argv) and not argv[index + 1].startswith("--")
        options[name] = argv[index + 1] if has_value else True
        index += 2 if has_value else 1
    return options


def status_document(options, behaviour):
    foreign = behaviour == "foreign_identity"
    return {
        "artifact_type": "ninfer_server_status", "schema_version": 1, "status": "ok",
        "identity": {
            "deployment_profile": None, "model_id": options.get("model-id", "m"),
            "model_artifact_sha256": "f" * 64 if foreign else options.get("model-sha256", "0" * 64),
            "binary_sha256": "1" * 64, "config_sha256": "e" * 64 if foreign else options.get("config-sha256"),
            "build_profile": "fake", "engine_version": "0", "device": "cpu", "server_instance_id": uuid.uuid4().hex,
        },
        "runtime": {"public_model_id": "m", "max_context": 64, "kv_capacity_mode": "auto", "kv_capacity_tokens": 64,
                    "kv_cache": "fp32", "speculative_backend": "none"},
        "scheduler": {"max_concurrency": 1, "max_pending_requests": 1},
        "cache": {"host_kv": {"occupied_bytes": 2**30, "capacity_bytes": 2**30}} if behaviour == "holds_much" else {},
        "restore": {},
    }


class Handler(BaseHTTPRequestHandler):
    behaviour = "ok"
    options = None
    key = None

    def do_GET(self):
        if self.behaviour == "silent":
            time.sleep(3600)
        if self.path == "/health":
            return self.answer(503 if self.behaviour == "never_healthy" else 200, {"status": "ok"})
        if self.path == "/v1/ninfer/status":
            if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
                return self.answer(401, {"error": {"message": "no", "type": "authentication_error",
                                                   "code": "invalid_api_key"}})
            return self.answer(200, status_document(self.options, self.behaviour))
        return self.answer(404, {"error": {"message": "no such route", "type": "invalid_request_error",
                                           "code": "not_found"}})

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.behaviour == "cannot_generate":
            return self.answer(503, {"error": {"message": "the engine's thread has ended", "type": "server_error",
                                               "code": "engine_unavailable"}})
        if self.behaviour == "never_replies":
            self.connection.settimeout(3600)
            self.connection.recv(1)  # until the client has had enough
            self.close_connection = True
            return None
        if self.behaviour == "dies_at_its_first_reply":
            say("the kernel could not be launched", flush=True)
            os._exit(7)
        return self.answer(200, {"id": "resp_1", "object": "response", "status": "completed", "output": []})

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        return


def misbehave_before_serving(behaviour):
    if behaviour == "dies_at_once":
        say("the reason is on this line", flush=True)
        sys.exit(3)
    if behaviour == "wrong_model":
        say("model digest differs from --model-sha256", flush=True)
        sys.exit(2)
    if behaviour == "runs_out_of_memory":
        hoard = []
        while True:
            hoard.append(bytearray(2**24))
    if behaviour == "floods_its_log":
        for line in range(200_000):
            say(f"line {line} " + "x" * 40)
        sys.stdout.flush()
    if behaviour == "loses_a_worker_to_memory":
        code = "hoard = []\nwhile True: hoard.append(bytearray(2**24))"
        ended = subprocess.run([sys.executable, "-c", code], check=False)
        say(f"the worker ended with {ended.returncode}", flush=True)
    if behaviour == "exits_in_50_ms":
        time.sleep(0.05)
        say("gone again", flush=True)
        sys.exit(5)
    if behaviour == "leaves_a_worker":
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        say(f"worker {worker.pid}", flush=True)


def wait_while_taken(port):
    """Never try to listen on a port that someone has: like an engine that loads for long."""
    while True:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                return listener.bind(("127.0.0.1", port))
            except OSError:
                time.sleep(0.05)


def main():
    behaviour, options = sys.argv[1], parse_options(sys.argv[3:])
    say(f"fake engine: {behaviour} as {os.getuid()}", flush=True)
    misbehave_before_serving(behaviour)
    if behaviour == "ignores_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Handler.behaviour, Handler.options = behaviour, options
    if isinstance(options.get("api-key-file"), str):
        Handler.key = Path(options["api-key-file"]).read_text().strip()
    if isinstance(options.get("session-checkpoint-dir"), str):
        with (Path(options["session-checkpoint-dir"]) / "lives").open("a") as file:
            file.write("life\n")
    if behaviour == "loads_while_a_stranger_has_its_port":
        wait_while_taken(int(options["port"]))
    address = "127.0.0.1" if behaviour == "listens_where_nobody_comes" else options.get("host", "127.0.0.1")
    server = ThreadingHTTPServer((address, int(options.get("port", 8080))), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if behaviour == "dies_after_a_while":
        time.sleep(1.0)
        say("something went wrong later", flush=True)
        os._exit(9)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
