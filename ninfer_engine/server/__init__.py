"""The HTTP surface of the engine: OpenAI and Anthropic shapes over `runtime.api.EngineApi`. No tensors, no policy.

Plain Starlette rather than FastAPI: every error body, its order of checks and its `param` path are part of the wire
contract, so requests are read and validated here (`body`, `schemas`) and routes stay thin.
"""
