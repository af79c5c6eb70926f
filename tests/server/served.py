"""A real `runner serve` in a process of its own, for tests, and what they ask of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import psutil
from waiting import PATIENCE_S, wait_for

MAIN = [sys.executable, "-c", "import sys; from runner.cli.app import main; sys.exit(main())"]


class Served:
    """A server that runs. client: for its address; it sends a token if there is one."""

    def __init__(self, home: Path, *arguments: str, token: str = "", errors: Path | None = None) -> None:
        self._errors = errors or home / "stderr"
        environment = {**os.environ, "RUNNER_HOME": str(home), "RUNNER_N_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*MAIN, "serve", *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()
        assert self.first_line, self.narration()
        self.url = re.search(r"http://[^\s\"]+", self.first_line)[0]  # type: ignore[index]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = self._new_client(headers)

    def _new_client(self, headers: Mapping[str, str]) -> httpx2.Client:
        return httpx2.Client(base_url=self.url, timeout=PATIENCE_S, headers=headers, trust_env=False)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def narration(self) -> str:
        return self._errors.read_text()

    def narration_with(self, text: str) -> str:
        """What was narrated, once that is among it."""
        wait_for(lambda: text in self.narration(), f"nothing said {text!r}")
        return self.narration()

    def engine(self) -> psutil.Process:
        """The engine's process, once it is there."""
        server = psutil.Process(self.process.pid)
        wait_for(server.children, "the server has no engine")
        return server.children()[0]

    def ask(self, *texts: str, **fields: Any) -> httpx2.Response:
        """Ask for an answer to the last of `texts`; every second one before was the model's."""
        return self.client.post("/v1/chat/completions", json=body(*texts, **fields))

    def begin(self, *texts: str, **fields: Any) -> HTTPConnection:
        """Ask the same, and wait for no answer: when this returns, the request is being answered, or in the line."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body(*texts, **fields)), headers)
        for _ in range(20):  # what the server is asked later, it answers after it has taken up what it was asked before
            self.client.get("/health")
        return connection

    def text(self, *texts: str, **fields: Any) -> str:
        response = self.ask(*texts, **fields)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    @contextmanager
    def stream(self, *texts: str, **fields: Any) -> Iterator[Iterator[dict[str, Any]]]:
        """The chunks of a streamed answer; leaving the context closes the connection."""
        asked = body(*texts, stream=True, **fields)
        with (
            self._new_client(self.client.headers) as client,
            client.stream("POST", "/v1/chat/completions", json=asked) as response,
        ):
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield chunks(response)

    def end(self, number: int = 15) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()


def body(*texts: str, **fields: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, **fields}


def chunks(response: httpx2.Response) -> Iterator[dict[str, Any]]:
    """The objects of a stream of events, which ends with [DONE] unless it ends with an error."""
    last = ""
    for line in response.iter_lines():
        if line.startswith("data: "):
            last = line.removeprefix("data: ")
            if last != "[DONE]":
                yield json.loads(last)
    assert last == "[DONE]" or "error" in json.loads(last)


def joined(stream: Iterator[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content", "") for chunk in stream for choice in chunk["choices"])
