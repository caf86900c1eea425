"""isolation: can one session see, continue or delete what belongs to another, or reuse or time across salts, or keys?

Sessions share prefixes by design: what keeps a text's prefix to oneself is a salt. So timings are compared across
salts: a text that is known under one salt against texts that nobody has seen, in interleaved blocks.
"""

import json
import secrets
from collections.abc import Callable, Sequence

from ninfer_lifecycle.client import EngineReplyError
from ninfer_lifecycle.evidence import Step
from ninfer_lifecycle.gates.blocks import MIN_BLOCKS
from ninfer_lifecycle.gates.pairs import ratio_check
from ninfer_lifecycle.gates.plans import KEYED_ROUTES, TIMING_CLAIM
from ninfer_lifecycle.gates.stats import median
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.verdict import Result
from ninfer_lifecycle.probes.continuing import status_of_continuing
from ninfer_lifecycle.probes.exchange import Question
from ninfer_lifecycle.probes.parts import Act, Part, Threads, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep
from ninfer_lifecycle.probes.templates import derive_nonce, exact_template, ledger_text
from ninfer_lifecycle.profiles.schema import ProbeSection

SHARED_HEAD = 64
"""Tokens that any two prompts may share: the chat template before the user's first word."""

TIMED_TOKENS = 2048
ORDER = "UKKUUKKU"
"""Of one block: texts that nobody knows, and texts that are known under another salt. Four each outlast one spike."""
MOST_BLOCKS = 3 * MIN_BLOCKS
ID_PAIRS = 15
ID_SLACK_US = 5_000


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    owner, size = Owner(section), small(section)
    timed = min(size, TIMED_TOKENS)
    return (Act("ask as a stranger", size, owner.meet_strangers),
            Act("the same text under two salts", 2 * size, owner.salts),
            Act("go on as the owner", section.fork_input_tokens + section.fork_output_tokens, owner.goes_on),
            Act("time ids of another session", 0, owner.time_ids), Act("ask with another key", 0, owner.keys),
            # Last: so many strangers are more than a catalog need hold beside anyone.
            Act("time texts that another salt knows", MIN_BLOCKS * len(ORDER) * timed * 3 // 2, owner.time_texts))


class Owner:
    """A session with one response, and what others try with it."""

    def __init__(self, section: ProbeSection) -> None:
        self._section, self._threads = section, Threads()

    def meet_strangers(self, run: ProbeRun) -> None:
        """Another session asks for everything that is this one's."""
        mine = self._threads.named["mine"] = begin(run, "isolation", small(self._section),
                                                   self._section.base_output_tokens)
        stranger, client, wanted = run.effects.token_hex(32), run.client, mine.response_id or ""
        run.fact("isolation.continue", status_of_continuing(run, mine, stranger), "equal", 404,
                 "HTTP status of continuing another session's response")
        run.fact("isolation.read", _status(run, lambda: client.get_response(wanted, stranger)), "equal", 404,
                 "HTTP status of reading another session's response")
        run.fact("isolation.delete", _status(run, lambda: client.delete_response(wanted, stranger)), "equal", 404,
                 "HTTP status of deleting another session's response")
        run.fact("isolation.still_there", _status(run, lambda: client.get_response(wanted, mine.session)), "equal",
                 200, "HTTP status of reading it as its owner afterwards")
        with run.waiting():
            state = client.checkpoint_status(stranger).state
        run.fact("isolation.checkpoint", int(state == "missing"), "equal", 1, f"a stranger's checkpoint is {state}")
        body = {"model": run.model, "input": "Go on.", "max_output_tokens": 1, "store": False,
                "ninfer_session": mine.session}
        run.fact("isolation.identity_conflict", _status(run, lambda: client.create_response(body, stranger)), "equal",
                 400, "HTTP status of a request whose body and header name different sessions")

    def salts(self, run: ProbeRun) -> None:
        """The same text under another salt reuses nothing."""
        template = exact_template(small(self._section), derive_nonce(run.nonce, "part/isolation/salts"), run.count,
                                  run.chars_per_token)
        for salt in ("one", "two"):
            record = run.ask(Question(
                Step.OTHER, template.text, run.effects.token_hex(32), template.tokens,
                self._section.base_output_tokens, cache_salt=derive_nonce(run.nonce, salt)))
            if salt == "two":
                run.fact("isolation.salts_share_nothing", record.cached_tokens, "at_most", SHARED_HEAD,
                         record.error or "tokens that the same text reused under another salt", [record.request_id])

    def goes_on(self, run: ProbeRun) -> None:
        """The owner's own turn is hot after all that."""
        turn(run, self._threads.get("mine"), "isolation.owner_is_hot", self._section)

    def time_texts(self, run: ProbeRun) -> None:
        """Blocks of texts that nobody knows, and of texts that another salt knows; more where noise leaves it open."""
        for number in range(MOST_BLOCKS):
            if number >= MIN_BLOCKS and not _is_open(run):
                break
            _timed_block(run, self._section, number)

    def time_ids(self, run: ProbeRun) -> None:
        """How long a refusal takes."""
        _compare_ids(run, self._threads.get("mine").response_id or "", run.effects.token_hex(32))

    def keys(self, run: ProbeRun) -> None:
        """Another key opens nothing."""
        mine = self._threads.get("mine")
        asked = {"status": ("GET", "/v1/ninfer/status"), "models": ("GET", "/v1/models"),
                 "create": ("POST", "/v1/responses"), "read": ("GET", f"/v1/responses/{mine.response_id}"),
                 "delete": ("DELETE", f"/v1/responses/{mine.response_id}"),
                 "checkpoint": ("POST", "/v1/ninfer/checkpoints")}
        for route in KEYED_ROUTES:
            run.fact("isolation.other_key", ask_with_another_key(run, *asked[route], mine.session), "equal", 401,
                     f"HTTP status of {' '.join(asked[route])} with another key")


def _timed_block(run: ProbeRun, section: ProbeSection, number: int) -> None:
    tokens = min(small(section), TIMED_TOKENS)
    chars = round(tokens * run.chars_per_token)

    def ask(text: str, salt: str, purpose: str | None) -> None:
        run.ask(Question(Step.OTHER, text, run.effects.token_hex(32), tokens, section.base_output_tokens,
                         purpose=purpose, cache_salt=derive_nonce(run.nonce, salt), store=False, streamed=True,
                         block=number if purpose else None))

    texts = [ledger_text(derive_nonce(run.nonce, f"part/isolation/timing/{number}/{slot}"), chars)[:chars]
             for slot in range(len(ORDER))]
    for text, side in zip(texts, ORDER, strict=True):
        if side == "K":
            ask(text, "owner", None)
    for text, side in zip(texts, ORDER, strict=True):
        ask(text, "stranger", "isolation.known_first_token" if side == "K" else "isolation.salted_first_token")


def _is_open(run: ProbeRun) -> bool:
    return ratio_check(TIMING_CLAIM, Evidence(tuple(run.journal.requests))).result is Result.INCONCLUSIVE


def _compare_ids(run: ProbeRun, foreign: str, stranger: str) -> None:
    """Whether a refusal takes as long for an id that another session has as for one that nobody has."""
    took_us: dict[bool, list[int]] = {True: [], False: []}
    for number in range(2 * ID_PAIRS):
        there = number % 4 in {0, 3}
        parent = foreign if there else f"resp_{secrets.token_hex(max(1, (len(foreign) - 5) // 2))}"
        body = {"model": run.model, "input": "Go on.", "max_output_tokens": 1, "store": False,
                "previous_response_id": parent}
        with run.waiting():
            reply = run.client.raw("POST", "/v1/responses", json.dumps(body).encode(), {"X-NInfer-Session": stranger})
        took_us[there].append(round(reply.wall_s * 1e6))
    known, unknown = median(took_us[True]), median(took_us[False])
    run.fact("isolation.foreign_id_looks_unknown", abs(known - unknown), "at_most", max(ID_SLACK_US, unknown // 2),
             f"us apart: a refusal takes {known} for another session's response, {unknown} for none")
    run.refresh()


def ask_with_another_key(run: ProbeRun, method: str, path: str, session: str | None = None) -> int | None:
    """The HTTP status of a request with a key that is not this run's; None where the engine is asked without any."""
    if not run.client.has_key:
        return None
    content = json.dumps({"model": run.model, "input": "Hello.", "max_output_tokens": 1}).encode()
    headers = {"Authorization": f"Bearer {secrets.token_urlsafe(32)}",
               **({"X-NInfer-Session": session} if session else {})}
    with run.waiting():
        return run.client.raw(method, path, content if method == "POST" else None, headers).status


def _status(run: ProbeRun, call: Callable[[], object]) -> int:
    """200, or the HTTP status of the engine's refusal."""
    try:
        with run.waiting():
            call()
    except EngineReplyError as error:
        return error.status
    finally:
        run.refresh()
    return 200


ISOLATION = Part(
    "isolation", "Can sessions, salts and keys see each other's responses, prefixes or timings?", _steps)
