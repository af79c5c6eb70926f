"""Make the demo model smaller with llama.cpp's quantizer, and ask the result a question."""

import tempfile
from pathlib import Path

from runner.config import LoadOptions, SamplingParams
from runner.engine import Engine
from runner.events import TextDelta
from runner.paths import builtin, user_paths
from runner.quant.formats import format_of
from runner.quant.quantize import quantize_model
from runner.types import Message

QUESTION = Message(role="user", content="What is the capital of Peru?")


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        source = builtin("models/demo") / "demo-q8_0.gguf"
        output = Path(directory) / "small"
        made = quantize_model(source, format_of("q6_k"), output, force=False, on_stage=lambda *_: None)
        print(f"{made.source_bytes / 1e6:.1f} MB became {made.size_bytes / 1e6:.1f} MB, {made.bpw:.2f} bits a weight")
        engine = Engine(user_paths())
        list(engine.load(str(made.path), LoadOptions()))
        for event in engine.chat([QUESTION], SamplingParams(temperature=0)):
            if isinstance(event, TextDelta):
                print(event.text, end="")
        print()
        engine.close()


if __name__ == "__main__":
    main()
