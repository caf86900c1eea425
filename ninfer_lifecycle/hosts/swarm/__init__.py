"""Engines as services of a Docker Swarm: the cluster as a protocol, its documents, its verdicts, and the host."""
