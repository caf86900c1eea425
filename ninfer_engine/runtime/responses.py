"""Stored responses: what previous_response_id refers to. Token ids are kept, so that a continuation is token-exact."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One stored response.

    tokens: prompt and reply, exactly as the model saw and said them. body: the reply as sent, JSON-able. input_items:
    the items of this request alone, with their ids; the conversation is the chain over `parent_id`. context: what the
    server needs to render a continuation (instructions, tools), JSON-able.
    """

    response_id: str
    session: str | None
    parent_id: str | None
    tokens: Sequence[int]
    prompt_tokens: int
    body: dict[str, Any]
    input_items: tuple[dict[str, Any], ...]
    context: dict[str, Any]
    cache_salt: str = ""


class ResponseStore:
    """At most `max_records` stored responses, the least recently used dropped first. Safe from any thread.

    A response is visible only to its own session. A deleted id never comes back, also not by a restore.
    """

    def __init__(self, max_records: int) -> None:
        self.on_stored: Callable[[StoredResponse], None] | None = None
        self._max_records = max_records
        self._records: OrderedDict[str, StoredResponse] = OrderedDict()
        self._deleted: set[str] = set()
        self._lock = threading.Lock()

    def put(self, record: StoredResponse) -> None:
        """Add a new response; tells `on_stored`. A deleted id stays deleted."""
        self.put_back(record)
        if self.on_stored is not None:
            self.on_stored(record)

    def put_back(self, record: StoredResponse) -> None:
        """Add a response that was stored before, from a saved session; nobody is told."""
        with self._lock:
            if record.response_id in self._deleted:
                return
            self._records[record.response_id] = record
            self._records.move_to_end(record.response_id)
            while len(self._records) > self._max_records:
                self._records.popitem(last=False)

    def get(self, response_id: str, session: str | None) -> StoredResponse | None:
        """The response, or None when there is none or it belongs to another session."""
        with self._lock:
            record = self._records.get(response_id)
            if record is None or record.session != session:
                return None
            self._records.move_to_end(response_id)
            return record

    def delete(self, response_id: str, session: str | None) -> bool:
        """Forget a response for good; descendants keep their own tokens and stay usable."""
        with self._lock:
            record = self._records.get(response_id)
            if record is None or record.session != session:
                return False
            del self._records[response_id]
            self._deleted.add(response_id)
            return True

    def deleted_ids(self) -> frozenset[str]:
        """Ids deleted since start: a restore must not bring them back."""
        with self._lock:
            return frozenset(self._deleted)

    def of_session(self, session: str) -> list[StoredResponse]:
        """Every stored response of a session, oldest use first."""
        with self._lock:
            return [record for record in self._records.values() if record.session == session]
