"""The HTTP surface of the engine: OpenAI and Anthropic shapes over `runtime.api.EngineApi`. No tensors, no policy.

Starlette's requests, replies and routes, without its layers and FastAPI: every error body, its order of checks and
its `param` path are part of the wire contract, so requests are read and validated here and routes stay thin.
"""
