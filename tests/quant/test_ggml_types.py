"""ggml's types as headers need them, beside the gguf package's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, LlamaFileType

from runner.quant.ggml_types import FILE_TYPES, GGML_TYPES, GgmlType, decode


def test_every_type_that_gguf_knows_is_known_with_the_same_blocks() -> None:
    theirs = {int(kind): GgmlType(int(kind), kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    assert theirs == {number: GGML_TYPES[number] for number in theirs}


def test_every_format_of_a_file_that_gguf_knows_has_its_name() -> None:
    theirs = {int(said): said.name.removeprefix("MOSTLY_").removeprefix("ALL_") for said in LlamaFileType}
    assert theirs.pop(int(LlamaFileType.GUESSED)) == "GUESSED"
    assert theirs == {number: FILE_TYPES[number] for number in theirs}


def test_a_type_that_an_older_gguf_does_not_know_cannot_be_decoded() -> None:
    with pytest.raises(NotImplementedError, match="older than Q9_9"):
        decode(np.zeros((1, 18), np.uint8), GgmlType(999, "Q9_9", 32, 18))


def test_loading_a_model_with_llama_cpp_imports_nothing_that_writes_files(demo_directory: Path) -> None:
    program = (
        "import sys\nfrom runner.config import LoadOptions\nfrom runner.engine import Engine\n"
        "from runner.paths import user_paths\n"
        "engine = Engine(user_paths())\nlist(engine.load(sys.argv[1], LoadOptions(warmup=False)))\n"
        "print(engine.backend.info.backend, sorted({'gguf', 'yaml', 'sentencepiece'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program, str(demo_directory / "demo-q8_0.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "llamacpp []"
