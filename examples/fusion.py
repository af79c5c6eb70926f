"""A new fusion in eight lines: a product followed by a squared ReLU, which dense and packed weights carry alike."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the first kernel is imported

import triton
import triton.language as tl

from runner.kernels.epilogues import p_store
from runner.kernels.matmul import product, product_ref
from runner.kernels.pack import packed_matrix
from runner.kernels.rotate import quantize_rows
from runner.quant.mq.formats import MQ4


@triton.jit
def relu_squared(lo, hi, rows, row_ok, n, n2, n_ok, tile, args, CONFIG: tl.constexpr):
    """out = max(acc, 0)^2."""
    y = tl.maximum(lo, 0.0)
    p_store(args[0], y * y, rows, row_ok, n, n_ok, args[1])


def main() -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    w, x = torch.randn(48, 64), torch.randn(2, 64, device=device)
    packed = packed_matrix(MQ4.encode(w), MQ4, 1, device)
    for name, rows, weights in (("dense", x, w.to(device)), ("mq4", quantize_rows(x, None, 1), packed)):
        out = torch.empty(2, 48, device=device)
        product(rows, weights).run(relu_squared, (out, 48), ())
        wanted = product_ref(rows, weights).relu().square()
        print(f"{name}: largest difference {(out - wanted).abs().max():.1e}")


if __name__ == "__main__":
    main()
