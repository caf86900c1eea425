"""llama.cpp on a GGUF file, as a process: `llama_cpp_oracle.py FILE` reads JSON lines, answers with JSON lines.

{"prompt": [token, ...], "count": n, "top": k} -> {"tokens": [...], "logprobs": [[[token, logprob], ...], ...]}
{"text": "..."} -> {"tokens": [...]}
"""

import json
import os
import sys
import urllib.request
from typing import Any

import xllamacpp


def main() -> None:
    """Answer until standard input ends."""
    said = os.dup(1)
    os.dup2(2, 1)  # its log goes where it does no harm
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_ctx, params.n_parallel, params.warmup = 1024, 1, False
    params.cpuparams.n_threads = 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    # Its flash attention rounds to fp16.
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = _tokens(server, asked) if "text" in asked else _complete(server, asked)
        os.write(said, json.dumps(answer).encode() + b"\n")


def _complete(server: Any, asked: dict[str, Any]) -> dict[str, Any]:
    body = {"prompt": asked["prompt"], "n_predict": asked["count"], "temperature": 0.0, "ignore_eos": True,
            "n_probs": asked["top"], "post_sampling_probs": False, "return_tokens": True, "cache_prompt": False}
    done = _post(server, "/completion", body)
    steps = done.get("completion_probabilities", [])
    rows = [[[item["id"], item["logprob"]] for item in step["top_logprobs"]] for step in steps]
    return {"tokens": done["tokens"], "logprobs": rows}


def _tokens(server: Any, asked: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": _post(server, "/tokenize", {"content": asked["text"], "parse_special": True})["tokens"]}


def _post(server: Any, path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),  # noqa: S310
                                     {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:  # noqa: S310  # our own server on the loopback
        found: dict[str, Any] = json.load(reply)
    return found


if __name__ == "__main__":
    main()
