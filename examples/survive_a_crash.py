"""An engine in a child process: kill it in the middle of an answer, and go on."""

from runner.config import LoadOptions, SamplingParams
from runner.engine_process import EngineProcess
from runner.errors import EngineDied
from runner.events import TextDelta
from runner.paths import user_paths
from runner.types import Message

STORY = [Message(role="user", content="Tell me a long story")]


def main() -> None:
    with EngineProcess(user_paths()) as engine:
        list(engine.load("demo", LoadOptions()))
        try:
            for event in engine.chat(STORY, SamplingParams(seed=1)):
                if isinstance(event, TextDelta):
                    engine.kill()
        except EngineDied as died:
            print(died.message)
        loaded = list(engine.load("demo", LoadOptions()))[-1]
        print("loaded again:", loaded.info.name)


if __name__ == "__main__":
    main()
