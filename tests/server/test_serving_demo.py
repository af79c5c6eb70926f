"""The demo model through a real `runner serve`: what it answers, and that it is what `runner run` answers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from served import MAIN, Served, body, chunks, joined

QUESTION = "What is the capital of Peru?"
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("home"), "demo", "--port", "0", "--json")
    yield made
    made.close()


def run(*arguments: str) -> str:
    command = [*MAIN, "run", "demo", *arguments, "--temp", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=True)
    return str(json.loads(done.stdout)["text"])


def test_the_address_is_data(server: Served) -> None:
    told = json.loads(server.first_line)
    assert told["schema"] == "runner.serve/1"
    assert (told["model"], told["api"], told["pid"]) == ("demo", server.url + "/v1", server.process.pid)
    assert "Ctrl+C" in server.narration_with("Ctrl+C")


def test_answers_are_those_of_run(server: Served) -> None:
    expected = run(QUESTION)
    assert "Lima" in expected
    assert server.text(QUESTION, **GREEDY) == expected
    with server.stream(QUESTION, **GREEDY) as stream:
        assert joined(stream) == expected


def test_completions_continue_a_text_as_run_raw_does(server: Served) -> None:
    asked = {"prompt": "Once upon a time", "max_tokens": 12, **GREEDY}
    whole = server.client.post("/v1/completions", json=asked).json()
    assert whole["choices"][0]["text"] == run("Once upon a time", "--raw", "-n", "12")
    assert whole["id"].startswith("cmpl-")
    assert (whole["choices"][0]["finish_reason"], whole["usage"]["completion_tokens"]) == ("length", 12)
    with server.client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as response:
        texts = [chunk["choices"][0]["text"] for chunk in chunks(response)]
    assert "".join(texts) == whole["choices"][0]["text"]


def test_the_numbers_of_an_answer(server: Served) -> None:
    whole = server.ask(QUESTION, **GREEDY).json()
    usage = whole["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert whole["timings"]["decode_tok_s"] > 0
    assert whole["timings"]["speculation"]["drafter"] == "suffix"
    with server.stream(QUESTION, **GREEDY, stream_options={"include_usage": True}) as stream:
        first, *_, last = stream
    assert first["id"] == last["id"] != whole["id"]
    assert whole["id"].startswith("chatcmpl-")
    assert first["id"].startswith("chatcmpl-")
    assert last["usage"]["completion_tokens"] == usage["completion_tokens"]
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1


def test_a_schema_is_kept_to(server: Served) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Lima", "Quito"]}, "n": {"type": "integer", "maximum": 9}},
        "required": ["city", "n"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    told = json.loads(server.text(QUESTION, **GREEDY, response_format=wanted, max_tokens=60))
    assert told["city"] in ("Lima", "Quito")
    assert told["n"] <= 9
    assert server.text(QUESTION, **GREEDY, grammar='root ::= "yes" | "no"') in ("yes", "no")


def test_stop_and_seed(server: Served) -> None:
    whole = server.ask(QUESTION, **GREEDY, stop=[" of"]).json()
    assert whole["choices"][0]["message"]["content"] == "The capital"
    assert whole["choices"][0]["finish_reason"] == "stop"
    story = ["Tell me a story", {"temperature": 1.5, "max_tokens": 16}]

    def told(seed: int | None) -> str:
        return server.text(story[0], **story[1], seed=seed)  # type: ignore[arg-type]

    assert told(5) == told(5)
    assert len({told(None) for _ in range(4)}) > 1


def test_the_model_is_listed_and_another_is_not_there(server: Served) -> None:
    listed = server.client.get("/v1/models").json()
    assert [model["id"] for model in listed["data"]] == ["demo"]
    assert listed["data"][0]["meta"]["n_ctx"] == 2048
    assert server.client.get("/v1/models/demo").json() == listed["data"][0]
    assert server.client.get("/health").json() == {"status": "ok"}
    for response in (server.client.get("/v1/models/gpt-4"), server.ask("x", model="gpt-4")):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert '"demo"' in response.json()["error"]["message"]
    for path in ("/health/", "/v1/chat/completions/"):
        response = server.client.post(path, json={}) if "chat" in path else server.client.get(path)
        assert (response.status_code, response.json()["error"]["code"]) == (404, "unknown_url")
        assert response.json()["error"]["message"].startswith("Nothing is there. There are: GET /health, ")
    assert server.ask("x", model="demo", max_tokens=1).status_code == 200
    assert server.ask("x", model="", max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"json_schema": {"type": "nonsense"}}, 400, "invalid_value", "json_schema"),
        ({"grammar": "root ::= nothing"}, 400, "invalid_value", "grammar"),
        ({"grammar": "root ::= root"}, 400, "invalid_value", "grammar"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, 400, "context_length_exceeded", None),
        ({"temperature": -1}, 400, "invalid_value", "temperature"),
        ({"tools": [{}]}, 400, "unsupported_parameter", "tools"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_answered_has_its_status_streamed_or_not(
    server: Served, fields: dict[str, Any], status: int, code: str, param: str | None, stream: bool
) -> None:
    response = server.ask("x", **{"stream": stream, **fields})
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert response.json()["error"]["param"] == param
    message = response.json()["error"]["message"]
    assert message
    assert "/clear" not in message  # which is for a chat
    assert "or with --overflow" not in message  # which makes no room for a single message


def test_bodies_that_are_none(server: Served) -> None:
    def post(content: bytes, kind: str = "application/json", **headers: str) -> tuple[int, str]:
        sent = {"Content-Type": kind, **headers}
        response = server.client.post("/v1/chat/completions", content=content, headers=sent)
        return response.status_code, response.json()["error"]["code"]

    good = json.dumps(body("x")).encode()
    assert post(b"{") == (400, "invalid_json")
    assert post(b"[]") == (400, "invalid_json")
    assert post(good, "text/plain") == (415, "wrong_content_type")
    assert post(good, "application/x-www-form-urlencoded") == (415, "wrong_content_type")
    assert post(good, **{"Content-Encoding": "gzip"}) == (415, "wrong_content_encoding")
    assert server.client.get("/v1/nothing").status_code == 404
    other_method = server.client.get("/v1/completions")
    assert (other_method.status_code, other_method.headers["allow"]) == (405, "POST")
    assert other_method.json()["error"]["message"].startswith("That path takes another method.")


def test_a_body_that_is_too_large_is_refused_before_it_is_read(server: Served) -> None:
    def without_length() -> Iterator[bytes]:
        for _ in range(17):
            yield b" " * 2**20

    for content in (b" " * (17 * 2**20), without_length()):
        headers = {"Content-Type": "application/json", "Connection": "close"}
        response = server.client.post("/v1/completions", content=content, headers=headers)
        assert response.status_code == 413
    assert server.client.get("/health").status_code == 200


def test_a_page_from_elsewhere_cannot_ask(server: Served) -> None:
    for headers, code in (
        ({"Host": f"evil.example:{server.port}"}, "wrong_host"),
        ({"Origin": "https://evil.example"}, "foreign_origin"),
        ({"Origin": "https://evil.example", "Content-Type": "text/plain"}, "foreign_origin"),
    ):
        response = server.client.post("/v1/chat/completions", content=json.dumps(body("x")), headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (403, code)
    local = server.client.get("/v1/models", headers={"Origin": "http://localhost:3000"})
    assert local.status_code == 200
    assert not any(name.startswith("access-control") for name in local.headers)


def test_requests_are_narrated_without_what_was_said_and_without_control_characters(server: Served) -> None:
    server.text("a secret question", max_tokens=8)
    server.client.get("/v1/%1b%5B31m%0aforged")
    lines = server.narration_with("forged")  # it comes after the answer
    assert "POST /v1/chat/completions 200 · " in lines
    assert re.search(r"GET .*forged 404 · .* · Nothing is there\. There are: ", lines)
    assert "tok/s" in lines
    assert "secret" not in lines
    assert "\x1b" not in lines
    assert "\nforged" not in lines
