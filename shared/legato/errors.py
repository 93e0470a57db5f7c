"""The errors of Legato, named for what the caller does next. `http.problems` alone maps them to HTTP."""

from __future__ import annotations


class LegatoError(Exception):
    """Base of all errors that Legato raises on purpose; `code` is stable and part of the wire contract."""

    code = "internal"


class LeaseLost(LegatoError):
    """Another owner holds the session: stop at once, write nothing more."""

    code = "lease_lost"


class Conflict(LegatoError):
    """A precondition of a Commit no longer holds: read again and decide again."""

    code = "conflict"


class JournalUnavailable(LegatoError):
    """The journal did not answer, and the write may or may not have happened: repeat it byte for byte."""

    code = "journal_unavailable"


class JournalRejected(LegatoError):
    """The journal refused this write for good (too large, malformed, not allowed, disk full): do not repeat it."""

    code = "journal_rejected"


class SequenceGap(LegatoError):
    """An event does not follow the state's `seq`: resume from the cursor instead of reducing it."""

    code = "sequence_gap"


class Refused(LegatoError):
    """The agent asked for something the turn does not allow; its message says what and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ToolFailed(LegatoError):
    """Raised by a tool to settle its call with an error of its own: `ToolFailed("no_funds", "...")`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class ModelFailed(LegatoError):
    """The model broke off or answered with an error; the turn fails with this code.

    Where `retryable`, its step is tried again first, after `retry_after` seconds if the model names them.
    """

    def __init__(self, code: str, message: str, *, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code, self.retryable, self.retry_after = code, retryable, retry_after


class StepFailed(LegatoError):
    """The work of a step raised something else than an error of Legato: `kind` is the name of its class.

    It is recorded, and raised again when the agent is entered again: catch this, and go on without the step.
    """

    code = "step_failed"

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind, self.message = kind, message


class SettingsError(LegatoError):
    """A setting is wrong; the message names it and what was expected."""

    code = "settings"


class FrameTooLarge(LegatoError):
    """An SSE line or event passed the decoder's size limit: the stream cannot be trusted, reconnect."""

    code = "frame_too_large"


# What a request can be answered with.


class Invalid(LegatoError):
    """A field of the request is wrong; `path` names it (`input`, `query.after`, `header.Accept`)."""

    code = "invalid"

    def __init__(self, path: str, message: str) -> None:
        super().__init__(message)
        self.path = path


class NotFound(LegatoError):
    """There is nothing of this name below the caller's principal, or never was."""

    code = "not_found"


class Unauthorized(LegatoError):
    """The request says not, or not credibly, who calls: ask again with a token that counts."""

    code = "unauthorized"


class VerifierFailed(LegatoError):
    """A verifier raised what it never should. The message says where; what was raised may hold a token."""


class KeysUnavailable(LegatoError):
    """Whether the caller's token counts cannot be told now, for want of the keys to verify it with: ask again."""

    code = "keys_unavailable"


class TurnGone(LegatoError):
    """The session no longer knows this turn: start a new one with `retry_of`."""

    code = "turn_gone"


class TurnConflict(LegatoError):
    """The turn's id was used before with another input or agent: choose a new id."""

    code = "turn_conflict"


class SessionBusy(LegatoError):
    """Another turn is active: wait for it, or cancel it. `turn` is its id."""

    code = "session_busy"

    def __init__(self, turn: str) -> None:
        super().__init__(f"turn {turn} is still active in this session; wait for its end or cancel it")
        self.turn = turn


class AlreadyDecided(LegatoError):
    """The question was decided before, another way, or is not open any more."""

    code = "already_decided"


class CredentialsNotKept(LegatoError):
    """The service has no key to keep a user's credential with (`LEGATO_CREDENTIAL_KEYS`): nothing was taken."""

    code = "credentials_not_kept"


class TooLarge(LegatoError):
    """The request's body is over its limit."""

    code = "too_large"


class InputTooLarge(LegatoError):
    """The turn's input is over its limit (`LEGATO_INPUT_BYTES`), though the body that carried it is not."""

    code = "input_too_large"


class TooManyTurns(LegatoError):
    """This caller runs as many turns here as it may (`LEGATO_TURNS_ACTIVE`): wait for the end of one, or cancel one."""

    code = "too_many_turns"


class TooManyStreams(LegatoError):
    """This caller has as many streams and long polls open here as it may (`LEGATO_STREAMS_OPEN`): close one."""

    code = "too_many_streams"


class TurnsTooFast(LegatoError):
    """This caller begins turns faster than it may (`LEGATO_TURNS_PER_MINUTE`): ask again in `retry_after` seconds."""

    code = "turns_too_fast"

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"you begin turns faster than you may; the next one may begin in {retry_after:.1f} s")
        self.retry_after = retry_after


class NoRoom(LegatoError):
    """This instance holds all the streams and long polls it can: nothing has begun, ask again."""

    code = "no_room"


class Draining(LegatoError):
    """This instance takes no new turns: ask again, another will answer."""

    code = "draining"
