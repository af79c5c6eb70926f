"""What is to be compiled, by name so that it can go to another process, and what came of it.

It knows no compiler: compilation.py is called, in as many processes as there are cores.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from runner.errors import UsageError
from runner.kernels.compile.compilation import Compiled, compile_variant, overtakes_products
from runner.kernels.compile.spread import Failure, spread
from runner.kernels.compile.targets import TARGETS
from runner.kernels.compile.variants import kernel_modules, variants_of

# Most take a second. What takes minutes does not fit into registers, and would spill.
_LIMIT_S = 120.0
# Where `fewer` compiles every variant: for decoding on the GPU that is measured, for prompts on the one with the least
# shared memory.
_DECODING, _PROMPTS = "sm_90", "sm_120"
MAY_SPILL: Final = 48
"""Bytes of a thread's registers: a dozen of them in memory cost less than the program that they would displace."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One variant of one kernel file for one target. kernel: the function's name."""

    module: str
    kernel: str
    variant: str
    target: str
    is_decode: bool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a job."""

    job: Job
    result: Compiled | Failure

    @property
    def complaint(self) -> str:
        """What is wrong, "" when nothing is: it fails, spills much though it decodes, takes too much memory, or
        overtakes its products."""
        name = f"{self.job.variant} for {self.job.target}"
        if isinstance(self.result, Failure):
            return f"{name} does not compile: {self.result.reason}"
        if self.job.is_decode and self.result.spilled_bytes > MAY_SPILL:
            return f"{name} spills {self.result.spilled_bytes} bytes of registers"
        limit = TARGETS[self.job.target].shared_limit
        if self.result.shared_bytes > limit:
            return f"{name} takes {self.result.shared_bytes} bytes of shared memory, and there are {limit}"
        if overtakes_products(self.result.ttgir):
            return f"{name} writes to registers that tensor cores may still read"
        return ""


def jobs(targets: Sequence[str], only: str | None = None) -> list[Job]:
    """All variants for these targets, or those of one kernel file or one variant: `only` names either.

    Raises UsageError when there is nothing of that name.
    """
    modules = kernel_modules()
    found = [
        Job(
            module=module,
            kernel=variant.kernel.__name__,
            variant=variant.name,
            target=target,
            is_decode=variant.is_decode,
        )
        for module in ([only] if only in modules else modules)
        for variant in variants_of(module)
        if only in (None, module, variant.name)
        for target in targets
        if TARGETS[target].is_nvidia or not variant.is_nvidia_only
        if variant.only_target in (None, target)
    ]
    if only is not None and not found:
        names = [*modules, *(variant.name for module in modules for variant in variants_of(module))]
        nearest = difflib.get_close_matches(only, names, n=3, cutoff=0.4)
        raise UsageError(
            f"No kernel file or variant is called {only!r}, or the file has no variants.",
            hint=f"Near to it: {', '.join(nearest)}." if nearest else "",
        )
    return found


def fewer(wanted: Sequence[Job]) -> list[Job]:
    """Of these every variant for the target where it is likeliest to fail, and one of each kernel for one more of
    NVIDIA's and one of AMD's: which of them goes round, so that about as many kernels are compiled for each."""
    chosen = {job for job in wanted if job.target == _likeliest(job)}
    there = {job.variant for job in chosen}
    chosen |= {job for job in wanted if job.variant not in there}
    others: dict[tuple[str, str], list[Job]] = {}
    for job in wanted:
        others.setdefault((job.module, job.kernel), []).extend([] if job in chosen else [job])
    for place, left in enumerate(others.values()):
        for is_nvidia in (True, False):
            kin = [job for job in left if TARGETS[job.target].is_nvidia is is_nvidia]
            of_one = [job for job in kin if job.variant == kin[0].variant]
            chosen |= {of_one[place % len(of_one)]} if of_one else set()
    return [job for job in wanted if job in chosen]


def _likeliest(job: Job) -> str:
    return _DECODING if job.is_decode else _PROMPTS


def compile_job(job: Job) -> Compiled:
    """Find the variant by its name and compile it. Raises what Triton raises."""
    found = {variant.name: variant for variant in variants_of(job.module)}
    return compile_variant(found[job.variant], TARGETS[job.target])


def compile_jobs(wanted: Sequence[Job], processes: int) -> Iterator[Outcome]:
    """Compile them all, in so many processes, and give each outcome as it comes."""
    for job, result in spread(compile_job, wanted, processes=processes, limit_s=_LIMIT_S):
        yield Outcome(job=job, result=result)
