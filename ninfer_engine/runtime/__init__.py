"""Runs requests: scheduler, sequences, sampler, sessions. Executes the plans of `context` on the bytes of `memory`."""
