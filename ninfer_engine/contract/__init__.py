"""What crosses the wall between the engine and everything else: pydantic models, no torch, no IO.

Flags, the status document, request diagnostics, checkpoint documents and the error body each exist once, here. The
engine's command line, the profile schema, the configuration identity and the documentation are derived from them.
"""
