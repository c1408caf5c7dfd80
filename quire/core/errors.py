"""Every error Quire raises on purpose, and failures of requests that had begun; no HTTP.

QuireError
├── ConfigError (ValueError)              bad setting; the message names the flag
├── ModelLoadError
│   ├── UnsupportedArchitectureError
│   └── WeightMismatchError
├── RequestError (ValueError)   -> 400
│   ├── PromptTooLongError
│   └── InvalidSamplingParamsError
├── CapacityError               -> 429 or 503
├── UnsupportedInputError (ValueError)
├── NoKernelError
└── EngineDeadError             -> 503
    └── RankDeadError                     one of the processes that compute a model together

Messages follow ``[where] rule; got value. What to do.``
"""

from dataclasses import dataclass
from enum import StrEnum

from quire.core.quoting import shortened


class FailureKind(StrEnum):
    """Kinds of failures that end a request that had begun.

    Attributes:
        ENGINE: A fault of the engine or the machine.
        KV_CANARY: A changed block of the KV cache.
        OUT_OF_MEMORY: An allocation that failed.
        GRAMMAR_LIMIT: A limit of the request's grammar after some tokens; its sender can help that.
        NO_TOKEN: Settings of the request that leave no token after some; likewise.
    """

    ENGINE = "engine"
    KV_CANARY = "kv_canary"
    OUT_OF_MEMORY = "out_of_memory"
    GRAMMAR_LIMIT = "grammar_limit"
    NO_TOKEN = "no_token"


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """The failure that ends a request alone, from where it happens to the answer.

    Attributes:
        kind: The kind, which decides the answer's status.
        message: The reason, for people.
        param: The request field at fault, or None.
    """

    kind: FailureKind
    message: str
    param: str | None = None


class QuireError(Exception):
    """Root of all errors that Quire raises on purpose; no message is longer than a page."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(shortened(one) if isinstance(one, str) else one for one in args))


class ConfigError(QuireError, ValueError):
    """A setting is wrong or does not fit the machine; the message names the flag."""


class ModelLoadError(QuireError):
    """A checkpoint, tokenizer or configuration cannot be read."""


class UnsupportedArchitectureError(ModelLoadError):
    """The checkpoint names an architecture that is not implemented."""


class WeightMismatchError(ModelLoadError):
    """A tensor of the checkpoint is missing, surplus or has the wrong shape."""


class RequestError(QuireError, ValueError):
    """A request is wrong; it concerns only the caller who sent it.

    Attributes:
        param: Name of the offending request field, or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class PromptTooLongError(RequestError):
    """Prompt plus requested tokens exceed the context length; carries the counts in its text.

    Attributes:
        min_prompt_tokens: Number of tokens that the prompt has at least; None where only the text
            says it.
    """

    def __init__(
        self, message: str, param: str | None = None, min_prompt_tokens: int | None = None
    ) -> None:
        super().__init__(message, param)
        self.min_prompt_tokens = min_prompt_tokens


class InvalidSamplingParamsError(RequestError):
    """A sampling parameter is out of range."""


class CapacityError(QuireError):
    """The engine cannot take the request now.

    Attributes:
        retry_after_seconds: Seconds after which it is worth trying again, or None when unknown.
    """

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class UnsupportedInputError(QuireError, ValueError):
    """An op was given shapes or dtypes that it does not take."""


class NoKernelError(QuireError):
    """No implementation serves a spec; the message lists each one's reasons."""


class EngineDeadError(QuireError):
    """The engine has stopped and answers nothing more."""


class RankDeadError(EngineDeadError):
    """A process that computes a part of the model has died or does not answer; it is named."""
