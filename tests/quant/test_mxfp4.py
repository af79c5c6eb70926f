from __future__ import annotations

import numpy as np
import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from runner.quant import mxfp4


def test_every_byte_under_every_scale_is_what_transformers_makes_of_it() -> None:
    blocks = np.broadcast_to(np.arange(256, dtype=np.uint8).reshape(1, 16, 16), (255, 16, 16)).copy()
    scales = np.broadcast_to(np.arange(255, dtype=np.uint8)[:, None], (255, 16)).copy()
    found = mxfp4.decode(blocks[None], scales[None])
    wanted = convert_moe_packed_tensors(
        torch.from_numpy(blocks[None]), torch.from_numpy(scales[None]), dtype=torch.float32
    )
    assert found.shape == (1, 255, 512)
    assert np.array_equal(found, wanted.numpy().swapaxes(1, 2))
    assert found[0, 127, 2:8].tolist() == [0.5, 0.0, 1.0, 0.0, 1.5, 0.0]  # bytes 1 to 3 at a scale of 1: low halves


def test_the_scale_that_is_no_number_gives_none() -> None:
    found = mxfp4.decode(np.zeros((1, 16), np.uint8), np.array([255], np.uint8))
    assert np.isnan(found).all()
