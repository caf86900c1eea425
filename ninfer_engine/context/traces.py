"""Traces: generators of the loads that matter, and readers of lines (whoever reads files gives the lines)."""

import json
import random
from collections.abc import Iterable, Iterator

from ninfer_engine.context.simulator import TraceRequest
from ninfer_engine.context.tokens import TokenRuns

MOONCAKE_BLOCK = 512


class TraceError(ValueError):
    """A trace line that cannot be read; says which and what to do."""


def text(name: str, length: int) -> TokenRuns:
    """Made-up tokens that nothing else shares."""
    return TokenRuns.of([(name, 0, length)])


def fan_out(
    templates: tuple[int, ...],
    forks: int,
    rounds: int = 1,
    fork_tokens: int = 40,
    reply: int = 40,
    gap_s: float = 1.0,
    seed: int | None = None,
) -> Iterator[TraceRequest]:
    """A fleet: each template stored once, then `forks` siblings of each, template after template or (seed) shuffled;
    rounds repeat the forks with new questions."""
    at, bases = 0.0, []
    for number, tokens in enumerate(templates):
        base = TraceRequest(
            f"base{number}", at, text(f"t{number}", tokens), text(f"a{number}", reply), session=f"s{number}"
        )
        bases.append(base)
    order = [(n, r, f) for n in range(len(bases)) for r in range(rounds) for f in range(forks)]
    if seed is not None:
        yield from bases
        random.Random(seed).shuffle(order)
    seen = set(range(len(bases))) if seed is not None else set()
    for number, turn, fork in order:
        base = bases[number]
        if number not in seen:
            seen.add(number)
            yield _at(base, at)
            at += gap_s
        name = f"f{number}.{turn}.{fork}"
        prompt = base.prompt.joined(base.reply).joined(text(name, fork_tokens))
        yield TraceRequest(name, at, prompt, text(f"{name}r", reply), base.id, base.session)
        at += gap_s


def waves(waves: Iterable[Iterable[TraceRequest]], gap_s: float = 60.0) -> Iterator[TraceRequest]:
    """Loads one after another, each with content, ids and sessions of its own: what a fleet does over days."""
    begins = 0.0
    for number, wave in enumerate(waves):
        ends = begins
        for request in wave:
            ends = begins + request.at
            yield TraceRequest(
                f"w{number}.{request.id}",
                ends,
                _renamed(request.prompt, number),
                _renamed(request.reply, number),
                f"w{number}.{request.parent}" if request.parent is not None else None,
                f"w{number}.{request.session}" if request.session is not None else None,
                request.store,
                request.salt,
            )
        begins = ends + gap_s


def _renamed(tokens: TokenRuns, wave: int) -> TokenRuns:
    return TokenRuns.of(((wave, run.content), run.start, run.stop) for run in tokens.runs)


def _at(request: TraceRequest, at: float) -> TraceRequest:
    return TraceRequest(request.id, at, request.prompt, request.reply, request.parent, request.session, request.store)


def middle_forks(tokens: int, points: Iterable[int], reply: int = 40) -> Iterator[TraceRequest]:
    """One template, then a branch from each of some unmarked positions inside it."""
    template = text("t", tokens)
    yield TraceRequest("base", 0.0, template, text("a", reply), session="s")
    for number, point in enumerate(points, 1):
        prompt = template.part(0, point).joined(text(f"m{number}", 200))
        yield TraceRequest(f"middle{number}", float(number), prompt, text(f"mr{number}", reply), session="s")


def agents(
    sessions: int,
    turns: int,
    first: int = 4000,
    turn_tokens: int = 600,
    reply: int = 250,
    think_s: float = 20.0,
    seed: int = 0,
) -> Iterator[TraceRequest]:
    """Multi-turn agents: every session appends to its own history; turns of different sessions interleave at random."""
    dice = random.Random(seed)
    history: dict[int, tuple[TokenRuns, str | None, int]] = {
        n: (text(f"s{n}", first), None, 0) for n in range(sessions)
    }
    clock = [(dice.expovariate(1 / think_s), n) for n in range(sessions)]
    while clock:
        at, n = min(clock)
        clock.remove((at, n))
        known, parent, turn = history[n]
        prompt = known.joined(text(f"s{n}u{turn}", dice.randint(turn_tokens // 2, turn_tokens * 2)))
        answer = text(f"s{n}a{turn}", dice.randint(reply // 2, reply * 2))
        name = f"s{n}t{turn}"
        yield TraceRequest(name, at, prompt, answer, parent, f"s{n}")
        history[n] = (prompt.joined(answer), name, turn + 1)
        if turn + 1 < turns:
            clock.append((at + dice.expovariate(1 / think_s), n))


def system_prompts(
    prompts: int,
    requests: int,
    system_tokens: int = 3000,
    own: int = 500,
    reply: int = 150,
    gap_s: float = 2.0,
    seed: int = 0,
) -> Iterator[TraceRequest]:
    """Stateless requests over a few system prompts of unequal popularity (rank r with weight 1 / r)."""
    dice = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(prompts)]
    at = 0.0
    for number in range(requests):
        chosen = dice.choices(range(prompts), weights)[0]
        prompt = text(f"system{chosen}", system_tokens + 400 * chosen).joined(text(f"q{number}", own))
        yield TraceRequest(f"q{number}", at, prompt, text(f"r{number}", reply), store=False)
        at += dice.expovariate(1 / gap_s)


def giant_interference(
    template: int, giant: int, forks: int, every: int = 3, reply: int = 40, gap_s: float = 5.0
) -> Iterator[TraceRequest]:
    """An active session's forks, with a giant prompt of a stranger before every so many of them."""
    base = TraceRequest("base", 0.0, text("t", template), text("a", reply), session="s")
    yield base
    at = gap_s
    for fork in range(forks):
        if fork % every == 0:
            yield TraceRequest(
                f"giant{fork}", at, text(f"g{fork}", giant), text(f"gr{fork}", reply), session=f"g{fork}", store=False
            )
        name = f"f{fork}"
        prompt = base.prompt.joined(base.reply).joined(text(name, 40))
        yield TraceRequest(name, at + 0.1, prompt, text(f"{name}r", reply), base.id, "s")
        at += gap_s


def mooncake(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """The public Mooncake format: timestamp (ms), input_length, output_length, hash_ids of chained 512-token blocks.

    Equal leading ids mean an equal prefix, so a block's content is its id. Replies are not part of the format: they
    are content of their own, and a later prompt that repeats one shows it as new blocks. Raises TraceError.
    """
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            length, blocks = int(record["input_length"]), list(record["hash_ids"])
            at, output = record["timestamp"] / 1000, int(record["output_length"])
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(
                f"line {number + 1} is not a Mooncake record ({error!r}): one JSON object a line"
            ) from error
        runs = [(block, 0, min(MOONCAKE_BLOCK, length - MOONCAKE_BLOCK * i)) for i, block in enumerate(blocks)]
        prompt = TokenRuns.of((("block", block), start, stop) for block, start, stop in runs)
        if len(prompt) < 1:
            raise TraceError(f"line {number + 1} has no tokens: leave it out")
        yield TraceRequest(f"m{number}", at, prompt, text(f"mr{number}", max(1, output)))


def jsonl(lines: Iterable[str]) -> Iterator[TraceRequest]:
    """Our own format: {"id", "at", "prompt": [[content, start, stop], ...], "reply": tokens, "parent", "session",
    "store"}.

    A prompt may begin with {"of": id}: the whole prompt and reply of an earlier request. Raises TraceError.
    """
    known: dict[str, TokenRuns] = {}
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            prompt = TokenRuns.of(())
            for piece in record["prompt"]:
                prompt = prompt.joined(known[piece["of"]] if isinstance(piece, dict) else TokenRuns.of([tuple(piece)]))
            reply = text(f"reply of {record['id']}", int(record.get("reply", 0)))
            request = TraceRequest(
                str(record["id"]),
                float(record["at"]),
                prompt,
                reply,
                record.get("parent"),
                record.get("session"),
                bool(record.get("store", True)),
                record.get("salt", ""),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TraceError(f"line {number + 1} is not a trace record ({error!r}): see traces.jsonl") from error
        known[request.id] = prompt.joined(reply)
        yield request
