from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.backends import fake
from runner.backends.base import Backend
from runner.config import LoadOptions
from runner.errors import BadModelFile, RunnerError
from runner.types import CancelToken, ReadyModel
from tests.backends.conformance import N_CTX, BackendConformance, take


def load_script(path: Path, script: object) -> Backend:
    path.write_text(json.dumps(script))
    model = ReadyModel(name="script", format="script", weights=(path,), directory=path.parent, size_bytes=0)
    return fake.load(model, LoadOptions(ctx_size=N_CTX), lambda _: None, CancelToken())


class TestFakeBackend(BackendConformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        return load_script(tmp_path / "s.json", {"replies": ["the scripted answer " * 40]})


def test_replies_follow_the_turns(tmp_path: Path) -> None:
    backend = load_script(tmp_path / "s.json", {"replies": ["one", {"text": "two"}]})
    encode = backend.tokenizer.encode
    first = encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert bytes(take(backend, first, 3)) == b"one"
    second = [*first, *encode("one<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n")]
    assert bytes(take(backend, second, 3)) == b"two"


def test_a_scripted_error_is_raised_after_its_tokens(tmp_path: Path) -> None:
    backend = load_script(tmp_path / "s.json", {"replies": [{"text": "abcdef", "fail": "error", "fail_after": 3}]})
    assert bytes(take(backend, [65], 3)) == b"abc"
    with pytest.raises(RunnerError, match="asked for an error"):
        take(backend, [65], 4)


@pytest.mark.parametrize("script", [[], {"replies": [{"txt": "x"}]}, {"reply": []}, {"replies": 3}])
def test_a_script_that_is_none_is_refused(tmp_path: Path, script: object) -> None:
    with pytest.raises(BadModelFile):
        load_script(tmp_path / "s.json", script)


def test_fake_refuses_real_models_unless_asked_for(tmp_path: Path) -> None:
    model = ReadyModel(name="m", format="gguf", weights=(tmp_path / "m.gguf",), directory=tmp_path, size_bytes=0)
    assert fake.refusal(model, LoadOptions())
    assert fake.refusal(model, LoadOptions(backend="fake")) is None
