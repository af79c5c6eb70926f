"""Make two four-bit versions of the demo model, and measure how far each is from it on a text."""

import tempfile
from pathlib import Path

from runner.config import LoadOptions
from runner.evaluation.evaluate import evaluate
from runner.evaluation.report import Request, Text
from runner.evaluation.windows import Windowing
from runner.paths import builtin, user_paths
from runner.quant.formats import format_of
from runner.quant.mq.quantize import quantize_packed
from runner.quant.mq.recipe import recipe_of
from runner.quant.quantize import quantize_model

SOURCE = builtin("models/demo") / "demo-q8_0.gguf"
STORY = "The old house by the river had been empty for years. One night, a light was seen in its window. " * 12


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        quantize_model(SOURCE, format_of("q4_0"), Path(directory) / "q4_0", force=False, on_stage=lambda *_: None)
        quantize_packed(SOURCE, recipe_of("mq4"), Path(directory) / "mq4", force=False, on_stage=lambda *_: None)
        for name in ("q4_0", "mq4"):
            asked = Request(
                model=f"{directory}/{name}",
                reference="demo",
                texts=(Text(name="story", content=STORY),),
                windowing=Windowing(size=128),
                options=LoadOptions(),
                reference_options=LoadOptions(),
            )
            (result,) = evaluate(asked, user_paths(), lambda _: None).results
            assert result.against is not None
            print(f"{name}: KL divergence {result.against.mean_kld.value:.4f}")


if __name__ == "__main__":
    main()
