"""The operations of a decoder on a GPU, one a file: reference in plain torch, Triton kernel, checked launcher.

`x_ref` is the documentation, the oracle of the tests and the baseline of the benchmarks; `x` computes the same with a
kernel. Every launch sets floating-point fusion itself (values.OPTIONS), and no order of summation depends on how many
rows are computed at once: row m of a batch of up to 16 has the same bits as that row alone. Kernels know tensors, and
nothing of models, files or tokens.
"""
