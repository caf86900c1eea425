"""The real engine in a real container: identity, generation, restart, refusal of another model."""

import hashlib
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity
from ninfer_lifecycle.hosts.docker import DockerHost
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.hosts.readiness import EngineEndedError
from ninfer_lifecycle.profiles.configuration import build_configuration, configured_flags
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.qualify.models import ModelOnDisk

# The first test of a run may have to build the image.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800), pytest.mark.usefixtures("no_leftovers")]
SESSION = hashlib.sha256(b"e2e").hexdigest()


@pytest.fixture
def spec(tmp_path: Path, engine_image: str, tiny_model: ModelOnDisk, docker_daemon: docker.DockerClient) -> EngineSpec:
    profile = load_profile("tiny-cpu").profile
    image = str(docker_daemon.images.get(engine_image).id)
    configuration = build_configuration(profile, tiny_model.sha256, image)
    key = tmp_path / "key"
    key.write_text("e2e-key\n")
    key.chmod(0o600)
    return EngineSpec(
        run_id="e2e", flags=configured_flags(profile, tiny_model.sha256), model_dir=tiny_model.path,
        run_dir=tmp_path / "run", expected=ExpectedIdentity(configuration.identity_sha256, tiny_model.sha256),
        store_dir=tmp_path / "store", key_file=key, image=image, ready_s=180)


def test_a_saved_base_has_a_hot_fork_in_the_next_life_of_its_container(spec: EngineSpec) -> None:
    words = " ".join(f"entry {number}: amount {number * 7 % 97}" for number in range(120))
    body = {"model": "ninfer-tiny", "input": words, "store": True, "temperature": 0, "max_output_tokens": 8,
            "ninfer_session": SESSION}
    with DockerHost() as place:
        engine = place.start(spec)
        with client_of(spec, engine.base_url) as client:
            base = client.create_response(body, session=SESSION)
            assert base.usage is not None and base.usage.input_tokens > 512
            assert client.save(SESSION).response_records >= 1
            first = client.status()
        assert first.scheduler.computed_prefill_tokens >= base.usage.input_tokens
        again = place.restart(engine)
        with client_of(spec, again.base_url) as client:
            # The counter began anew: one small request has proved this life ready, and nothing else was asked of it.
            assert client.status().scheduler.computed_prefill_tokens < base.usage.input_tokens / 10
            fork = client.create_response({**body, "input": "and now?", "previous_response_id": base.id},
                                          session=SESSION)
            second = client.status()
    assert fork.ninfer is not None and fork.usage is not None
    assert fork.ninfer.reused_tokens >= base.usage.input_tokens
    assert second.identity.server_instance_id != first.identity.server_instance_id
    assert second.identity.config_sha256 == first.identity.config_sha256 == spec.expected.config_sha256
    assert again.previous is not None and (again.previous.exit_code, again.previous.oom_killed) == (0, False)
    assert engine.request_log is not None and "request_done" in engine.request_log.read_text()


def test_another_model_than_the_one_named_is_refused_by_the_engine_with_its_reason(spec: EngineSpec) -> None:
    wrong = replace(spec, flags=spec.flags.model_copy(update={"model_sha256": "0" * 64}),
                    expected=replace(spec.expected, model_sha256="0" * 64))
    with DockerHost() as place, pytest.raises(EngineEndedError) as caught:
        place.start(wrong)
    assert "0" * 64 in caught.value.message
    assert "Traceback" not in caught.value.message


def test_the_image_runs_as_a_user_that_is_not_root_and_knows_how_to_tell_its_health(
    docker_daemon: docker.DockerClient, engine_image: str
) -> None:
    config = docker_daemon.api.inspect_image(engine_image)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert config["Entrypoint"] == ["/opt/ninfer/bin/ninfer-engine"]
