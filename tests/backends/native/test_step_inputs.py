"""What a step reads lies in one tensor, in place and in shape, whatever was there before."""

from __future__ import annotations

import sys

import torch

from runner.backends.native.step_inputs import StepInputs
from runner.kernels.values import MOST_ROWS


def test_one_copy_says_tokens_start_and_position() -> None:
    inputs = StepInputs(torch.device("cpu"))
    places = [tensor.data_ptr() for tensor in (inputs.tokens, inputs.start, inputs.position)]
    inputs.put(range(5, 5 + MOST_ROWS), 70_000)
    assert inputs.tokens.tolist() == list(range(5, 5 + MOST_ROWS))
    assert (inputs.start.tolist(), inputs.position.tolist()) == ([70_000], [70_001])
    inputs.put([9, 8], 3)
    assert inputs.tokens.tolist() == [9, 8, *range(7, 5 + MOST_ROWS)], "what fills a step up is whatever was there"
    assert (inputs.start.tolist(), inputs.position.tolist()) == ([3], [4])
    assert [tensor.data_ptr() for tensor in (inputs.tokens, inputs.start, inputs.position)] == places


def test_what_a_step_changes_does_not_come_back_with_the_next_put() -> None:
    inputs = StepInputs(torch.device("cpu"))
    inputs.put([7], 10)
    inputs.tokens[:1].copy_(torch.tensor([30]))
    inputs.start.add_(1)
    inputs.position.add_(1)
    assert (inputs.tokens[0], inputs.start[0], inputs.position[0]) == (30, 11, 12)
    inputs.put([30], 11)
    assert (inputs.tokens[0], inputs.start[0], inputs.position[0]) == (30, 11, 12)


def test_each_is_aligned_as_a_tensor_of_its_own_would_be_for_a_kernel() -> None:
    inputs = StepInputs(torch.device("cpu"))
    first = inputs.tokens.data_ptr()
    assert [(tensor.data_ptr() - first) % 16 for tensor in (inputs.tokens, inputs.start, inputs.position)] == [0] * 3
    assert (inputs.tokens.dtype, inputs.start.dtype, inputs.position.dtype) == (torch.int64, torch.int32, torch.int64)
    assert sys.byteorder == "little", "the low half of a number comes first"
