"""What a shell may offer for the values of options and arguments. Never raises: a shell shows nothing then."""

from collections.abc import Callable, Iterable

from ninfer_lifecycle.errors import NinferError
from ninfer_lifecycle.gates.plans import PLAN_PARTS
from ninfer_lifecycle.hosts.state import EngineState, default_state_dir
from ninfer_lifecycle.profiles.loader import list_profiles


def _offering(words: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    def offer(incomplete: str) -> list[str]:
        try:
            return [word for word in words() if word.startswith(incomplete)]
        except (NinferError, OSError):
            return []

    return offer


profiles = _offering(lambda: [entry.name for entry in list_profiles() if entry.shadowed_by is None])
plans = _offering(lambda: PLAN_PARTS)
hosts = _offering(lambda: ("process", "docker", "swarm"))
engines = _offering(lambda: [record.name for record in EngineState(default_state_dir()).all()])
