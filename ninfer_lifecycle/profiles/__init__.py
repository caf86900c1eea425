"""Profiles: what an engine should be, read from YAML, resolved, validated, locked, and hashed to one identity."""
