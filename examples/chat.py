"""Ask the demo model one question, in this process."""

from runner.config import LoadOptions, SamplingParams
from runner.engine import Engine
from runner.events import Finished, TextDelta
from runner.paths import user_paths
from runner.types import Message


def main() -> None:
    engine = Engine(user_paths())
    for _ in engine.load("demo", LoadOptions()):
        pass
    question = Message(role="user", content="What is the capital of Peru?")
    for event in engine.chat([question], SamplingParams(temperature=0)):
        if isinstance(event, TextDelta):
            print(event.text, end="")
        elif isinstance(event, Finished):
            print(f"\n{event.timings.completion_tokens} tokens, {event.reason}")
    engine.close()


if __name__ == "__main__":
    main()
