"""Fixtures for tests in real containers. A missing daemon or base image fails them: there is no silent skip.

NINFER_BASE_IMAGE names a base image to use; without it scripts/base_image.sh makes one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from held import nothing_more_held

from ninfer_lifecycle.hosts.ownership import Fate, fate_of, here
from ninfer_lifecycle.profiles.schema import ModelSection
from ninfer_lifecycle.qualify.models import ModelOnDisk, ensure_model

REPOSITORY = Path(__file__).parents[2]
FAKE_ENGINE = REPOSITORY / "tests" / "lifecycle" / "fake_engine_server.py"
BASE_TAG = "ninfer-base:bookworm"
ENGINE_TAG = "ninfer-engine:cpu"
"""What the tiny profiles name."""


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[docker.DockerClient]:
    """A client of the daemon; the test run fails where none answers."""
    try:
        client = docker.from_env(timeout=30)
        client.ping()
    except docker.errors.DockerException as error:
        pytest.fail(f"no Docker daemon answers ({error}): start one, for instance with scripts/docker_up.sh")
    yield client
    client.close()


@pytest.fixture(scope="session")
def base_image(docker_daemon: docker.DockerClient) -> str:
    """Tag of a local image with python3."""
    if given := os.environ.get("NINFER_BASE_IMAGE"):
        docker_daemon.images.get(given)
        return given
    subprocess.run([str(REPOSITORY / "scripts" / "base_image.sh"), BASE_TAG], check=True, timeout=600)
    return BASE_TAG


@pytest.fixture(scope="session")
def engine_image(docker_daemon: docker.DockerClient, base_image: str) -> str:
    """Tag of the engine's image; built once by the tool, or the one that NINFER_ENGINE_IMAGE names."""
    if given := os.environ.get("NINFER_ENGINE_IMAGE"):
        docker_daemon.images.get(given)
        return given
    subprocess.run([sys.executable, "-m", "ninfer_lifecycle.cli", "image", "build", "--tag", ENGINE_TAG,
                    "--base-image", base_image], check=True, timeout=1800)
    return ENGINE_TAG


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> ModelOnDisk:
    """The tiny model of seed 0."""
    return ensure_model(ModelSection(source="tiny"), tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def fake_image(
    docker_daemon: docker.DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], str]]:
    """Builds, once for each behaviour, an image whose entrypoint is the misbehaving stand-in for the engine."""
    built: dict[str, str] = {}

    def build(behaviour: str) -> str:
        if behaviour not in built:
            context = tmp_path_factory.mktemp("fake-image")
            shutil.copy(FAKE_ENGINE, context / "fake.py")
            (context / "Dockerfile").write_text(
                f'FROM {base_image}\nCOPY fake.py /fake.py\nENTRYPOINT ["python3", "/fake.py", "{behaviour}"]\n')
            tag = f"ninfer-fake:{behaviour.replace('_', '-')}"
            docker_daemon.images.build(path=str(context), tag=tag, rm=True, forcerm=True, network_mode="none")
            built[behaviour] = tag
        return built[behaviour]

    yield build
    for tag in built.values():
        docker_daemon.images.remove(tag, force=True)


@pytest.fixture(scope="session")
def pretend_image(
    docker_daemon: docker.DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Tag of an image with the fault-injecting engine: a qualification in a container takes seconds on it."""
    context, tag = tmp_path_factory.mktemp("pretend-image"), "ninfer-pretend:e2e"
    for file in ("fake_engine_server", "fault_engine", "fault_model"):
        shutil.copy(FAKE_ENGINE.with_name(f"{file}.py"), context)
    shutil.copy(REPOSITORY / "tests" / "e2e" / "pretend_engine.py", context)
    (context / "Dockerfile").write_text(
        f'FROM {base_image}\nCOPY *.py /engine/\nENTRYPOINT ["python3", "/engine/pretend_engine.py"]\n')
    docker_daemon.images.build(path=str(context), tag=tag, rm=True, forcerm=True, network_mode="none")
    yield tag
    docker_daemon.images.remove(tag, force=True)


@pytest.fixture(scope="session")
def pretended(
    docker_daemon: docker.DockerClient, base_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Tag of an image for lanes: its engine is pretended and speaks the whole contract."""
    context, tag = tmp_path_factory.mktemp("lane-image"), "ninfer-fake:lane"
    for name in ("releases/lane_engine.py", "lifecycle/fault_engine.py", "lifecycle/fault_model.py"):
        (context / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "tests" / name, context / name)
    (context / "Dockerfile").write_text(
        f'FROM {base_image}\nCOPY releases /t/releases\nCOPY lifecycle /t/lifecycle\n'
        'ENTRYPOINT ["python3", "/t/releases/lane_engine.py"]\n')
    docker_daemon.images.build(path=str(context), tag=tag, rm=True, forcerm=True, network_mode="none")
    yield tag
    docker_daemon.images.remove(tag, force=True)


@pytest.fixture
def pretend_profile(tmp_path: Path, pretend_image: str) -> Path:
    """A profile for it: one template, one fork, one restart."""
    model = tmp_path / "model"
    model.mkdir()
    repository, _, tag = pretend_image.rpartition(":")
    path, digest = tmp_path / "pretend.yaml", "1" * 64
    path.write_text(
        f"schemaVersion: 1\nname: pretend\nlane: test\n"
        f'model: {{source: path, path: {model}, id: pretend, sha256: "{digest}"}}\n'
        f"image: {{repository: {repository}, tag: {tag}}}\nflags: {{max-context: 131072}}\n"
        f"host: {{kind: docker, memory: 256m, readySeconds: 60, stopSeconds: 10}}\n"
        f"probes: {{plan: fanout, sizes: [200], forks: 1}}\n")
    return path


@pytest.fixture
def no_leftovers(docker_daemon: docker.DockerClient) -> Iterator[None]:
    """Fails the test that leaves a container, a volume or a network of ours behind, here a thread or a descriptor."""
    before = _ours(docker_daemon)
    with nothing_more_held(docker_daemon.api.close):
        yield
    assert _ours(docker_daemon) == before


def _ours(client: docker.DockerClient) -> dict[str, set[str]]:
    """What there is, but for what a process of somebody else holds: another run on this daemon is no leftover."""
    containers = client.api.containers(all=True, filters={"label": "dev.ninfer.tool=ninfer"})
    return {
        "containers": {entry["Id"] for entry in containers if not _is_of_another(entry["Id"], entry["Labels"])},
        "volumes": {volume["Name"] for volume in client.api.volumes(
            filters={"label": "dev.ninfer.tool=ninfer"}).get("Volumes") or ()},
        "networks": {network["Id"] for network in client.api.networks(filters={"label": "dev.ninfer.tool=ninfer"})},
    }


def _is_of_another(handle: str, labels: dict[str, str]) -> bool:
    fate = fate_of(labels, handle, here())
    return fate is not Fate.DEAD and labels.get("dev.ninfer.owner-pid") != str(os.getpid())
