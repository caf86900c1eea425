"""The front as one file: a zip that python3 runs, small enough for a config of the swarm. Same sources, same bytes
(it is not compressed: that would depend on the zlib at hand).

So the front needs no image of its own, runs in whatever image the engine has, and its name says by digest what it is.
"""

import io
import zipfile
from pathlib import Path

import h11

import ninfer_lifecycle

MAX_BYTES = 500_000
"""What a swarm takes as one config."""
_MODULES = ("releases/proxy.py", "replicas/affinity.py", "replicas/holders.py", "replicas/front.py")
_START = "import sys\nfrom ninfer_lifecycle.replicas.front import main\nsys.exit(main(sys.argv[1:]))\n"
_THEN = (1980, 1, 1, 0, 0, 0)


def front_bundle() -> bytes:
    """The zip's bytes."""
    package, wire = Path(ninfer_lifecycle.__file__).parent, Path(h11.__file__).parent
    files = {"__main__.py": _START.encode()}
    for folder in ("", "releases/", "replicas/"):
        files[f"ninfer_lifecycle/{folder}__init__.py"] = b""
    for module in _MODULES:
        files[f"ninfer_lifecycle/{module}"] = (package / module).read_bytes()
    for source in sorted(wire.glob("*.py")):
        files[f"h11/{source.name}"] = source.read_bytes()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(name, _THEN), data)
    return buffer.getvalue()
