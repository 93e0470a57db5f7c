"""How a step's work failed: recorded in place of a result, so that the same is raised when its agent is entered again.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from legato.errors import JournalRejected, LeaseLost, ModelFailed, Refused, StepFailed, ToolFailed
from legato.text import brief, words_of

UNRECORDED: Final = (LeaseLost, JournalRejected)
"""No failures of the work: the turn cannot go on here."""


@dataclass(frozen=True, slots=True)
class Failure:
    """`code` is that of an error of Legato, or the name of any other's class."""

    kind: Literal["model", "tool", "refused", "other"]
    code: str
    message: str
    retryable: bool = False
    retry_after: float | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        said = words_of(error)
        match error:
            case ModelFailed():
                return cls("model", brief(str(error.code)), said, error.retryable, error.retry_after)
            case ToolFailed():
                return cls("tool", brief(str(error.code)), said)
            case Refused():
                return cls("refused", brief(str(error.code)), said)
            case StepFailed():
                return cls("other", error.kind, error.message)
        return cls("other", type(error).__name__, said)

    def error(self) -> Exception:
        """What the agent is given, the first time and every time."""
        match self.kind:
            case "model":
                return ModelFailed(self.code, self.message, retryable=self.retryable, retry_after=self.retry_after)
            case "tool":
                return ToolFailed(self.code, self.message)
            case "refused":
                return Refused(self.code, self.message)
            case "other":
                return StepFailed(self.code, self.message)
