"""Real servers in trouble: clients that leave, lines that are full, engines that die, signals."""

from __future__ import annotations

import fcntl
import io
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from served import Served, joined
from waiting import PATIENCE_S, wait_for

LONG = "a long story that goes on and on, "
SECOND = ("x", "y", "z")  # the second turn of a conversation, which the script answers shortly
THIRD = (*SECOND, "p", "q")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Answers a first question for three minutes and a second one at once, and dies of a third."""
    path = tmp_path_factory.mktemp("model") / "slow.script.json"
    replies = [{"text": LONG * 100, "token_s": 0.05}, "done", {"text": LONG, "fail": "kill", "fail_after": 9}]
    path.write_text(json.dumps({"replies": replies}))
    return str(path)


@pytest.fixture(scope="module")
def server(script: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("home"), script, "--port", "0", "--queue", "1")
    yield made
    made.close()


@pytest.fixture
def start(script: str, tmp_path: Path) -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def serve(*arguments: str, model: str = script, token: str = "") -> Served:
        home = tmp_path / f"home{len(started)}"
        home.mkdir()
        started.append(Served(home, model, "--port", "0", *arguments, token=token))
        return started[-1]

    yield serve
    for made in started:
        made.close()


def answered(connection: HTTPConnection) -> str:
    """The text of the answer to a request that was begun."""
    with closing(connection):
        answer = json.load(connection.getresponse())
        return str(answer["choices"][0]["message"]["content"])


def test_stdout_is_the_address_alone(server: Served) -> None:
    assert server.first_line == f"{server.url}\n"
    assert server.url.startswith("http://127.0.0.1:")


def test_a_client_that_leaves_makes_room_at_once(server: Served) -> None:
    with server.stream("x") as stream:
        next(stream)
    began = time.monotonic()
    assert server.text(*SECOND) == "done"
    assert time.monotonic() - began < 30  # the answer would take three minutes
    wait_for(lambda: "the client went away" in server.narration())


def test_a_client_that_leaves_before_its_whole_answer_makes_room_too(server: Served) -> None:
    server.begin("x").close()
    began = time.monotonic()
    assert server.text(*SECOND) == "done"
    assert time.monotonic() - began < 30  # the answer would take three minutes


def test_answers_come_in_order_and_a_full_line_says_when_to_come_again(server: Served) -> None:
    with server.stream("x") as stream:
        next(stream)
        second = server.begin(*SECOND)
        full = server.ask(*SECOND)
        assert full.status_code == 429
        assert full.json()["error"]["code"] == "queue_full"
        assert int(full.headers["retry-after"]) >= 1
        next(stream)
        assert not select.select([second.sock], [], [], 0)[0], "it is not its turn"
    assert answered(second) == "done"


def test_a_client_that_leaves_while_it_waits_is_not_answered(server: Served) -> None:
    n_gone = server.narration().count("the client went away")
    with server.stream("x") as stream:
        next(stream)
        server.begin("x", stream=True).close()
        wait_for(lambda: server.narration().count("the client went away") > n_gone)
        waiting = server.begin(*SECOND)  # the line has room again
    assert answered(waiting) == "done"


def test_a_killed_engine_is_said_and_comes_back(server: Served) -> None:
    with server.stream("x") as stream:
        next(stream)
        server.engine().kill()
        *_, last = stream
    assert last["error"]["code"] == "engine_died"
    assert "SIGKILL" in last["error"]["message"]
    assert server.text(*SECOND) == "done"
    assert server.ask(*THIRD).status_code == 500
    server.engine()
    wait_for(lambda: server.client.get("/health").status_code == 200)
    server.engine().kill()  # while nobody asks
    assert server.text(*SECOND) == "done"


def test_a_request_that_a_dying_engine_never_read_is_answered_by_the_next_one(server: Served) -> None:
    wait_for(lambda: server.client.get("/health").status_code == 200)
    engine = server.engine()
    engine.suspend()
    asking = server.begin(*SECOND)
    engine.kill()
    assert answered(asking) == "done"


def test_a_client_that_leaves_while_its_prompt_is_read_makes_room_at_once(
    start: Callable[..., Served], tmp_path: Path
) -> None:
    path = tmp_path / "reader.script.json"
    path.write_text(json.dumps({"replies": ["done"], "prefill_token_s": 1.0}))  # a minute a chunk
    server = start(model=str(path))
    server.begin("word " * 100).close()
    began = time.monotonic()
    assert server.client.post("/v1/completions", json={"prompt": "x"}).status_code == 200
    assert time.monotonic() - began < 12


def test_narration_that_nobody_reads_on_stops_no_answer_and_is_told_later(tmp_path: Path) -> None:
    narration = tmp_path / "narration"
    os.mkfifo(narration)
    with open(os.open(narration, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        server = Served(tmp_path, "demo", "--port", "0", errors=narration)
        paths = [f"/{n}" for n in range(120)]  # more than 100 bytes a line
        assert {server.client.get(path).status_code for path in paths} == {404}
        os.set_blocking(reader.fileno(), True)
        lines = io.TextIOWrapper(reader)
        server.process.send_signal(signal.SIGTERM)
        told = [line.split()[1] for line in lines if line.startswith("GET /")]
        assert server.process.wait(PATIENCE_S) == 0
    assert told == paths
    server.close()


def test_sigterm_ends_everything(start: Callable[..., Served]) -> None:
    server = start()
    engine = server.engine()
    with server.stream("x") as stream:
        next(stream)
        waiting = server.begin(*SECOND)
        server.process.send_signal(signal.SIGTERM)
        *_, last = stream
    with closing(waiting):
        assert waiting.getresponse().status == 503
    assert last["error"]["code"] == "stopped"
    assert server.process.wait(PATIENCE_S) == 0
    assert not psutil.pid_exists(engine.pid)


def test_ctrl_c_ends_with_130_and_a_signal_that_is_ignored_ends_nothing(start: Callable[..., Served]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        server = start("--quiet")
    finally:
        signal.signal(signal.SIGHUP, before)
    server.process.send_signal(signal.SIGHUP)
    assert server.client.get("/health").status_code == 200
    assert server.end(signal.SIGINT) == 130


@pytest.mark.parametrize("arguments", [(), ("--quiet",)])
def test_a_server_whose_narration_nobody_reads_any_more_goes_on(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "a.script.json"
    path.write_text('{"replies": ["done"]}')
    reader, writer = os.pipe()
    server = Served(tmp_path, str(path), "--port", "0", *arguments, errors=Path(f"/dev/fd/{writer}"))
    os.close(reader)
    os.close(writer)
    try:
        path.rename(away := tmp_path / "away")
        server.engine().kill()
        assert server.ask("x").status_code == 500
        assert server.client.get("/health").json() == {"status": "failed"}
        away.rename(path)
        assert server.text("x") == "done"
        assert server.end() == 0
    finally:
        server.close()


def test_the_address_is_told_though_the_narration_s_disk_is_full(tmp_path: Path, script: str) -> None:
    server = Served(tmp_path, script, "--port", "0", errors=Path("/dev/full"))
    try:
        assert server.text(*SECOND) == "done"
    finally:
        server.close()


def test_a_token_is_asked_for_and_only_the_right_one_is_taken(start: Callable[..., Served]) -> None:
    arguments = ("--host", "0.0.0.0", "--allow-remote", "--token", "secret", "--allow-origin", "https://App.example/")
    server = start(*arguments, token="secret")
    server.client.base_url = f"http://127.0.0.1:{server.port}"
    assert server.text(*SECOND) == "done"
    for header in ("", "Bearer wrong", "Basic secret"):
        response = server.client.get("/v1/models", headers={"Authorization": header})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert server.client.get("/health", headers={"Authorization": ""}).status_code == 200
    preflight = server.client.options(
        "/v1/chat/completions",
        headers={
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
            "Access-Control-Request-Private-Network": "true",
            "Authorization": "",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    assert preflight.headers["access-control-allow-private-network"] == "true"
    assert "secret" not in server.narration()


def test_a_thought_is_apart_from_its_answer(start: Callable[..., Served], tmp_path: Path) -> None:
    template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking is not false %}<think>\n{% endif %}{# the model answers <think>...</think> #}"
    )
    path = tmp_path / "thinker.script.json"
    path.write_text(json.dumps({"replies": ["hm\n</think>\n\nTwo."], "chat_template": template}))
    server = start(model=str(path))
    message = server.ask("1+1").json()["choices"][0]["message"]
    assert (message["reasoning_content"].strip(), message["content"]) == ("hm", "Two.")
    with server.stream("1+1") as stream:
        deltas = [choice["delta"] for chunk in stream for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas).strip() == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "Two."
    for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        assert "hm" in server.text("1+1", **fields)


def test_default_sampling_comes_from_flags_and_a_request_s_own_wins(start: Callable[..., Served]) -> None:
    server = start("--max-tokens", "3", "--seed", "9")
    whole = server.ask(*SECOND).json()
    assert (whole["choices"][0]["message"]["content"], whole["timings"]["seed"]) == ("don", 9)
    assert server.text(*SECOND, max_tokens=2, seed=1) == "do"
    with server.stream(*SECOND, max_tokens=4) as stream:
        assert joined(stream) == "done"
