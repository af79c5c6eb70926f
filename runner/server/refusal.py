"""What a client is told when something is wrong: OpenAI's error object, with the status that belongs to it.

It knows which status each of runner's errors has, and nothing of what was asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runner.errors import BusyError, ContextOverflow, EngineDied, RunnerError, TemplateError, UsageError

_TOO_LONG: Final = (
    "Send less of it, or start the server with a larger context (-c). With --overflow drop it leaves out the oldest "
    "turns of a conversation."
)
_LONGEST: Final = 1000  # characters: parts of a request are quoted
_TYPES: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
}


class Refusal(Exception):
    """A request that is not answered. param: the field that is wrong. headers: of the response, besides."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _cut(message)
        self.code = code
        self.param = None if param is None else _cut(param)
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The object that is sent."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def refusal_of(error: RunnerError, param: str | None = None) -> Refusal:
    """The engine's error as a client gets it, remedy included."""
    status, code, hint = 500, "engine_error", error.hint
    if isinstance(error, ContextOverflow):
        status, code, hint = 400, "context_length_exceeded", _TOO_LONG  # the engine's speaks of a chat's commands
    elif isinstance(error, (UsageError, TemplateError)):
        status, code = 400, "invalid_value"
    elif isinstance(error, BusyError):
        status, code = 503, "busy"
    elif isinstance(error, EngineDied):
        code = "engine_died"
    return Refusal(status, f"{error.message} {hint}".strip(), code=code, param=param)
