"""Compiles every kernel ahead of time for every GPU that it is meant for: `python -m runner.kernels.compile`.

variants.py says what is compiled, targets.py for what, compilation.py does one of them, jobs.py all of them on the
cores there are (by spread.py), report.py shows the outcome. No GPU is needed, and nothing here knows what a kernel
computes. Importing this loads no Triton: whoever compiles must first have seen to it that the kernels are not for the
interpreter.
"""

from runner.kernels.compile.compilation import Compiled, compile_variant
from runner.kernels.compile.targets import TARGETS, Target
from runner.kernels.compile.variants import Variant, all_variants

__all__ = ["TARGETS", "Compiled", "Target", "Variant", "all_variants", "compile_variant"]
