"""What a deployment is made of: names, labels, and the services of engine and front. Pure.

Names hold a digest of what they name, so that to deploy twice is to deploy once, and a new key or configuration is a
new secret or config beside the old one, which a rollback still finds.
"""

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.hosts.base import Limits
from ninfer_lifecycle.hosts.container import ENGINE_PORT, KEY_AT, MODEL_AT, STORE_AT, BoundPath
from ninfer_lifecycle.hosts.mounts import CONTAINER_UID
from ninfer_lifecycle.hosts.ownership import LABEL
from ninfer_lifecycle.hosts.swarm.service import GivenFile, Health, ServiceAsked, Volume, node_constraints
from ninfer_lifecycle.profiles.configuration import ProfileLock
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.prepare import limits_of
from ninfer_lifecycle.render.deployment import Places, deployment_of

DEPLOYMENT_LABEL = f"{LABEL}.deployment"
ROLE_LABEL = f"{LABEL}.role"
FRONT_AT = "/front.pyz"
CONFIGURATION_AT = "/etc/ninfer/configuration.json"
_FRONT_MEMORY = 256 * 2**20
_CHANGED_AT_A_TIME_S = 10.0


class Publish(StrEnum):
    """Where a front's port is: on every node through the routing mesh, or on the front's own nodes."""

    MESH = "mesh"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A deployment as it was asked for.

    name: of the deployment. lock: of the profile, on the parts that will run. image: what nodes run, a repository
    digest that they can pull or the id of an image that each of them holds. model_dir: the model's place on every node.
    fronts: how many; 0 for a deployment that is reached by its tasks' own addresses alone.
    """

    name: str
    profile: Profile
    lock: ProfileLock
    image: str
    model_dir: str
    key: bytes
    replicas: int = 1
    fronts: int = 1
    port: int = 8080
    publish: Publish = Publish.MESH
    lane: str | None = None

    @property
    def service_name(self) -> str:
        """The engine's service, and the name that its tasks answer to on the network."""
        return f"ninfer-{self.name}"

    @property
    def front_name(self) -> str:
        """The front's service."""
        return f"{self.service_name}-front"

    @property
    def lane_name(self) -> str:
        """The lane that it serves."""
        return self.lane or self.profile.lane

    def labels(self, role: str) -> dict[str, str]:
        """On everything of this deployment. No owner is named: it belongs to the swarm, and `sweep` leaves it."""
        return {f"{LABEL}.tool": "ninfer", DEPLOYMENT_LABEL: self.name, ROLE_LABEL: role,
                f"{LABEL}.profile": self.profile.name, f"{LABEL}.lane": self.lane_name}

    def object_name(self, what: str, data: bytes) -> str:
        """A name for a secret or a config with this in it."""
        digest = hashlib.sha256(what.encode() + b"\0" + data).hexdigest()[:16]
        name = f"{self.service_name}-{what}-{digest}"
        if len(name) > 64:
            raise UsageError(f"{self.name} is too long a name for a deployment", "give a shorter one with --name")
        return name


def engine_service(wanted: Wanted, network: str, key: GivenFile, configuration: GivenFile) -> ServiceAsked:
    """The engines: one a node, because a node's store takes one; the old one goes before the new one comes."""
    host = wanted.profile.host
    made = deployment_of(wanted.profile, Places(model_dir=wanted.model_dir), wanted.lock)
    labels = made.node_labels if wanted.lane is None else {
        **(dict(host.node_labels) or {}), "ninfer.lane": wanted.lane}
    store = f"{wanted.service_name}-store-{wanted.lock.configuration_sha256[:12]}"
    return ServiceAsked(
        name=wanted.service_name, image=wanted.image, argv=made.argv, user=made.user, limits=limits_of(host),
        labels=wanted.labels("engine"), binds=(BoundPath(wanted.model_dir, MODEL_AT, read_only=True),),
        # A store of each configuration: a rollback finds its own sessions again.
        volumes=(Volume(store, STORE_AT),), secrets=(key,), configs=(configuration,),
        constraints=node_constraints(labels), networks=(network,), replicas=wanted.replicas, one_per_node=True, port=0,
        restart="any",
        health=Health(starts_within_s=host.ready_seconds), stop_s=host.stop_seconds, monitor_s=_CHANGED_AT_A_TIME_S,
        order="stop-first", gpu_resource=host.gpu_resource,
        facts={f"{LABEL}.configuration": wanted.lock.configuration_sha256})


def front_service(wanted: Wanted, network: str, bundle: GivenFile) -> ServiceAsked:
    """The fronts: stateless, so as many as wanted, anywhere. Beside each other where the mesh holds the port, one after
    the other where a node's own port is taken.
    """
    on_mesh = wanted.publish is Publish.MESH
    return ServiceAsked(
        name=wanted.front_name, image=wanted.image, entrypoint=("python3", FRONT_AT),
        argv=(f"tasks.{wanted.service_name}", str(ENGINE_PORT), str(ENGINE_PORT)),
        user=f"{CONTAINER_UID}:{CONTAINER_UID}", limits=Limits(memory_bytes=_FRONT_MEMORY, tmpfs_bytes=2**24),
        labels=wanted.labels("front"), configs=(bundle,), networks=(network,), replicas=wanted.fronts,
        one_per_node=wanted.publish is Publish.HOST, port=wanted.port if wanted.publish is Publish.HOST else None,
        mesh_port=wanted.port if on_mesh else None, restart="any", health=Health(starts_within_s=60.0), stop_s=40.0,
        monitor_s=_CHANGED_AT_A_TIME_S, order="stop-first" if wanted.publish is Publish.HOST else "start-first")


def key_file(file_id: str, name: str) -> GivenFile:
    """The API key in the engine's container: its user's alone."""
    return GivenFile(file_id, name, KEY_AT, CONTAINER_UID, CONTAINER_UID, 0o400)


def configuration_file(file_id: str, name: str) -> GivenFile:
    """What the engine runs, by digest, in its container. Not the lock: another probe plan is no reason to restart."""
    return GivenFile(file_id, name, CONFIGURATION_AT, 0, 0, 0o444)


def bundle_file(file_id: str, name: str) -> GivenFile:
    """The front's program."""
    return GivenFile(file_id, name, FRONT_AT, 0, 0, 0o444)


