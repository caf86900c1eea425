"""The build context of the image: what the engine needs, and nothing that it does not."""

import zipfile
from pathlib import Path

import pytest

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.image_context import engine_requirements, make_context, source_directory

METADATA = """\
Metadata-Version: 2.4
Name: ninfer
Version: 0.1.0
Requires-Dist: docker>=7.1
Requires-Dist: pydantic>=2.10
Requires-Dist: typer>=0.15
Provides-Extra: engine
Requires-Dist: torch==2.13.0; extra == "engine"
Requires-Dist: triton>=3.4; (platform_system == "Linux" and platform_machine == "x86_64") and extra == "engine"
Provides-Extra: dev
Requires-Dist: pytest>=8.3; extra == "dev"
"""


def wheel(folder: Path) -> Path:
    file = folder / "ninfer-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ninfer-0.1.0.dist-info/METADATA", METADATA)
    return file


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "ready"
    folder.mkdir()
    wheel(folder)
    for name in ("pip-25.0", "torch-2.13.0", "triton-3.4.0"):
        (folder / f"{name}-py3-none-any.whl").write_bytes(b"wheel")
    return folder


def test_the_image_gets_base_and_engine_requirements_without_what_only_the_tool_imports(tmp_path: Path) -> None:
    assert engine_requirements(wheel(tmp_path), gpu=False) == ["pydantic>=2.10", "torch==2.13.0", "typer>=0.15"]


def test_triton_comes_with_gpus_only(tmp_path: Path) -> None:
    assert "triton>=3.4" in engine_requirements(wheel(tmp_path), gpu=True)


@pytest.mark.parametrize("gpu", [False, True])
def test_a_context_of_ready_wheels_is_complete_and_downloads_nothing(
    tmp_path: Path, wheels: Path, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("a program was started"))
    context = tmp_path / "context"
    context.mkdir()
    make_context(source_directory(), context, wheels, gpu, lambda _line: None)
    dependencies = context / "wheels" / "dependencies"
    assert (context / "Dockerfile").is_file()
    assert [file.name for file in (context / "wheels" / "ninfer").iterdir()] == ["ninfer-0.1.0-py3-none-any.whl"]
    assert "torch==2.13.0" in (dependencies / "requirements.txt").read_text()
    assert list(dependencies.glob("pip-*.whl")) and not list(dependencies.glob("ninfer-*"))
    assert bool(list(dependencies.glob("triton-*.whl"))) == gpu


def test_ready_wheels_without_pip_are_refused(tmp_path: Path, wheels: Path) -> None:
    next(wheels.glob("pip-*.whl")).unlink()
    context = tmp_path / "context"
    context.mkdir()
    with pytest.raises(UsageError, match="no wheel of pip"):
        make_context(source_directory(), context, wheels, gpu=False, say=lambda _line: None)


def test_what_pip_says_last_is_in_the_error(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("ninfer_engine", "ninfer_lifecycle"):
        (source / name).mkdir(parents=True)
    (source / "Dockerfile").write_text("FROM scratch\n")
    (source / "pyproject.toml").write_text("[build-system\n")
    context = tmp_path / "context"
    context.mkdir()
    with pytest.raises(UsageError, match="pip wheel failed") as caught:
        make_context(source, context, None, gpu=False, say=lambda _line: None)
    assert "TOMLDecodeError" in caught.value.message
