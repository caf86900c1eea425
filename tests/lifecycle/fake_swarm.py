"""`fake_dockerd` as the one manager of a swarm, which misbehaves by name: services, tasks, secrets, configs, networks.

A task is one of the daemon's pretend containers; the orchestrator acts at once. What a task is made of is what the
service's template says, so that what a tool compares with its own asking is compared here too.
"""

import copy
import json
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from fake_containers import FakeContainer, Fault, stamp
from fake_docker_api import ROUTES, Handler, frame
from fake_dockerd import FakeDockerd

NODE = "node" + "0" * 21
NO_NODE = "no suitable node (scheduling constraints not satisfied on 1 node)"
NO_IMAGE = "No such image: sha256:" + "1" * 64
NO_LEADER = "rpc error: code = Unknown desc = The swarm does not have a leader. It's possible that too few managers " \
            "are online. Make sure more than half of the managers are online."


class SwarmFault(StrEnum):
    """What this swarm does wrong."""

    NO_SWARM = "the daemon is in no swarm"
    WORKER = "the daemon is a worker"
    NO_QUORUM = "the managers have lost their quorum"
    LOSES_QUORUM_LATER = "the managers lose their quorum once a service is there"
    NO_SUITABLE_NODE = "no node takes a task"
    NO_SUCH_IMAGE = "the node does not have the image"
    UPDATE_PAUSED = "an update is paused"
    UPDATE_ROLLED_BACK = "an update is rolled back"
    ROLLBACK_PAUSED = "an update is rolled back, and that is paused too"
    CRASH_LOOP = "every task ends at once"
    SECRET_IN_USE = "a secret is in use for a while after its service went"
    CHANGED_MEANWHILE = "somebody else updates the service in the same moment"
    FORGETS_TASKS = "keeps no history of tasks"
    STALLS_AT_CREATE = "makes a service and never says so"
    OTHER_PORT_FOR_IPV6 = "publishes a task on another port for IPv6, the lower of the two"


@dataclass
class FakeTask:
    """One task. container None: it never got one."""

    id: str
    service: str
    slot: int
    spec: dict[str, Any]
    container: FakeContainer | None
    state: str = "running"
    desired: str = "running"
    error: str = ""
    created: str = field(default_factory=stamp)


class FakeSwarm(FakeDockerd):
    """The daemon and its swarm of one node."""

    def __init__(self, socket: Path, *faults: Fault, swarm: tuple[SwarmFault, ...] = (), behaviour: str = "ok") -> None:
        super().__init__(socket, *faults, behaviour=behaviour)
        self.handler = SwarmHandler
        self.swarm_faults = set(swarm)
        self.services: dict[str, dict[str, Any]] = {}
        self.things: dict[str, dict[str, dict[str, Any]]] = {"secrets": {}, "configs": {}}
        self.tasks: list[FakeTask] = []
        self.version, self.refused = 10, 0

    def does(self, fault: SwarmFault) -> bool:
        return fault in self.swarm_faults

    def leaderless(self) -> bool:
        return self.does(SwarmFault.NO_QUORUM) or (self.does(SwarmFault.LOSES_QUORUM_LATER) and bool(self.services))

    def reconcile(self, service: dict[str, Any]) -> None:
        """Make what the service's spec says: every slot a task of the current template, and no more."""
        spec = service["Spec"]
        wanted = int(spec["Mode"]["Replicated"]["Replicas"])
        current = [task for task in self.tasks if task.service == service["ID"] and task.desired == "running"]
        for task in current:
            if task.slot > wanted or task.spec != spec["TaskTemplate"]:
                self.shut_down(task)
        kept = {task.slot for task in current if task.desired == "running"}
        for slot in range(1, wanted + 1):
            if slot not in kept:
                self.make_task(service, slot)

    def shut_down(self, task: FakeTask) -> None:
        task.desired = "shutdown"
        if task.container is not None and task.container.state == "running" and not self.has(Fault.IGNORES_SIGTERM):
            self.end(task.container, 0)
        if self.does(SwarmFault.FORGETS_TASKS):
            self.tasks.remove(task)
            if task.container is not None:
                self.containers.pop(task.container.id, None)

    def make_task(self, service: dict[str, Any], slot: int) -> FakeTask:
        spec = copy.deepcopy(service["Spec"]["TaskTemplate"])
        task = FakeTask(secrets.token_hex(12), service["ID"], slot, spec, None)
        self.tasks.append(task)
        if self.does(SwarmFault.NO_SUITABLE_NODE):
            task.state, task.error = "pending", NO_NODE
        elif self.does(SwarmFault.NO_SUCH_IMAGE):
            task.state, task.error = "rejected", NO_IMAGE
        else:
            asked = spec["ContainerSpec"]
            body = {"Cmd": asked["Args"], "User": asked["User"], "Labels": {
                **asked["Labels"], "com.docker.swarm.service.id": service["ID"]}, "HostConfig": {
                "ReadonlyRootfs": asked["ReadOnly"], "CapDrop": asked["CapabilityDrop"],
                "Memory": spec["Resources"]["Limits"].get("MemoryBytes", 0),
                "NanoCpus": spec["Resources"]["Limits"].get("NanoCPUs", 0),
                "Mounts": [one for one in asked["Mounts"] if one["Type"] == "bind"]}}
            task.container = FakeContainer(secrets.token_hex(32), f"{service['Spec']['Name']}.{slot}.{task.id}", body)
            self.containers[task.container.id] = task.container
            self.run(task.container)
            if self.does(SwarmFault.CRASH_LOOP):
                self.end(task.container, 4)
        return task

    def update(self, service: dict[str, Any], spec: dict[str, Any]) -> None:
        """An update and how it ends, by the faults."""
        before = service["Spec"]
        service |= {"Spec": spec, "PreviousSpec": before}
        judged = {SwarmFault.UPDATE_PAUSED: "paused", SwarmFault.UPDATE_ROLLED_BACK: "rollback_completed",
                  SwarmFault.ROLLBACK_PAUSED: "rollback_paused"}
        state = next((state for fault, state in judged.items() if self.does(fault)), None)
        if state is None:
            self.reconcile(service)
            service["UpdateStatus"] = {"State": "completed", "Message": "update completed", "StartedAt": stamp()}
            return
        first = next(task for task in self.tasks if task.service == service["ID"] and task.desired == "running")
        self.shut_down(first)
        broken = self.make_task(service, first.slot)
        assert broken.container is not None
        self.say(broken.container, "the flag is not known\n")
        self.end(broken.container, 4)
        service["UpdateStatus"] = {"State": state, "Message": f"update {state} due to failure or early termination of "
                                                              f"task {broken.id}", "StartedAt": stamp()}
        if state != "paused":
            service["Spec"] = before
            service.pop("PreviousSpec")
            broken.desired = "shutdown"
            self.reconcile(service)

    def bindings(self, container: FakeContainer) -> list[tuple[str, int]]:
        """Address and port, as a node publishes in host mode."""
        if container.port is None or self.has(Fault.NEVER_BINDS_PORTS):
            return []
        return [("0.0.0.0", container.port),  # noqa: S104 - what a swarm says
                ("::", 1 if self.does(SwarmFault.OTHER_PORT_FOR_IPV6) else container.port)]

    def attrs(self, container: FakeContainer) -> dict[str, Any]:
        """The inspect document, with the ports of a task."""
        found = super().attrs(container)
        late = self.has(Fault.BINDS_PORTS_LATE) and container.asked < 6
        found["NetworkSettings"] = {"Ports": {"8080/tcp": None if late else [
            {"HostIp": address, "HostPort": str(port)} for address, port in self.bindings(container)] or None}}
        return found

    def document(self, task: FakeTask) -> dict[str, Any]:
        """The task as the Engine API has it."""
        status: dict[str, Any] = {"State": task.state, "Message": "started", "Err": task.error}
        if task.container is not None:
            container = task.container
            if container.state == "exited":
                well = container.exit_code == 0
                task.state = ("shutdown" if task.desired == "shutdown" else "complete") if well else "failed"
                task.error = "" if well else f"task: non-zero exit ({container.exit_code})"
            ports = [{"Protocol": "tcp", "TargetPort": 8080, "PublishedPort": port, "PublishMode": "host"}
                     for _, port in self.bindings(container)]
            status |= {"State": task.state, "Err": task.error, "PortStatus": {"Ports": ports}, "ContainerStatus": {
                "ContainerID": container.id, "PID": 0, "ExitCode": container.exit_code}}
        return {"ID": task.id, "ServiceID": task.service, "Slot": task.slot, "DesiredState": task.desired,
                "CreatedAt": task.created, "Spec": task.spec, "Status": status,
                **({"NodeID": NODE} if task.container is not None else {})}


class SwarmHandler(Handler):
    """The routes of a manager, beside those of the daemon."""

    routes = [  # noqa: RUF012 - the base class has a list
        ("GET", "/nodes", "nodes"), ("GET", "/services", "list_services"),
        ("POST", "/services/create", "create_service"),
        ("GET", "/services/([^/]+)", "inspect_service"), ("POST", "/services/([^/]+)/update", "update_service"),
        ("DELETE", "/services/([^/]+)", "remove_service"), ("GET", "/tasks", "list_tasks"),
        ("GET", "/tasks/([^/]+)/logs", "task_logs"), ("GET", "/(secrets|configs)", "list_things"),
        ("POST", "/(secrets|configs)/create", "create_thing"), ("DELETE", "/secrets/([^/]+)", "remove_secret"),
        ("DELETE", "/configs/([^/]+)", "remove_config"), ("POST", "/networks/create", "create_network"), *ROUTES]
    owner: FakeSwarm

    def route(self) -> None:
        path = re.sub(r"^/v1\.\d+", "", self.path.partition("?")[0])
        if self.owner.leaderless() and re.match(r"/(nodes|services|tasks|secrets|configs)\b", path):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return self.answer(503 if self.owner.does(SwarmFault.NO_SWARM) else 500, {"message": NO_LEADER})
        return super().route()

    def info(self) -> None:
        active, managing = not self.owner.does(SwarmFault.NO_SWARM), not self.owner.does(SwarmFault.WORKER)
        self.answer(200, {"Driver": "fake", "CgroupVersion": "2", "DockerRootDir": "/nowhere", "MemTotal": 2**34,
                          "Runtimes": {"runc": {}}, "SystemTime": stamp(), "Swarm": {
                              "NodeID": NODE if active else "", "NodeAddr": "127.0.0.1",
                              "LocalNodeState": "active" if active else "inactive",
                              "ControlAvailable": active and managing, "Error": ""}})

    def nodes(self) -> None:
        self.answer(200, [{"ID": NODE, "Spec": {"Availability": "active", "Labels": {}}, "Status": {
            "State": "ready", "Addr": "127.0.0.1"}, "Description": {"Hostname": "fake"}}])

    def wanted_ones(self, things: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
        filters = json.loads(self.query.get("filters", "{}"))
        labels = filters.get("label", [])
        for one in things.values():
            said = one["Spec"].get("Labels") or {}
            if all(said.get(pair.partition("=")[0]) == pair.partition("=")[2] for pair in labels) and all(
                    name in one["Spec"]["Name"] for name in filters.get("name", [])):
                yield one

    def list_services(self) -> None:
        self.answer(200, list(self.wanted_ones(self.owner.services)))

    def create_service(self) -> None:
        service_id = secrets.token_hex(12)
        service = {"ID": service_id, "Version": {"Index": self.owner.version}, "Spec": self.body}
        self.owner.services[service_id] = service
        self.owner.reconcile(service)
        if self.owner.does(SwarmFault.CRASH_LOOP) or self.owner.does(SwarmFault.NO_SUCH_IMAGE):
            for _ in range(2):  # it tries again
                self.owner.make_task(service, 1)
        if self.owner.does(SwarmFault.STALLS_AT_CREATE):
            self.owner.gone.wait()
            return
        self.answer(201, {"ID": service_id})

    def inspect_service(self) -> None:
        service = self.owner.services.get(self.subject)
        self.answer(200, service) if service else self.answer(404, {"message": f"service {self.subject} not found"})

    def update_service(self) -> None:
        service = self.owner.services[self.subject]
        if self.owner.does(SwarmFault.CHANGED_MEANWHILE):
            service["Version"]["Index"] += 1
        if int(self.query["version"]) != service["Version"]["Index"]:
            return self.answer(500, {"message": "rpc error: code = Unknown desc = update out of sequence"})
        self.owner.version += 1
        service["Version"] = {"Index": self.owner.version}
        self.owner.update(service, self.body)
        return self.answer(200, {"Warnings": None})

    def remove_service(self) -> None:
        if self.owner.services.pop(self.subject, None) is None:
            return self.answer(404, {"message": f"service {self.subject} not found"})
        for task in [one for one in self.owner.tasks if one.service == self.subject]:
            if task.container is not None and self.owner.containers.pop(task.container.id, None):
                self.owner.end(task.container, 0)
            self.owner.tasks.remove(task)
        return self.answer(200)

    def list_tasks(self) -> None:
        services = json.loads(self.query.get("filters", "{}")).get("service", [])
        if services and services[0] not in self.owner.services:
            return self.answer(404, {"message": f"service {services[0]} not found"})
        return self.answer(200, [self.owner.document(task) for task in self.owner.tasks
                                 if not services or task.service in services])

    def task_logs(self) -> None:
        task = next((one for one in self.owner.tasks if one.id == self.subject), None)
        entries = task.container.entries if task is not None and task.container is not None else []
        self.answer(200, raw=b"".join(frame(text) for _, text in entries[-int(self.query.get("tail", "100")):]))

    def list_things(self) -> None:
        self.answer(200, list(self.wanted_ones(self.owner.things[self.subject])))

    def create_thing(self) -> None:
        things = self.owner.things[self.subject]
        if any(one["Spec"]["Name"] == self.body["Name"] for one in things.values()):
            return self.answer(409, {"message": f"rpc error: code = AlreadyExists desc = {self.subject[:-1]} "
                                                f"{self.body['Name']} already exists"})
        thing_id = secrets.token_hex(12)
        things[thing_id] = {"ID": thing_id, "Spec": {"Name": self.body["Name"], "Labels": self.body.get("Labels")}}
        return self.answer(201, {"ID": thing_id})

    def remove_secret(self) -> None:
        if self.owner.does(SwarmFault.SECRET_IN_USE) and self.owner.refused < 3:
            self.owner.refused += 1
            return self.answer(400, {"message": f"rpc error: code = InvalidArgument desc = secret '{self.subject}' is "
                                                "in use by the following service: x"})
        return self.remove_thing("secrets")

    def remove_config(self) -> None:
        self.remove_thing("configs")

    def remove_thing(self, kind: str) -> None:
        found = self.owner.things[kind].pop(self.subject, None)
        self.answer(204) if found else self.answer(404, {"message": f"{kind[:-1]} {self.subject} not found"})

    def create_network(self) -> None:
        self.owner.networks[self.body["Name"]] = self.body.get("Labels") or {}
        self.answer(201, {"Id": self.body["Name"]})

    def networks(self) -> None:
        filters = json.loads(self.query.get("filters", "{}"))
        labels, names = filters.get("label", []), filters.get("name", [])
        self.answer(200, [{"Id": name, "Name": name, "Labels": said, "Driver": "overlay", "Scope": "swarm"}
                          for name, said in self.owner.networks.items()
                          if all(said.get(pair.partition("=")[0]) == pair.partition("=")[2] for pair in labels)
                          and all(one in name for one in names)])
