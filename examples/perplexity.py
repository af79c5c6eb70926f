"""The perplexity of a text under the demo model, from a backend's scores."""

import math

import numpy as np

from runner.backends import backend_module
from runner.config import LoadOptions
from runner.paths import builtin
from runner.types import CancelToken, ReadyModel

TEXT = "It was a bright cold day, and the old woman walked slowly down the lane to the village."


def main() -> None:
    path = builtin("models/demo") / "demo-q8_0.gguf"
    model = ReadyModel(
        name="demo", format="gguf", weights=(path,), directory=path.parent, size_bytes=path.stat().st_size
    )
    backend = backend_module("llamacpp").load(model, LoadOptions(), lambda _: None, CancelToken())
    ids = backend.tokenizer.encode(TEXT)
    nll = 0.0
    for logits, following in zip(backend.score(ids), ids[1:], strict=False):
        values = logits.values.astype(np.float64)
        nll += np.logaddexp.reduce(values) - values[following]
    print(f"{len(ids)} tokens, perplexity {math.exp(nll / (len(ids) - 1)):.1f}")
    backend.close()


if __name__ == "__main__":
    main()
