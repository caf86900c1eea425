"""Before a deployment: the parts that will run. After one that did not go well: the error that says so."""

from dataclasses import dataclass
from pathlib import Path

from ninfer_lifecycle.errors import ExitCode, NinferError, UsageError
from ninfer_lifecycle.hosts.daemon import Daemon
from ninfer_lifecycle.hosts.swarm.verdict import Outcome
from ninfer_lifecycle.profiles.configuration import ProfileLock
from ninfer_lifecycle.profiles.locking import lock_profile, read_profile_lock
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.models import ensure_model
from ninfer_lifecycle.replicas.deploy import Rollout
from ninfer_lifecycle.text import plain


@dataclass(frozen=True, slots=True)
class SettledParts:
    """What nodes will run. image: as `plan.Wanted` has it."""

    lock: ProfileLock
    image: str
    model_dir: str


def settle(
    profile: Profile, daemon: Daemon, lock: Path | None, model_dir: str | None, models_dir: Path
) -> SettledParts:
    """Settle model, image and lock. Nodes get a repository digest where the profile has one; else the image's id, so
    that each node runs this very image or none. Raises UsageError and HostError. Effects: makes the tiny model.
    """
    if lock is not None:
        locked, where = read_profile_lock(lock), model_dir or profile.model.path
    else:
        image = daemon.image(profile.image.reference).id
        model = ensure_model(profile.model, models_dir.resolve())
        locked, where = lock_profile(profile, model.sha256, image), model_dir or str(model.path.resolve())
    if locked.configuration.image is None:
        raise UsageError("the lock names no image", "lock the profile for containers: ninfer profile lock PROFILE")
    if where is None:
        raise UsageError("where nodes have the model is not known", "give --model-dir")
    return SettledParts(locked, profile.image.reference if profile.image.digest else locked.configuration.image, where)


class DidNotConvergeError(NinferError):
    """The orchestrator did not bring the service to run."""

    def __init__(self, rollout: Rollout) -> None:
        verdict = rollout.verdict
        lines = "\n".join(f"    {plain(line)}" for line in rollout.last_lines.rstrip().splitlines())
        said = f"; its last lines:\n{lines}" if lines else ""
        rolled_back = verdict.outcome is Outcome.ROLLED_BACK
        super().__init__(f"service {rollout.service} is {verdict.outcome.value}: {plain(verdict.reason)}{said}",
                         _NOT_BACK if rolled_back and not rollout.restored else _ADVICE[verdict.outcome])
        refused = verdict.outcome in {Outcome.ROLLED_BACK, Outcome.PAUSED, Outcome.FAILING}
        self.exit_code = ExitCode.FAILED if refused else ExitCode.INCONCLUSIVE


_NOT_BACK = "what ran before is not back in full: docker service ps shows which task is missing"
_ADVICE = {
    Outcome.ROLLED_BACK: "what ran before runs again; mend what the task says and deploy again",
    Outcome.PAUSED: "the orchestrator waits for a person: mend what the task says and deploy again, or "
                    "`docker service rollback` it",
    Outcome.FAILING: "nothing ran before, so it was taken away again; mend what the task says and deploy again",
    Outcome.UNPLACED: "label a node (docker node update --label-add NAME=VALUE NODE), activate a drained one, or ask "
                      "for fewer replicas, memory, CPU or GPU; docker node ls shows them",
    Outcome.WAITING: "see what its tasks do: docker service ps; a slow model needs more host.readySeconds",
    Outcome.CONVERGED: "",
}
