"""The brain of the context cache over traces and intents, without an engine:
what `ninfer simulate` and `ninfer size` do."""
