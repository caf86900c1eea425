"""transformers as a process that answers JSON lines: `transformers_worker DIRECTORY`.

It keeps the cache of every prompt that it is told to keep, and goes on from a deep copy of the longest kept one that a
prompt begins with: what a careful user of the library does, since a recurrent state cannot be rolled back.
"""

import copy
import json
import sys
import time
from typing import Any

import torch
import transformers

Kept = list[tuple[list[int], Any]]


@torch.inference_mode()
def answer(model: Any, kept: Kept, tokens: list[int], count: int, keep: bool) -> dict[str, Any]:
    """Greedy tokens of one prompt, with their times."""
    started = time.perf_counter()
    known, cache = max(((list_, found) for list_, found in kept if tokens[:len(list_)] == list_),
                       key=lambda pair: len(pair[0]), default=([], None))
    cache = copy.deepcopy(cache)
    fed, said, times = tokens[len(known):], [], []
    for _ in range(count):
        out = model(torch.tensor([fed]), past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache = out.past_key_values
        fed = [int(out.logits[0, -1].argmax())]
        said += fed
        times.append(time.perf_counter() - started)
    total = time.perf_counter() - started
    if keep:
        kept.append(([*tokens, *said[:-1]], cache))
    return {"tokens": said, "arrivals_s": times, "total_s": total, "reused": len(known)}


@torch.inference_mode()
def logprobs(model: Any, tokens: list[int]) -> dict[str, Any]:
    """The ten likeliest next tokens."""
    top = torch.log_softmax(model(torch.tensor([tokens]), logits_to_keep=1).logits[0, -1], -1).topk(10)
    return {"logprobs": [[int(token), float(value)] for value, token in zip(*top, strict=True)]}


def main() -> None:
    """Answer until standard input ends."""
    model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    kept: Kept = []
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "logprobs" in asked:
            told = logprobs(model, asked["logprobs"])
        else:
            replies = [answer(model, kept, prompt, asked["count"], asked["keep"]) for prompt in asked["prompts"]]
            told = {"replies": replies, "makespan_s": sum(reply["total_s"] for reply in replies)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
