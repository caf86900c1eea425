"""docker-py's client with a deadline for every read.

docker-py reads some streams without any. Here a stream that is silent for as long as any other read may take ends, and
whoever reads it takes it up again where it stopped.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar

import docker
import requests
import urllib3
from docker.errors import DockerException

T = TypeVar("T")


class Stream(Generic[T]):
    """An endless answer of docker-py. Iterating ends it in every way that it can end; none of them is an error here."""

    def __init__(self, stream: Any, made: Callable[[Any], T]) -> None:
        self._stream, self._made = stream, made

    def __iter__(self) -> Iterator[T]:
        try:
            for entry in self._stream:
                yield self._made(entry)
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError, DockerException):
            return  # broken, or silent beyond the deadline
        except (ValueError, AttributeError, KeyError):
            return  # cut in the middle of a frame, or closed by another thread while it was read
        finally:
            self.close()

    def close(self) -> None:
        """Shut its connection down, and give the descriptor back."""
        response = getattr(self._stream, "_response", None)
        with suppress(Exception):
            self._stream.close()
        with suppress(Exception):
            if response is not None:
                response.close()


class Api(docker.APIClient):  # type: ignore[misc]  # docker-py has no types
    """docker-py's client, whose streams keep the deadline of every other read."""

    def _set_request_timeout(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """docker-py asks for some streams without a deadline, and would wait for a stalled daemon for ever.

        And with every request goes whom to trust: else REQUESTS_CA_BUNDLE, where it is set, would take the place of the
        daemon's own authority.
        """
        return {**kwargs, "timeout": kwargs.get("timeout") or self.timeout, "verify": self.verify}

    def output_of(self, execution: str) -> bytes:
        """Run a prepared exec to its end. docker-py's own call upgrades the connection and polls its bare socket: it
        has no deadline, and loses output that came in one packet with the reply's head.
        """
        reply = self._post_json(self._url("/exec/{0}/start", execution), data={"Tty": False, "Detach": False},
                                stream=True)
        try:
            self._raise_for_status(reply)
            return b"".join(self._multiplexed_response_stream_helper(reply))
        finally:
            reply.close()

    def output_of_task(self, task: str, lines: int) -> bytes:
        """The last lines of a swarm's task. docker-py reads logs of containers and of services alone."""
        reply = self._get(self._url("/tasks/{0}/logs", task), params={"stdout": 1, "stderr": 1, "tail": lines})
        self._raise_for_status(reply)
        return b"".join(self._multiplexed_buffer_helper(reply))

    def _disable_socket_timeout(self, socket: Any) -> None:
        """Not done: a followed log would wait for ever for a daemon that stands still."""


class Client(docker.DockerClient):  # type: ignore[misc]  # docker-py has no types
    """docker-py's object layer over `Api`."""

    def __init__(self, **where: Any) -> None:
        self.api = Api(**where)
