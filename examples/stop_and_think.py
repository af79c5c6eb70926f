"""A scripted model, for tests of a front end: its thought, its answer, and a stop string."""

import json
import tempfile
from pathlib import Path

from runner.config import LoadOptions, SamplingParams
from runner.engine import Engine
from runner.events import ReasoningDelta, TextDelta
from runner.paths import user_paths
from runner.types import Message

TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}{# it answers <think>…</think> #}"
SCRIPT = {"replies": ["<think>2 and 2</think>Four. END of story"], "chat_template": TEMPLATE}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "sum.script.json"
        path.write_text(json.dumps(SCRIPT))
        engine = Engine(user_paths())
        list(engine.load(str(path), LoadOptions()))
        events = list(engine.chat([Message(role="user", content="2 + 2?")], SamplingParams(stop=("END",))))
    print("thought:", "".join(event.text for event in events if isinstance(event, ReasoningDelta)))
    print("answer:", "".join(event.text for event in events if isinstance(event, TextDelta)))


if __name__ == "__main__":
    main()
