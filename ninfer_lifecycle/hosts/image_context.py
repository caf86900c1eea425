"""The build context of the engine's image: its Dockerfile and every wheel that it installs, collected on this machine.

    Dockerfile
    wheels/ninfer/ninfer-*.whl
    wheels/dependencies/*.whl, pip-*.whl, requirements.txt

pip resolves and downloads here, so that the build itself needs no network and the image holds no more than was listed.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from email.parser import HeaderParser
from pathlib import Path

from ninfer_lifecycle.errors import UsageError

IMAGE_PYTHON = (3, 11)
NOT_IN_THE_ENGINE = frozenset({"docker", "jinja2", "cryptography", "rfc8785", "httpx"})
"""Dependencies that only the tool imports."""
ONLY_ON_GPUS = frozenset({"triton"})
_PIP_DEADLINE_S = 1800
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
Say = Callable[[str], None]


def source_directory() -> Path:
    """The checkout that this tool runs from. UsageError when it is installed without one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "Dockerfile").is_file() or not (root / "pyproject.toml").is_file():
        raise UsageError("no Dockerfile beside this installation", "run from a checkout, or name one: --source DIR")
    return root


def make_context(source: Path, context: Path, wheels: Path | None, gpu: bool, say: Say) -> None:
    """Fill the empty directory `context`. wheels: directory of ready wheels of everything; nothing is downloaded then.

    gpu: with Triton. Raises UsageError when pip fails (with its last lines), when the Python here is not the image's,
    or when a wheel is missing.
    """
    if wheels is None and sys.version_info[:2] != IMAGE_PYTHON:
        raise UsageError("wheels for the image must be collected by Python {}.{}, and this is {}.{}".format(
            *IMAGE_PYTHON, *sys.version_info[:2]), "run ninfer with that Python, or give --wheels DIR")
    shutil.copy(source / "Dockerfile", context / "Dockerfile")
    own, dependencies = context / "wheels" / "ninfer", context / "wheels" / "dependencies"
    own.mkdir(parents=True)
    dependencies.mkdir()
    say("building ninfer's wheel")
    wheel = _own_wheel(source, own, wheels)
    requirements = engine_requirements(wheel, gpu)
    (dependencies / "requirements.txt").write_text("\n".join(requirements) + "\n", encoding="utf-8")
    if wheels is None:
        say(f"collecting wheels of {len(requirements)} requirements")
        _pip("download", "--only-binary=:all:", "--dest", str(dependencies), "pip", *requirements)
    else:
        for file in wheels.glob("*.whl"):
            if not file.name.startswith("ninfer-"):
                shutil.copy(file, dependencies)
    if not gpu:
        for file in dependencies.glob("triton-*.whl"):
            file.unlink()
    if not any(dependencies.glob("pip-*.whl")):
        raise UsageError(f"no wheel of pip in {wheels}", "put one there: pip download pip")


def engine_requirements(wheel: Path, gpu: bool) -> list[str]:
    """What the engine needs by the wheel's own metadata: base and `engine` extra, less what only the tool imports."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = HeaderParser().parsestr(archive.read(name).decode("utf-8"))
    left_out = NOT_IN_THE_ENGINE | (frozenset() if gpu else ONLY_ON_GPUS)
    wanted = []
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        found = _NAME.match(requirement)
        if found is None or found[0].lower() in left_out:
            continue
        if "extra" not in marker or re.search(r"""extra\s*==\s*['"]engine['"]""", marker):
            wanted.append(requirement.strip())
    return sorted(wanted)


def _own_wheel(source: Path, target: Path, wheels: Path | None) -> Path:
    ready = sorted(wheels.glob("ninfer-*.whl")) if wheels else []
    if ready:
        shutil.copy(ready[-1], target)
    else:
        with tempfile.TemporaryDirectory(prefix="ninfer-wheel-") as scratch:
            _pip("wheel", "--no-deps", "--wheel-dir", str(target), str(_clean_copy(source, Path(scratch))))
    return next(target.glob("ninfer-*.whl"))


def _clean_copy(source: Path, target: Path) -> Path:
    """The packages alone, elsewhere: a build in the checkout would leave a directory there whose stale modules the next
    wheel would hold."""
    for package in ("ninfer_engine", "ninfer_lifecycle"):
        shutil.copytree(source / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        if (source / name).is_file():
            shutil.copy(source / name, target)
    return target


def _pip(*arguments: str) -> None:
    argv: Sequence[str] = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_PIP_DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"pip {arguments[0]} took more than {_PIP_DEADLINE_S} s", "see whether the package index "
                         "answers, or give --wheels DIR") from error
    if done.returncode != 0:
        last = "\n".join("    " + line for line in (done.stderr or done.stdout).strip().splitlines()[-10:])
        raise UsageError(f"pip {arguments[0]} failed; its last lines:\n{last}",
                         "fix what it says, or give a directory of ready wheels: --wheels DIR")
