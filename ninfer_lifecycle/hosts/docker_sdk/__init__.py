"""The Docker daemon through docker-py. No other part of the tool imports that library."""

from ninfer_lifecycle.hosts.docker_sdk.daemon import API_TIMEOUT_S, SdkDaemon

__all__ = ["API_TIMEOUT_S", "SdkDaemon"]
