"""A model's kernels are compiled once, before its first token, and nothing depends on it."""

from __future__ import annotations

import json
from pathlib import Path

import tiny_models
from checkout import python


def test_kernels_are_compiled_once_for_a_kind_of_model(tmp_path: Path) -> None:
    samples, model = Path(__file__).with_name("warm_up_samples.py"), tmp_path / "model"
    small = {"num_hidden_layers": 2, "vocab_size": 61, "bos_token_id": 1, "eos_token_id": 2}
    tiny_models.save(tiny_models.make("qwen3-moe", **small), model)
    done = python(samples, model, timeout_s=200, TRITON_CACHE_DIR=str(tmp_path / "cache"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    total = found["first"][0][1]
    assert total >= 2
    assert found["first"] == [[done, total] for done in range(total + 1)]
    assert found["again"] == []
    assert found["rehearsals"] == 1  # the mark in the cache says that there is nothing to look for
    assert found["another model with the same kernels"] == []
    assert found["cancelled"] == "Loading was cancelled."
    assert found["broken"] == []
    dense = {"_gemv_one_row", "_gemv_fragments", "_gemm_fragments", "_add_parts", "_quantize_fragments"}
    of_experts = {"_pairs_of_fragments", "_sum_of_fragments", "_blocks_of_fragments", "_int8_of_experts"}
    assert dense | of_experts < set(found["tried"])
    n_tried = len(found["trials"]) - 1  # as many are told of, and the beginning
    assert n_tried >= 10
    assert set(found["trials"]) == {n_tried}
    assert found["trials again"] == []
    assert found["trials compiled"]
    # Those of experts take three times as long: what is looked at is that they are told of as to be compiled.
    n_left = found["trials in all"] - n_tried
    assert n_left >= 10
    assert found["trials of experts"] == [n_left]
    assert found["trials not compiled"] == n_left
    assert found["trials answered"] == 0  # nothing was launched, so nothing was seen
    assert found["kernels of a model"] == ["_attend_prompt", "_decide", "_embed_dense", "_greedy", "_moe_gemm"]
    assert found["held afterwards"] == 0
    assert found["verifying"] > 10
    assert found["verifying, and not rehearsed"] == []
