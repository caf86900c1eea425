"""What can be wrong with a model directory."""


class ModelError(Exception):
    """A model directory cannot be used: what is wrong, and what to do about it."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n  {self.advice}" if self.advice else self.message


class ChatTemplateError(ModelError):
    """The chat template refused the messages (a client's mistake) or cannot be used (the model's)."""
