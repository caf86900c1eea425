"""Where an engine runs: the protocol `Host` and its implementations. docker-py is imported by `docker.py` alone."""
