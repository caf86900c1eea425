"""A qualification from profile to receipt: the order of effects, each injected, around pure probes, gates, receipts."""
