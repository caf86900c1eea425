"""The preflight's look at what a container is asked to be: a swarm to run it, its runtime, its seccomp profile."""

from collections.abc import Iterator
from pathlib import Path

from ninfer_lifecycle.errors import HostError
from ninfer_lifecycle.hosts.base import HostKind, Limits
from ninfer_lifecycle.hosts.container import seccomp_text
from ninfer_lifecycle.hosts.daemon import DaemonFacts
from ninfer_lifecycle.hosts.findings import Finding, ok, problem
from ninfer_lifecycle.hosts.swarm.cluster import NoManagerError
from ninfer_lifecycle.hosts.swarm.service import refuse_what_a_swarm_cannot_say
from ninfer_lifecycle.profiles.schema import Profile


def box_findings(profile: Profile, kind: HostKind, facts: DaemonFacts | None) -> Iterator[Finding]:
    """What the host section asks for that not every daemon can give. facts None: no daemon answers."""
    runtime, seccomp = profile.host.runtime, Path(profile.host.seccomp) if profile.host.seccomp else None
    if kind == "swarm":
        yield from _swarm(Limits(runtime=runtime, seccomp=seccomp), facts)
        return
    if runtime is not None and facts is not None:
        yield _runtime(runtime, facts)
    if seccomp is not None:
        try:
            seccomp_text(seccomp)
        except HostError as error:
            yield problem("seccomp", error.message, error.advice)
        else:
            yield ok("seccomp", f"{seccomp} is a profile")


def _swarm(limits: Limits, facts: DaemonFacts | None) -> Iterator[Finding]:
    if facts is not None and facts.no_manager is None:
        yield ok("swarm", "this daemon manages a swarm")
    elif facts is not None:
        error = NoManagerError(facts.no_manager or "")
        yield problem("swarm", error.message, error.advice)
    try:
        refuse_what_a_swarm_cannot_say(limits)
    except HostError as refused:
        yield problem("swarm service", refused.message, refused.advice)


def _runtime(wanted: str, facts: DaemonFacts) -> Finding:
    if wanted in facts.runtimes:
        return ok("runtime", f"the daemon has the {wanted} runtime")
    how = ("install the NVIDIA container toolkit and run `nvidia-ctk runtime configure`" if wanted == "nvidia"
           else "configure it in daemon.json")
    return problem("runtime", f"the daemon has no runtime {wanted} (it has {', '.join(facts.runtimes)})",
                   f"{how}, or leave host.runtime out")
