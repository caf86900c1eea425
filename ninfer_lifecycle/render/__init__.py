"""A profile as files of other orchestrators: Compose, Swarm, systemd. Pure: the same input gives the same bytes."""
