"""Engines as replicas of a swarm: deployed, probed task by task, behind a front that asks who holds a session."""
