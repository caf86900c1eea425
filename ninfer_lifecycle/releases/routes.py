"""Which engine is live on a lane, read from the state file; parsed again only when the file was replaced."""

import hashlib
import os
from dataclasses import dataclass

from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.releases.state import ReleaseFile


@dataclass(frozen=True, slots=True)
class Route:
    """Where requests go, and the release that they go to."""

    release_id: str
    url: str


class RouteTable:
    """The route of one lane. should_serve: whether a release is live, or a change is under way that would make one so.

    `current` keeps it up to date.
    """

    def __init__(self, files: ReleaseFile, lane: str) -> None:
        self._files, self._lane = files, lane
        self._seen: tuple[int, int, int] | None = None
        self._route: Route | None = None
        self.should_serve = False

    def current(self) -> Route | None:
        """The route now; None when nothing is live. A file that cannot be read leaves the last route as it was."""
        try:
            info = os.stat(self._files.path)  # noqa: PTH116 - on the path of every request
            mark = (info.st_ino, info.st_mtime_ns, info.st_size)
            if mark != self._seen:
                lane = self._files.read().lanes.get(self._lane)
                self._route = _route_of(lane.live.release_id, lane.route) if lane and lane.live else None
                self.should_serve = lane is not None and (lane.live is not None or lane.change is not None)
                self._seen = mark
        except (OSError, NinferError):
            pass
        return self._route


def _route_of(release_id: str, url: str | None) -> Route | None:
    return Route(release_id, url) if url is not None else None


def control_name(files: ReleaseFile, lane: str) -> str:
    """The router's own name among the abstract sockets of this machine: the kernel frees it with the router."""
    place = hashlib.sha256(str(files.directory).encode()).hexdigest()[:16]
    return f"\0ninfer-lane-{place}-{lane}"
