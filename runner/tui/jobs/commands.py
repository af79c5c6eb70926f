"""What a job asks of the command line, and what is left to tidy up when it is given up. Reads and deletes on the disk.

It knows names and paths, no process and no queue.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from runner.deletion import delete
from runner.errors import RunnerError
from runner.inventory import is_meant, known_groups, local_models
from runner.paths import Paths, user_paths
from runner.quant.mq.recipe import RECIPES
from runner.quant.packed_files import PARTIAL_SUFFIX
from runner.registry import Registry
from runner.removal import of_half_made, plan_unfinished


def pull_arguments(model: str, *, force: bool) -> tuple[str, ...]:
    return ("pull", "--json", *(["--force"] if force else []), "--", model)


def quantize_arguments(source: str, weight_format: str, output: Path, *, calibrate: bool) -> tuple[str, ...]:
    how = [] if calibrate or weight_format not in RECIPES else ["--no-calibrate"]
    return ("quantize", "--json", "--format", weight_format, "--output", str(output), *how, "--", source)


def output_of(paths: Paths, source: str, weight_format: str) -> Path:
    """Where a quantization of `source` goes unless its user says otherwise."""
    name = os.path.basename(source.rstrip("/")).partition(":")[0].removesuffix(".gguf") or "model"
    return paths.models / f"{name}-{weight_format}"


def environment_of(paths: Paths) -> dict[str, str]:
    """What makes a child use those paths, where they are not the user's own."""
    home = paths.config.parent
    return {"RUNNER_HOME": str(home)} if user_paths(home) == paths else {}


def unfinished_downloads(paths: Paths) -> tuple[tuple[str, int, int], ...]:
    """Downloads of which there is a part on the disk: name, bytes here, bytes in all (0: not known)."""
    found = local_models(Registry.load_for(paths))
    return tuple((model.name, model.size_bytes, model.total_bytes) for model in found if model.state == "partial")


def is_fetched_or_begun(paths: Paths, model: str) -> bool:
    """Whether the disk itself tells of that download: something of its weights is here.

    False for unknown names, and where the cache may not be read.
    """
    try:
        spec = Registry.load_for(paths).resolve(model)
        if spec.path is not None:
            return True
        repo, wanted = spec.source[0], replace(spec, asked=spec.asked or spec.quant)
        groups = known_groups(repo)
    except RunnerError:
        return False
    return any(not wanted.asked or is_meant(wanted, repo, group) for group in groups)


def discard_download(paths: Paths, model: str, names: Collection[str]) -> int:
    """Delete what a download that was given up has left; returns the bytes freed. Raises RunnerError."""
    removal = plan_unfinished(Registry.load_for(paths).resolve(model), names)
    return delete(removal) if removal is not None else 0


def discard_quantization(output: Path) -> int:
    """Delete what a quantization that was given up has left; returns the bytes freed. Raises RunnerError."""
    return delete(of_half_made(output.absolute().with_name(output.name + PARTIAL_SUFFIX)))
