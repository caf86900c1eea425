"""Probes: small steps composed into plans. They ask an engine, and write down what it answered; they judge nothing."""
