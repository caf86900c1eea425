"""docker-py's errors, and those of the libraries beneath it, as errors of ours with advice."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import requests
import urllib3
from docker.errors import APIError, DockerException, NotFound

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.daemon import NoDaemonError


@contextmanager
def told(where: object, action: str) -> Iterator[None]:
    """Inside, what goes wrong at the daemon `where` is raised as HostError or NoDaemonError. NotFound passes: what it
    means depends on what was looked for.
    """
    try:
        yield
    except NotFound:
        raise
    except APIError as error:
        words = str(error.explanation or error)
        raise HostError(f"cannot {action}: {words}", advice_on(words)) from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, DockerException, OSError) as error:
        reason = "it does not answer in time" if _is_timeout(error) else _of_the_system(error) or str(error)
        _forget_frames(error)
        advice = ("you may not use its socket: join the group that owns it" if "Permission denied" in reason else
                  "start it, or point DOCKER_HOST at one that runs; `--host process` needs none")
        raise NoDaemonError(f"cannot {action}: no Docker daemon answers at {where} ({reason})", advice) from error
    except (ValueError, KeyError, TypeError) as error:
        raise NoDaemonError(f"cannot {action}: what answers at {where} is no Docker daemon ({error!r})",
                            "point DOCKER_HOST at a daemon") from error


def advice_on(words: str) -> str:
    """What to do about a refusal of the daemon."""
    known = {
        "could not select device driver": "install the NVIDIA container toolkit on the daemon's machine, or set "
                                          "host.gpus: none",
        "nknown runtime": "configure that runtime on the daemon's machine, or leave host.runtime out",
        "no space left on device": "free disk space in the daemon's data root (docker system df)",
        "executable file not found": "the image is not one of ours: build it with `ninfer image build`",
        "eccomp": "host.seccomp must name a profile in Docker's JSON form",
    }
    return next((advice for part, advice in known.items() if part in words), "the daemon's words say why")


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the frames of an error hold: the socket of every failed try would wait there for the collector."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _of_the_system(error: BaseException | None) -> str | None:
    """What the system said, below the libraries' wrappings; None where it said nothing."""
    found = None
    while error is not None:
        found = (error.strerror if isinstance(error, OSError) else None) or found
        error = error.__cause__ or error.__context__
    return found


def _is_timeout(error: BaseException) -> bool:
    return isinstance(error, (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError, TimeoutError)) \
        or "timed out" in str(error)
