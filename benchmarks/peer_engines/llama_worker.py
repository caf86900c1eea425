"""llama.cpp's server as a process: `llama_worker FILE CONTEXT SLOTS DIRECTORY` prints where it listens. It serves
until its standard input ends."""

import json
import os
import sys

import xllamacpp


def main() -> None:
    """Serve."""
    said = os.dup(1)
    os.dup2(2, 1)  # its log goes where it does no harm
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.warmup = int(sys.argv[2]), int(sys.argv[3]), True
    params.slot_save_path = sys.argv[4] + "/"
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = os.cpu_count() or 1
    params.fit_params = False
    server = xllamacpp.Server(params)
    os.write(said, json.dumps({"url": server.listening_address}).encode() + b"\n")
    sys.stdin.read()
    os._exit(0)  # nothing of it has to be put away


if __name__ == "__main__":
    main()
