"""The pretend engine behind `fault_engine`: pretend tokens, a pretend model, a truthful context cache, named faults.

The pretend model's "state" is the SHA-256 of every token so far, so that an answer depends on the whole context, and a
request resumed in the wrong place answers differently. Nothing here sleeps or takes time: durations are priced.
"""

import copy
import hashlib
import math
import re
import secrets
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

PIECE = re.compile(r"\w{1,4}|\s|[^\w\s]")
USER, END, ASSISTANT = 1, 2, 3
SECONDS_A_TOKEN = 3.8e-4  # 57,853 tokens in 22 s: the published cold prefill


class Fault(StrEnum):
    """What this engine does wrong."""

    ALTERNATE_ANCHOR_ROOT = "alternate_anchor_root"
    HOT_THEN_COLD = "hot_then_cold_in_one_process"
    FIRST_FORK_COLD_AFTER_RESTART = "first_fork_cold_after_restart"
    LOSE_ANCHORS_AFTER_RESTART = "lose_anchors_after_restart"
    ONLY_FIRST_HITS = "only_the_first_of_four_hits"
    NO_REUSE = "no_reuse"
    WRONG_BRANCH = "answer_from_wrong_branch"
    CORRUPT_LOGIT = "corrupt_one_logit"
    FALSE_HITS = "report_hits_it_did_not_have"
    HITS_FOR_ALL = "hit_for_a_template_never_seen"
    OMIT_CACHED_TOKENS = "omit_cached_tokens"
    OMIT_NINFER = "omit_ninfer_record"
    FOREIGN_REQUEST_ID = "reply_with_another_request_id"
    RESTART_BY_ITSELF = "restart_by_itself"
    NEVER_RESTART = "pretend_to_restart"
    DRIFT_AFTER_RESTART = "other_configuration_after_restart"
    WEDGE = "wedge"
    ERROR_500 = "answer_500"
    OK_BUT_FAILED = "http_200_but_failed"
    SLOW_MATERIALISATION = "slow_materialisation"
    LEAK_SLOTS = "leak_slots"
    DROP_UNDER_PRESSURE = "drop_session_under_pressure"
    FOREIGN_SESSIONS = "accept_foreign_sessions"
    SALTS_SHARE = "reuse_across_salts"
    STALE_STATUS = "status_behind_the_reply"
    FORGET_ON_STOP = "graceful_stop_saves_nothing"
    ACCEPT_DAMAGE = "restore_without_checking"
    NO_ERROR_CODES = "errors_without_codes"
    DROP_WITH_PARENT = "deleting_a_parent_forgets_its_children"
    LOSE_WHEN_AT_ONCE = "cold_when_requests_arrive_at_once"
    SAVE_LOSES_RECORDS = "save_leaves_a_response_out"
    SAVE_ANSWERS_404 = "save_answers_404"
    SAVE_NEVER_AVAILABLE = "save_never_available"
    STALL_IN_STREAM = "stand_still_during_a_reply"
    SLOW_WHEN_AT_ONCE = "slow_when_requests_arrive_at_once"
    ONE_CLIENT_FIRST = "serve_one_client_to_its_end_first"
    SHIFT_LOGPROBS = "shift_log_probabilities_when_resumed"
    OMIT_LOGPROBS = "omit_log_probabilities"
    CANNOT_RECALL = "model_without_recall"
    FORGET_RESTORED = "forget_what_was_restored"
    FORGET_RESUMED = "forget_the_middle_when_resumed"
    SLOW_WARM = "warm_no_sooner_than_cold"
    SLOW_DECODE = "decode_at_half_speed"
    COUNT_BACKWARDS = "a_counter_falls"
    SLOW_DOWN = "slow_down_over_time"
    CUT_STREAM = "end_a_stream_without_its_last_event"
    SURROGATES = "lone_surrogates_in_error_texts"
    ALTERNATE_ROOT_ANCHOR = "alternate_root_anchor"
    ALTERNATE_AFTER_RESTART = "alternate_root_anchor_after_restart"
    TIMING_LEAK = "known_texts_are_sooner_under_another_salt"
    SLOW_FOREIGN_404 = "refuse_foreign_ids_later_than_unknown_ones"
    ANY_KEY = "accept_any_key"
    FORGET_TEXT = "restore_another_text_than_was_stored"
    BOUND_STORE = "restore_only_where_it_was_saved"
    HIDE_DAMAGE = "say_missing_of_what_is_damaged"
    NEVER_FROM_DISK = "never_look_on_disk_while_running"
    REFUSE_EARLY = "refuse_before_the_queue_is_full"
    OVERLOAD_500 = "answer_500_when_overloaded"
    STUTTER = "stutter_when_several_reply"
    EMPTY_POOLS = "report_empty_pools"
    VAST_MEMORY = "memory_that_no_prober_fills"


def tokenize(text: str) -> list[int]:
    """Pretend tokens: pieces of up to four word characters, one a blank, one a mark."""
    return [16 + int.from_bytes(hashlib.md5(piece.encode(), usedforsecurity=False).digest()[:3], "big")
            for piece in PIECE.findall(text)]


def turn_tokens(text: str) -> list[int]:
    """A user turn and the opening of the reply."""
    return [USER, *tokenize(text), END, ASSISTANT]


@dataclass(frozen=True)
class Pools:
    """Capacities as the status document tells them; device: with the working slot of the one running sequence."""

    catalog: int = 10_000
    device: int = 5
    host: int = 8


SMALLEST_POOLS = Pools(catalog=2, device=2, host=8)


@dataclass
class Checkpoint:
    """A frontier that can be resumed; the digest stands for pages and state image together."""

    frontier: int
    digest: bytes
    session: str | None
    endpoint: bool
    children: int = 0
    used: int = 0


@dataclass
class Stored:
    """A stored response."""

    response_id: str
    session: str | None
    parent: str | None
    tokens: list[int]
    body: dict[str, Any]
    text: str = ""
    asked: str = ""


@dataclass
class Disk:
    """What outlives a process: saved sessions, and how often an engine started on this disk.

    directory: where each saved session also is a file; a session whose file was changed is damaged.
    """

    saved: dict[str, tuple[list[Stored], list[Checkpoint], int]] = field(default_factory=dict)
    starts: int = 0
    directory: Path | None = None

    def write(self, session: str) -> None:
        """The session's file: bytes that nothing but a save writes."""
        if self.directory is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            (self.directory / f"{session}.bin").write_bytes(self.content(session))

    def content(self, session: str) -> bytes:
        """What the file of a session holds when it is whole."""
        return digest_of(self.saved[session][0][0].tokens) * 8

    def damaged(self, session: str) -> bool:
        """Whether the file is not what was written."""
        if self.directory is None or session not in self.saved:
            return False
        file = self.directory / f"{session}.bin"
        return not file.is_file() or file.read_bytes() != self.content(session)


@dataclass(frozen=True)
class Resumption:
    """Where a request resumes."""

    frontier: int
    path: str
    reason: str | None
    restored: bool = False


def digest_of(tokens: list[int], salted: bytes = b"") -> bytes:
    """The state after `tokens`; the salt keeps equal tokens of different salts apart."""
    return hashlib.sha256(salted + array("I", tokens).tobytes()).digest()


def salt_tokens(salt: str) -> bytes:
    """A salt as the bytes that stand before the tokens."""
    return salt.encode() and hashlib.sha256(salt.encode()).digest()


class PretendEngine:
    """One life of the engine process."""

    def __init__(self, disk: Disk, faults: frozenset[Fault], config_sha256: str, catalog: int,
                 model_sha256: str, pools: Pools | None = None) -> None:
        self.disk, self.faults, self.catalog, self.model_sha256 = disk, faults, catalog, model_sha256
        self.pools = pools or (Pools(catalog, 500, 500) if Fault.VAST_MEMORY in faults else Pools(catalog=catalog))
        self.lock = threading.RLock()
        self.life = disk.starts
        disk.starts += 1
        self.instance = secrets.token_hex(8)
        drift = Fault.DRIFT_AFTER_RESTART in faults and self.life > 0
        self.config_sha256 = hashlib.sha256(b"drift").hexdigest() if drift else config_sha256
        self.responses: dict[str, Stored] = {}
        self.checkpoints: dict[bytes, Checkpoint] = {}
        self.deleted: set[str] = set()
        self.restored_sessions: set[str] = set()
        self.forks_seen: dict[str, int] = {}
        self.templates_forked: list[str] = []
        self.requests = self.prefill = self.decode = self.reused = self.leaked = 0
        self.last_selection: dict[str, Any] | None = None

    # -- lineage ---------------------------------------------------------------------------------------------------

    def find(self, response_id: str, session: str | None) -> Stored | None:
        """A stored response of that session, restored from disk when need be."""
        stored = self.responses.get(response_id)
        if stored is None and session is not None:
            self._restore(session)
            stored = self.responses.get(response_id)
        if stored is None or (stored.session != session and Fault.FOREIGN_SESSIONS not in self.faults):
            return None
        return stored

    def _restore(self, session: str) -> None:
        if session in self.restored_sessions or session not in self.disk.saved:
            return
        if self.disk.damaged(session) and Fault.ACCEPT_DAMAGE not in self.faults:
            return
        self.restored_sessions.add(session)
        records, checkpoints, _ = self.disk.saved[session]
        self.responses.update({r.response_id: r for r in records if r.response_id not in self.deleted})
        templates_end = max((len(r.tokens) for r in records if r.parent is None), default=0)
        for checkpoint in checkpoints:
            if Fault.LOSE_ANCHORS_AFTER_RESTART in self.faults and checkpoint.frontier <= templates_end:
                continue
            self.checkpoints.setdefault(checkpoint.digest, copy.copy(checkpoint))

    def save(self, session: str) -> dict[str, Any] | None:
        """Save a session; None when there is nothing."""
        records = [r for r in self.responses.values() if r.session == session]
        if not records:
            return None
        if Fault.SAVE_LOSES_RECORDS in self.faults:
            records = records[:-1] or records
        old = self.disk.saved.get(session)
        generation = (old[2] if old else 0) + 1
        checkpoints = [copy.copy(c) for c in self.checkpoints.values() if c.session == session]
        self.disk.saved[session] = (records, checkpoints, generation)
        self.disk.write(session)
        size = 256 * sum(len(r.tokens) for r in records)
        before = 256 * sum(len(r.tokens) for r in old[0]) if old else 0
        return {"session_sha256": session, "mode": "explicit", "generation": generation, "bytes": size,
                "frontier_tokens": max(len(r.tokens) for r in records), "response_records": len(records),
                "written_bytes": size - before, "engine_stall_s": 0.002}

    # -- requests --------------------------------------------------------------------------------------------------

    def respond(self, body: dict[str, Any], session: str | None, parent: Stored | None) -> dict[str, Any]:
        """Run one request and give its reply."""
        tokens = [*(parent.tokens if parent else []), *turn_tokens(body["input"])]
        self.requests += 1
        salt = "" if Fault.SALTS_SHARE in self.faults else body.get("cache_salt", "")
        salted = salt_tokens(salt)
        resumption = self._misbehave(self._lookup(tokens, salted), parent, bool(salt))
        answer_from = self._wrong_branch(tokens, parent, resumption)
        output = self._generate(digest_of(answer_from), body["max_output_tokens"], resumption)
        response_id = f"resp_{secrets.token_hex(12)}"
        text = (parent.text if parent else "") + body["input"]
        said = self._recall(body["input"], text, resumption) or " ".join(f"w{token}" for token in output)
        reply = self._reply(response_id, body, tokens, output, resumption)
        if reply["output"]:
            part = reply["output"][0]["content"][0]
            part["text"] = said
            if body.get("top_logprobs") and Fault.OMIT_LOGPROBS not in self.faults:
                part["logprobs"] = self._logprobs(digest_of(answer_from), len(output), resumption)
        if body.get("store", True):
            self.responses[response_id] = Stored(response_id, session, parent.response_id if parent else None,
                                                 [*tokens, *output, END], reply, text + said, body["input"])
        self._publish(tokens, output, session, salted)
        return reply

    def _lookup(self, tokens: list[int], salted: bytes) -> Resumption:
        """The deepest checkpoint under the same salt whose tokens are a proper prefix of `tokens`."""
        data, running, best, position = array("I", tokens).tobytes(), hashlib.sha256(salted), None, 0
        for frontier in sorted({c.frontier for c in self.checkpoints.values() if c.frontier < len(tokens)}):
            running.update(data[4 * position:4 * frontier])
            position = frontier
            best = self.checkpoints.get(running.digest(), best)
        if best is None:
            return Resumption(0, "root", "never_seen")
        best.children += 1
        best.used = self.requests
        path = "private_long_anchor" if best.children > 1 else "private_endpoint" if best.endpoint \
            else "private_response_replay"
        return Resumption(best.frontier, path, None, best.session in self.restored_sessions)

    def _misbehave(self, found: Resumption, parent: Stored | None, salted: bool) -> Resumption:
        if salted and Fault.HITS_FOR_ALL not in self.faults:
            return found
        root = Resumption(0, "root", "evicted")
        if parent is None:
            if Fault.HITS_FOR_ALL in self.faults:
                return Resumption(10_000_000, "shared_stable_prefix", None)
            return Resumption(0, "root", "disabled") if Fault.NO_REUSE in self.faults else found
        nth = self.forks_seen.get(parent.response_id, 0)
        self.forks_seen[parent.response_id] = nth + 1
        if parent.parent is None and parent.response_id not in self.templates_forked:
            self.templates_forked.append(parent.response_id)
        first_template = self.templates_forked[:1] == [parent.response_id]
        cold: dict[Fault, Callable[[], bool]] = {
            Fault.NO_REUSE: lambda: True,
            # The base's first child is the edit: forks are children 1, 2, 3, 4 before a restart.
            Fault.ALTERNATE_ANCHOR_ROOT: lambda: nth > 0 and nth % 2 == 0,
            Fault.ALTERNATE_ROOT_ANCHOR: lambda: nth > 0 and nth % 2 == 1,
            Fault.ALTERNATE_AFTER_RESTART: lambda: self.life > 0 and parent.parent is None and nth % 2 == 0,
            Fault.HOT_THEN_COLD: lambda: parent.parent is None and not first_template and nth > 0,
            Fault.FIRST_FORK_COLD_AFTER_RESTART: lambda: self.life > 0 and nth == 0 and parent.parent is None,
            Fault.ONLY_FIRST_HITS: lambda: nth > 1,
        }
        return root if any(fault in self.faults and when() for fault, when in cold.items()) else found

    def _wrong_branch(self, tokens: list[int], parent: Stored | None, resumption: Resumption) -> list[int]:
        if Fault.WRONG_BRANCH not in self.faults or parent is None or not resumption.frontier:
            return tokens
        others = [r for r in self.responses.values() if r.parent == parent.response_id]
        return [*others[-1].tokens, *tokens[resumption.frontier:]] if others else tokens

    def _generate(self, state: bytes, count: int, resumption: Resumption) -> list[int]:
        output = [16 + int.from_bytes(hashlib.sha256(state + i.to_bytes(4, "big")).digest()[:2], "big")
                  for i in range(count)]
        if Fault.CORRUPT_LOGIT in self.faults and resumption.frontier and output:
            output[-1] ^= 1
        return output

    def _recall(self, asked: str, text: str, resumption: Resumption) -> str:
        """What the text says of a vault that is asked about; "" when nothing is."""
        asking = re.search(r"What is the code of vault (\w+)\?", asked)
        if asking is None:
            return ""
        found = re.search(rf"The code of vault {asking[1]} is (\d+)", text)
        forgets = Fault.CANNOT_RECALL in self.faults \
            or (Fault.FORGET_RESTORED in self.faults and resumption.restored) \
            or (Fault.FORGET_RESUMED in self.faults and resumption.frontier > 100)
        return found[1] if found and not forgets else "I do not know."

    def _logprobs(self, state: bytes, count: int, resumption: Resumption) -> list[dict[str, Any]]:
        """Two likely tokens at each position, drawn from the state."""
        shift = 0.2 if Fault.SHIFT_LOGPROBS in self.faults and resumption.frontier else 0.0
        listed = []
        for index in range(count):
            share = 0.5 + 0.3 * state[index % len(state)] / 255
            tops = [{"token": "a", "logprob": math.log(share) - shift},
                    {"token": "b", "logprob": math.log(0.9 * (1 - share))}]
            listed.append({**tops[0], "top_logprobs": tops})
        return listed

    def _publish(self, tokens: list[int], output: list[int], session: str | None, salted: bytes) -> None:
        if Fault.NO_REUSE in self.faults:
            return
        endpoint = [*tokens, *output]
        points = [(tokens[:-1], False), (tokens, False), (endpoint[:-1], True)]
        for prefix, is_endpoint in points:
            checkpoint = Checkpoint(len(prefix), digest_of(prefix, salted), session, is_endpoint, used=self.requests)
            self.checkpoints.setdefault(checkpoint.digest, checkpoint)
        if Fault.LEAK_SLOTS in self.faults:
            self.leaked += 1
        if Fault.NEVER_FROM_DISK in self.faults:
            self._keep_sessions(11)
        while len(self.checkpoints) > self.catalog:
            by_use = min if Fault.DROP_UNDER_PRESSURE in self.faults else None
            # Healthy: an anchor is worth its whole template, an endpoint a few tokens; the fault is plain LRU.
            victim = by_use(self.checkpoints.values(), key=lambda c: c.used) if by_use else \
                min(self.checkpoints.values(), key=lambda c: (c.children > 0, c.used))
            del self.checkpoints[victim.digest]

    def _keep_sessions(self, most: int) -> None:
        """Lose what the sessions that were silent longest hold, and never bring it back."""
        newest = sorted(self.checkpoints.values(), key=lambda c: c.used, reverse=True)
        kept = list(dict.fromkeys(c.session for c in newest))[:most]
        self.checkpoints = {k: c for k, c in self.checkpoints.items() if c.session in kept}

    def _occupancy(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        """Catalog, device images and host images; the device's working slot is free when nothing runs."""
        held = 0 if Fault.EMPTY_POOLS in self.faults else len(self.checkpoints)
        device = min(held, self.pools.device - 1)
        catalog = min(len(self.responses), self.pools.catalog)
        return ({"occupied": catalog, "capacity": self.pools.catalog},
                {"occupied": device + self.leaked, "capacity": self.pools.device},
                {"occupied": min(held - device, self.pools.host), "capacity": self.pools.host})

    def _reply(self, response_id: str, body: dict[str, Any], tokens: list[int], output: list[int],
               resumption: Resumption) -> dict[str, Any]:
        count = len(tokens)
        reused = min(resumption.frontier, count)
        truly_computed = count if Fault.FALSE_HITS in self.faults else count - reused
        if Fault.FALSE_HITS in self.faults and "previous_response_id" in body:
            reused = count - 1
        self.prefill += truly_computed
        self.decode += len(output) if Fault.COUNT_BACKWARDS not in self.faults or self.requests % 9 else -100
        self.reused += reused
        path = resumption.path if reused else "root"
        if Fault.STALE_STATUS not in self.faults:
            self.last_selection = {"path": path, "frontier_tokens": reused}
        slow = Fault.SLOW_MATERIALISATION in self.faults and reused and "previous_response_id" in body
        restore_s = 4.27 if slow else 0.05 if resumption.restored else 0.0
        prefill_s = (2 * count if Fault.SLOW_WARM in self.faults and reused else truly_computed) * SECONDS_A_TOKEN
        decode_s = (0.002 if Fault.SLOW_DECODE in self.faults else 0.001) * len(output)
        total = restore_s + prefill_s + decode_s
        request_id = body.get("ninfer_request_id") or secrets.token_hex(32)
        failed = Fault.OK_BUT_FAILED in self.faults and "previous_response_id" in body
        usage: dict[str, Any] = {
            "input_tokens": count, "input_tokens_details": {"cached_tokens": reused}, "output_tokens": len(output),
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": count + len(output)}
        if Fault.OMIT_CACHED_TOKENS in self.faults:
            usage["input_tokens_details"] = {}
        reply: dict[str, Any] = {
            "id": response_id, "object": "response", "status": "failed" if failed else "completed",
            "model": body["model"], "previous_response_id": body.get("previous_response_id"),
            "output": [] if failed else [{"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": " ".join(f"w{token}" for token in output)}]}],
            "usage": usage,
            "ninfer": {
                "request_id": secrets.token_hex(32) if Fault.FOREIGN_REQUEST_ID in self.faults else request_id,
                "path": path, "frontier_tokens": reused, "reused_tokens": reused, "computed_tokens": count - reused,
                "miss_reason": resumption.reason,
                "timings": {"queue_s": 0.0, "plan_s": 0.0001, "restore_s": restore_s, "prefill_s": prefill_s,
                            "ttft_s": restore_s + prefill_s, "decode_s": decode_s, "total_s": total},
                "plan": {"predicted_now_ns": int(total * 1e9), "predicted_future_loss_ns": 0,
                         "predicted_total_ns": int(total * 1e9), "candidates": 3, "evaluated": 3, "optimal": True,
                         "stop_reason": "exact", "evicted": [], "demoted": 0}}}
        if Fault.OMIT_NINFER in self.faults:
            del reply["ninfer"]
        return reply

    def forget(self, response_id: str) -> None:
        """A response was deleted; its descendants stay usable, and what only it held is free."""
        gone = self.responses.pop(response_id)
        self.deleted.add(response_id)
        children = [r.response_id for r in self.responses.values() if r.parent == response_id]
        if Fault.DROP_WITH_PARENT in self.faults:
            for child in children:
                if child in self.responses:
                    self.forget(child)
        if not any(r.session == gone.session for r in self.responses.values()):
            self.checkpoints = {k: c for k, c in self.checkpoints.items() if c.session != gone.session}

    def delete_session(self, session: str) -> None:
        """Forget a session on disk; memory lets go of its checkpoints too."""
        self.disk.saved.pop(session, None)

    def status(self) -> dict[str, Any]:
        """The status document."""
        catalog, device, host = self._occupancy()
        return {
            "artifact_type": "ninfer_server_status", "schema_version": 1, "status": "ok",
            "identity": {
                "deployment_profile": "fake", "model_id": "pretend", "model_artifact_sha256": self.model_sha256,
                "binary_sha256": "2" * 64, "config_sha256": self.config_sha256, "build_profile": "release",
                "engine_version": "0.1.0", "device": "cpu", "server_instance_id": self.instance},
            "runtime": {"public_model_id": "pretend", "max_context": 131072, "kv_capacity_mode": "auto",
                        "kv_capacity_tokens": 1 << 20, "kv_cache": "fp32", "speculative_backend": "none"},
            "scheduler": {"max_concurrency": 1, "max_pending_requests": 16, "running": 0, "prefilling": 0,
                          "decode_ready": 0, "waiting": 0, "materializing": 0,
                          "computed_prefill_tokens": self.prefill, "committed_decode_tokens": self.decode},
            "cache": {"device_state": device, "host_state": host,
                      "device_kv": {"occupied": 0, "capacity": 1 << 14},
                      "host_kv": {"occupied_bytes": 0, "capacity_bytes": 1 << 30},
                      "private_catalog": catalog,
                      "shared_catalog": {"occupied": 0, "capacity": 16, "active_references": 0},
                      "reused_prompt_tokens": self.reused, "last_selection": self.last_selection,
                      "private_evictions": 0, "shared_evictions": 0,
                      "last_materialization_predicted_nanoseconds": 0, "misses": {}},
            "restore": {"state": "idle", "bytes_done": 0, "bytes_total": 0, "read_backend": "none"}}
