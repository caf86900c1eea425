"""How soon a dead container is known: `python -m benchmarks.deaths_bench [KILLS] [IMAGE]` (8, ninfer-engine:cpu).

The engine serves in a container; it is killed through the daemon, and the clock runs from before that call until the
host's listener has heard of it. Then the next life begins.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from ninfer_lifecycle.hosts.base import EngineSpec
from ninfer_lifecycle.hosts.docker import DockerHost
from ninfer_lifecycle.profiles.configuration import configured_flags
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.qualify.models import ensure_model

WITHIN_S = 1.0


def main(arguments: list[str]) -> int:
    """Prints each time, median and slowest; 1 where one took longer than WITHIN_S."""
    kills, image = int(arguments[0]) if arguments else 8, arguments[1] if len(arguments) > 1 else "ninfer-engine:cpu"
    profile = load_profile("tiny-cpu").profile
    model = ensure_model(profile.model, Path("models"))
    times = []
    with tempfile.TemporaryDirectory() as folder, DockerHost() as place:
        engine = place.start(EngineSpec("deaths", configured_flags(profile, model.sha256), model.path.resolve(),
                                        Path(folder), image=image))
        for _ in range(kills):
            began = time.monotonic()
            place._daemon.signal(engine.handle, "SIGKILL")
            heard = place._watch.wait_for_death(engine.handle, 60.0)
            times.append(time.monotonic() - began if heard else 60.0)
            engine = place.restart(engine, 0.0)
    print("ms: " + " ".join(f"{1000 * one:.0f}" for one in times))
    print(f"median {1000 * statistics.median(times):.0f} ms, slowest of {kills} {1000 * max(times):.0f} ms")
    return int(max(times) > WITHIN_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
