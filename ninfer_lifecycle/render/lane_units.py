"""Units of systemd that keep a machine's lanes serving: after a boot, and when a router is killed. Pure."""

from collections.abc import Mapping

from ninfer_lifecycle.render.files import environment

NAMES = ("ninfer-lanes.service", "ninfer-lanes.timer")
DAEMON = ("DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH")
START_SECONDS = 3600
"""One recovery may start every lane's engine, one after another."""


def lane_units(program: str, state_dir: str, every_seconds: int, daemon: Mapping[str, str] | None = None
               ) -> dict[str, str]:
    """Text of each of NAMES. program: the tool's executable. every_seconds: from one look at the lanes to the next.
    daemon: the variables of DAEMON that are set, which say where the lanes' engines are.
    """
    return {name: environment().get_template(f"{name.removeprefix('ninfer-')}.jinja2").render(
        program=program, state_dir=state_dir, every_seconds=every_seconds, start_seconds=START_SECONDS,
        daemon=dict(daemon or {})) for name in NAMES}
