"""vLLM as a process that answers JSON lines: `vllm_worker DIRECTORY CONTEXT`, run by the interpreter of its own
environment. Its engine is stepped by hand, so that each token has its time.
"""

import json
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from vllm import EngineArgs, LLMEngine, SamplingParams

IDS = count()


@dataclass
class Running:
    """A prompt on its way. times: of each token."""

    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    reused: int | None = None

    def take(self, output: Any, at_s: float) -> None:
        """The request as one step left it."""
        done = output.outputs[0]
        self.times += [at_s] * (len(done.token_ids) - len(self.tokens))
        self.tokens, self.logprobs = list(done.token_ids), list(done.logprobs or [])
        self.reused = output.num_cached_tokens


def run(engine: LLMEngine, prompts: list[list[int]], length: int, logprobs: int | None = None) -> list[Running]:
    """All prompts together, greedy."""
    wanted = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, logprobs=logprobs, detokenize=False)
    started = time.perf_counter()
    running = {}
    for prompt in prompts:
        name = f"request-{next(IDS)}"
        running[name] = Running()
        engine.add_request(name, {"prompt_token_ids": prompt}, wanted)
    while engine.has_unfinished_requests():
        for output in engine.step():
            running[output.request_id].take(output, time.perf_counter() - started)
    return list(running.values())


def main() -> None:
    """Answer until standard input ends."""
    directory, context = sys.argv[1], int(sys.argv[2])
    engine = LLMEngine.from_engine_args(EngineArgs(
        model=directory, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=context, max_num_seqs=8,
        gpu_memory_utilization=0.3,  # of the machine's memory, which it does not have alone
        enable_prefix_caching=True, max_logprobs=10))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "logprobs" in asked:
            [told] = run(engine, [asked["logprobs"]], 1, logprobs=10)
            print(json.dumps({"logprobs": [[token, entry.logprob] for token, entry in told.logprobs[0].items()]}),
                  flush=True)
            continue
        replies = run(engine, asked["prompts"], asked["count"])
        print(json.dumps({
            "replies": [{"tokens": one.tokens, "arrivals_s": one.times, "total_s": one.times[-1], "reused": one.reused}
                        for one in replies],
            "makespan_s": max(one.times[-1] for one in replies)}), flush=True)


if __name__ == "__main__":
    main()
