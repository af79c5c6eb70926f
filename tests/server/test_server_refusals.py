"""What a client is told when something is wrong: OpenAI's error object, with the status that belongs to it."""

from __future__ import annotations

import pytest

from runner.errors import BusyError, ContextOverflow, EngineDied, RunnerError, TemplateError, UsageError
from runner.server.refusal import Refusal, refusal_of


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (UsageError, 400, "invalid_value"),
        (TemplateError, 400, "invalid_value"),
        (BusyError, 503, "busy"),
        (EngineDied, 500, "engine_died"),
        (RunnerError, 500, "engine_error"),
    ],
)
def test_each_error_of_the_engine_has_a_status_and_a_code_and_its_remedy(
    kind: type[RunnerError], status: int, code: str
) -> None:
    refusal = refusal_of(kind("It went wrong.", hint="Do this."), "stop")
    assert (refusal.status, refusal.code, refusal.param) == (status, code, "stop")
    assert refusal.message == "It went wrong. Do this."


def test_a_conversation_that_does_not_fit_is_told_with_a_server_s_remedy() -> None:
    refusal = refusal_of(ContextOverflow("It has 9 tokens.", hint="/clear forgets it."))
    assert (refusal.status, refusal.code) == (400, "context_length_exceeded")
    assert refusal.message.startswith("It has 9 tokens. Send less of it")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_what_is_sent_has_the_type_of_its_status(status: int, kind: str) -> None:
    refusal = Refusal(status, "no", code="c", param="p")
    assert refusal.body == {"error": {"message": "no", "type": kind, "param": "p", "code": "c"}}
    assert str(refusal) == "no"


def test_what_quotes_a_long_request_is_cut() -> None:
    assert Refusal(400, "x" * 1000).message == "x" * 1000
    assert Refusal(400, "x" * 1001, param="y" * 1001).message == "x" * 1000 + "…"
    assert Refusal(400, "", param="y" * 1001).param == "y" * 1000 + "…"
