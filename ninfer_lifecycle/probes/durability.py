"""durability: what is left of a session after a graceful stop, after a kill, on a copy of the store, and after damage?

Each life must also prove to be of this run: it knows the text that this run alone wrote, and answers to no other key.
"""

from collections.abc import Sequence

from ninfer_lifecycle.client import EngineReplyError
from ninfer_lifecycle.probes.continuing import status_of_continuing
from ninfer_lifecycle.probes.damage import fingerprint, flip_a_byte
from ninfer_lifecycle.probes.isolation import ask_with_another_key
from ninfer_lifecycle.probes.parts import Act, Part, Thread, Threads, begin, small, turn
from ninfer_lifecycle.probes.run import ProbeRun, ProbeStep, SkipStepError
from ninfer_lifecycle.probes.templates import derive_nonce
from ninfer_lifecycle.profiles.schema import ProbeSection

UNSAVED = 200
"""Tokens of a session that is too short for an engine to save it unasked."""


def _steps(section: ProbeSection) -> Sequence[ProbeStep]:
    step, lasting = section.fork_input_tokens + section.fork_output_tokens, Lasting(section)
    return (Act("begin three sessions", 2 * small(section) + UNSAVED, lasting.start),
            Act("stop gracefully", step, lasting.stop_gracefully), Act("kill", step, lasting.kill),
            Act("restore from a copy of the store", step, lasting.copied),
            Act("change one byte in the store", small(section), lasting.tamper))


class Lasting:
    """The sessions that are to outlast their engine, and the steps that end it."""

    def __init__(self, section: ProbeSection) -> None:
        self._section, self._threads = section, Threads()
        self._first: dict[str, str] = {}

    def start(self, run: ProbeRun) -> None:
        """Begin a session for each way to end."""
        size = small(self._section)
        for name, tokens in (("flushed", size), ("saved", size), ("unsaved", UNSAVED)):
            thread = self._threads.named[name] = begin(run, f"durability/{name}", tokens,
                                                       self._section.base_output_tokens)
            self._first[name] = thread.response_id or ""

    def stop_gracefully(self, run: ProbeRun) -> None:
        """What was not in the store before is in it afterwards."""
        _require_restart(run)
        flushed, unsaved = self._threads.get("flushed"), self._threads.get("unsaved")
        early = _available(run, unsaved)
        run.fact("durability.missing_before_stop", None if early else 0, "equal", 0,
                 "the engine saved it by itself: what a stop saves cannot be told" if early else
                 "whether the session is in the store before the stop")
        run.restart()
        run.fact("durability.graceful_stop_saves", min(_available(run, flushed), _available(run, unsaved)), "equal", 1,
                 "whether an unsaved session is in the store after a graceful stop")
        turn(run, flushed, "durability.hot_after_graceful_stop", self._section)
        self._prove_life(run, "flushed")

    def kill(self, run: ProbeRun) -> None:
        """What was saved is there after a hard kill."""
        _require_restart(run)
        thread = self._threads.get("saved")
        if turn(run, thread, "durability.before_kill", self._section).error is not None:
            raise SkipStepError("the session could not go on before the kill")
        _save(run, thread)
        run.restart(kill=True)
        run.fact("durability.kill_keeps_what_was_saved", _available(run, thread), "equal", 1,
                 "whether a saved session is in the store after a kill")
        turn(run, thread, "durability.hot_after_kill", self._section)
        self._prove_life(run, "saved")

    def copied(self, run: ProbeRun) -> None:
        """A store that was copied while its engine was stopped serves another engine of the same configuration."""
        thread = self._threads.get("saved")
        _save(run, thread)
        with run.elsewhere("copy"):
            run.fact("durability.copied_store_is_available", _available(run, thread), "equal", 1,
                     "whether a saved session is there for an engine on a copy of the store")
            turn(run, thread.fork(), "durability.hot_from_copied_store", self._section)

    def tamper(self, run: ProbeRun) -> None:
        """A changed byte of what a save wrote is found, refused and told."""
        _require_restart(run)
        store = run.subject.store_dir()
        if store is None:
            raise SkipStepError("the store cannot be reached from here")
        before = fingerprint(store)  # an engine may save the session unasked as soon as it has begun
        thread = self._threads.named["damaged"] = begin(run, "durability/damaged", small(self._section),
                                                        self._section.base_output_tokens)
        _save(run, thread)
        if not flip_a_byte(store, before):
            raise SkipStepError("the save changed no byte of the store")
        run.restart(kill=True)
        run.fact("durability.damage_is_refused", status_of_continuing(run, thread), "equal", 404,
                 "HTTP status of continuing a session whose file has one byte changed")
        with run.waiting():
            state = run.client.checkpoint_status(thread.session).state
        run.fact("durability.damage_is_reported", int(state == "corrupt"), "equal", 1,
                 f"the store says {state} of a session with one byte changed")

    def _prove_life(self, run: ProbeRun, name: str) -> None:
        """Asked after a turn, which brings the session back."""
        secret, thread = derive_nonce(run.nonce, f"part/durability/{name}"), self._threads.get(name)
        with run.waiting():
            echo = run.client.raw("GET", f"/v1/responses/{self._first[name]}/input_items", None,
                                  {"X-NInfer-Session": thread.session})
        run.fact("durability.run_secret_echo", int(echo.status == 200 and secret.encode() in echo.body), "equal", 1,
                 f"whether the text of session {name} that comes back is the one that this run wrote (HTTP "
                 f"{echo.status})")
        run.fact("durability.answers_only_to_its_key", ask_with_another_key(run, "GET", "/v1/ninfer/status"), "equal",
                 401, "HTTP status with another key than this run's")


def _require_restart(run: ProbeRun) -> None:
    if not run.subject.can_restart:
        raise SkipStepError("an engine given by its address cannot be restarted from here")


def _save(run: ProbeRun, thread: Thread) -> None:
    """Save; that all of it is saved already is fine."""
    try:
        with run.waiting():
            run.client.save(thread.session)
    except EngineReplyError as error:
        if error.status != 409:
            raise


def _available(run: ProbeRun, thread: Thread) -> int:
    with run.waiting():
        return int(run.client.checkpoint_status(thread.session).state == "available")


DURABILITY = Part(
    "durability", "Is a session hot after a graceful stop, a kill, on a copied store, and is damage refused?", _steps)
