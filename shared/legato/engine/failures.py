"""How a step's work failed: recorded in place of a result, so that the same is raised when its agent is entered again.
Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from legato.errors import JournalRejected, LeaseLost, ModelFailed, Refused, StepFailed, ToolFailed
from legato.text import brief

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
        match error:
            case ModelFailed():
                told = brief(str(error.code)), _said(error)
                return cls("model", *told, error.retryable, error.retry_after)
            case Refused() | ToolFailed():
                return cls("tool" if isinstance(error, ToolFailed) else "refused", brief(str(error.code)), _said(error))
            case StepFailed():
                return cls("other", error.kind, error.message)
        return cls("other", type(error).__name__, _said(error))

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


def _said(error: Exception) -> str:
    try:
        return brief(str(error))
    except BaseException:  # an error that cannot say what it is must not end the process
        return ""
