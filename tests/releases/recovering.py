"""`recovering.py ROOT`: what a router calls for in the tests; recovery of the world below ROOT."""

import sys
from pathlib import Path


def main(root: Path) -> int:
    """0 when the lane is well again."""
    for folder in ("unit", "lifecycle", "releases"):
        sys.path.insert(0, str(Path(__file__).parents[1] / folder))
    from release_world import World

    from ninfer_lifecycle.errors import NinferError
    try:
        World(root).recover()
    except NinferError as error:
        sys.stderr.write(f"{error}\n")
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
