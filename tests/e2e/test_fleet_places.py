"""A fleet over real daemons: this machine's own, one behind a context and behind TLS, and a key that nobody lets in."""

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import docker
import pytest
import yaml
from certificates import Authority
from needed import needed
from second_daemon import SecondDaemon

from ninfer_lifecycle.hosts.placing import free_port

pytestmark = [pytest.mark.docker, pytest.mark.timeout(300), pytest.mark.usefixtures("no_leftovers"),
              pytest.mark.skipif(os.getuid() != 0, reason="only root starts a second daemon")]


def test_lanes_run_where_contexts_and_certificates_lead_and_one_that_cannot_is_alone_with_it(
    pretend_profile: Path, pretend_image: str, tmp_path: Path, docker_daemon: docker.DockerClient
) -> None:
    ours, strangers = Authority("ours"), Authority("strangers")
    server, port = ours.issue(tmp_path / "server", "daemon"), free_port()
    tls = ("--host", f"tcp://127.0.0.1:{port}", "--tlsverify", "--tlscacert", str(server / "ca.pem"), "--tlscert",
           str(server / "cert.pem"), "--tlskey", str(server / "key.pem"))
    environment = {**os.environ, "DOCKER_CONFIG": str(tmp_path / "docker"), "NINFER_STATE_DIR": str(tmp_path / "state"),
                   "REQUESTS_CA_BUNDLE": str(strangers.issue(tmp_path / "bundle", "x") / "ca.pem")}  # is not asked
    with SecondDaemon(tmp_path, *tls) as second:
        second.load(docker_daemon, pretend_image)
        subprocess.run([needed("docker.io", "docker"), "context", "create", "box", "--docker", f"host={second.url}"],
                       check=True, capture_output=True, timeout=60, env=environment)
        places = {"here": {}, "box": {"context": "box"}}
        for name, authority in (("tls", ours), ("outside", strangers)):
            places[name] = {"url": f"tcp://127.0.0.1:{port}", "tlsDir": str(authority.issue(tmp_path / name, "client"))}
        fleet = tmp_path / "fleet.yaml"
        fleet.write_text(yaml.safe_dump({"schemaVersion": 1, "name": "f", "parallelism": 2, "lanes": [
            {"name": name, "profile": str(pretend_profile), "place": place} for name, place in places.items()]}))
        ran = subprocess.run(
            [sys.executable, "-m", "ninfer_lifecycle.cli", "qualify", "--fleet", str(fleet), "--json",
             *(word for name in ("runs", "receipts", "state", "models") for word in (f"--{name}-dir",
                                                                                     str(tmp_path / name)))],
            capture_output=True, text=True, check=False, timeout=240, env=environment)
        told = json.loads(ran.stdout)
        lanes = {lane["name"]: lane for lane in told["lanes"]}
        assert {name: lane["result"] for name, lane in lanes.items()} == {
            "here": "PASSED", "box": "PASSED", "tls": "PASSED", "outside": "INCONCLUSIVE"}, ran.stderr
        assert ran.returncode == 3 and "certificate" in lanes["outside"]["reason"]
        assert lanes["here"]["lock"] == lanes["box"]["lock"] == lanes["tls"]["lock"]
        assert set(told["receipts"]) == set(lanes)
        lives = [Path(told["receipts"][name].replace("intoto.json", "epochs.jsonl")) for name in ("here", "box", "tls")]
        assert len({json.loads(file.read_text().splitlines()[0])["container_id"] for file in lives}) == 3
        with closing(docker.DockerClient(second.url, timeout=20)) as client:
            assert client.containers.list(all=True) == []
