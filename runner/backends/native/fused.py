"""A decoder as the kernels compute it: the blocks of blocks.py, walked once, with their products joined and fused.

It is written over the blocks and not over architectures, so an architecture that composes them runs here too. The
residual stream is float32; a norm is one factor a row, which the product behind it applies; activations are rotated and
quantized on their way to packed weights. It knows nothing of graphs, of sampling or of what the tokens mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.blocks import Attention, Decoder, GatedMlp, Layer, Tap
from runner.backends.native.capture import Interior
from runner.backends.native.fused_beside import FusedBeside
from runner.backends.native.fused_delta import FusedDeltaNet
from runner.backends.native.fused_inputs import FusedInputs, FusedLayerInput
from runner.backends.native.fused_moe import FusedMoE
from runner.backends.native.matrices import MatrixReader, Product
from runner.backends.native.moe import LayerWithExperts, MoE
from runner.backends.native.stream import (
    Mixed,
    Norm,
    Stream,
    activations,
    add_branch,
    dtype_of,
    laid_out,
    matrix_reader,
    multiply,
    multiply_in_parts,
    multiply_with_sums,
    normed,
    read_gated,
    read_norm,
    read_optional_norm,
    read_product,
    reader_of,
)
from runner.kernels.add_parts import Reader
from runner.kernels.angles import angles
from runner.kernels.attention_decode import attend_rows
from runner.kernels.attention_prefill import attend_prompt
from runner.kernels.carveout import divide_alike
from runner.kernels.delta_rule import DeltaSlots
from runner.kernels.embedding import embed
from runner.kernels.gates import Gate, GatedRows
from runner.kernels.heads import COLUMNS_OF_SUM, Heads, place_heads
from runner.kernels.kv_layer import LayerCache
from runner.kernels.matmul import Activation, Logits, gate_ref, linear_gated, linear_logits
from runner.kernels.splits import Splits
from runner.kernels.values import MOST_ROWS, Parts, Squares, is_hopper
from runner.model_config import ModelConfig, RopeName


@dataclass(frozen=True, kw_only=True)
class FusedPass:
    """What the layers of one pass share.

    caches: of each layer that keeps keys and values; slots: of each that keeps states. inputs: of all layers side by
    side [M, L * P], where layers have such. start: the position of the first row, int32 [1] on the device; first: the
    same as a number, None where a graph records the pass for every position. count: how many rows are none that fill
    the pass up, int32 [1] on the device; None: all. checkpoint: see blocks.Pass.
    """

    caches: Sequence[LayerCache]
    slots: Sequence[DeltaSlots]
    inputs: Tensor | None
    start: Tensor
    first: int | None
    count: Tensor | None
    rotations: dict[RopeName, tuple[Tensor, Tensor]]
    checkpoint: Callable[[], None]


class FusedAttention:
    """See blocks.Attention."""

    def __init__(self, module: Attention, name: str, reader: MatrixReader) -> None:
        self.module = module
        self.dtype = reader.dtype
        names = ["qkv_proj"] if module.is_joined else ["q_proj", "k_proj", "v_proj"]
        names = names[:1] if module.shares_cache else names[:2] if module.shares_projection else names
        self.qkv = read_gated(reader, name, module) if module.is_gated else read_product(reader, name, names)
        self.o = read_product(reader, name, ["o_proj"])
        self.q_gain = read_optional_norm(reader, module, name, "q_norm" if module.q_norm is not None else None)
        self.k_gain = read_optional_norm(reader, module, name, "k_norm" if module.k_norm is not None else None)
        self.sinks = reader.vector(f"{name}.sinks") if module.sinks is not None else None

    def mix(self, stream: Stream, before: Norm | None, layer: int, run: FusedPass) -> Mixed:
        """The heads' mixture [M, H * D] of the rows' values, before the output product."""
        module, cache = self.module, run.caches[layer]
        heads = self._heads(stream, before, run)
        mixed: Tensor | Splits
        if len(stream.h) <= MOST_ROWS:
            mixed = attend_rows(
                heads, cache, run.start, window=module.window, sinks=self.sinks, scale=module.scale, cap=module.cap
            )
        else:
            mixed = attend_prompt(
                place_heads(heads, cache, run.start),
                cache,
                run.start,
                first=run.first,
                window=module.window,
                sinks=self.sinks,
                scale=module.scale,
                cap=module.cap,
            )
        return self._gated(mixed, heads.qkv) if module.is_gated else mixed

    def keep(self, stream: Stream, before: Norm | None, layer: int, run: FusedPass) -> None:
        """Put the keys and values of a prompt's rows into the cache, whose mixtures nobody asks for."""
        place_heads(self._heads(stream, before, run), run.caches[layer], run.start)

    def _heads(self, stream: Stream, before: Norm | None, run: FusedPass) -> Heads:
        module = self.module
        qkv: Tensor | Parts
        sums = None
        if module.norm == "row" and module.head_dim % COLUMNS_OF_SUM == 0:
            qkv, sums = multiply_with_sums(stream, before, self.qkv, self.dtype)
        elif len(stream.h) <= MOST_ROWS or module.norm == "row" or module.is_gated:
            qkv = multiply(stream, before, self.qkv, self.dtype)
        else:
            qkv = multiply_in_parts(stream, before, self.qkv, self.dtype)
        run.checkpoint()
        cos, sin = run.rotations[module.rope]
        return Heads(
            qkv=qkv,
            num_heads=module.num_heads,
            cos=cos,
            sin=sin,
            q_gain=None if self.q_gain is None else self.q_gain.gain,
            k_gain=None if self.k_gain is None else self.k_gain.gain,
            norm=module.norm,
            eps=module.eps,
            sums=sums,
            growth=None if module.growth is None else (module.growth.beta, module.growth.span),
            shares_keys=module.shares_projection,
            has_value_norm=module.has_value_norm,
            reads_cache=module.shares_cache,
        )

    def _gated(self, mixed: Tensor | Splits, qkv: Tensor | Parts) -> Mixed:
        """The mixture with its gates, which lie behind the heads of q, k and v."""
        assert isinstance(qkv, Tensor)
        module = self.module
        gate = Gate(values=qkv[:, (module.num_heads + 2 * module.num_kv_heads) * module.head_dim :])
        if isinstance(mixed, Splits):
            return replace(mixed, gate=gate)
        return GatedRows(x=mixed, gate=gate, dtype=self.dtype)


class FusedMlp:
    """See blocks.GatedMlp."""

    def __init__(self, module: GatedMlp, name: str, reader: MatrixReader) -> None:
        self.activation: Activation = module.activation
        self.dtype = reader.dtype
        names = ["gate_up_proj"] if module.is_joined else ["gate_proj", "up_proj"]
        self.gate_up = read_product(reader, name, names, is_paired=True)
        self.down = read_product(reader, name, ["down_proj"])

    def gated(self, stream: Stream, before: Norm | None) -> Tensor:
        """act(gate) * up [M, intermediate], before the output product."""
        product = self.gate_up
        if len(product.parts) > 1:  # gate and up in different formats
            gate, up = multiply(stream, before, product, torch.float32).chunk(2, 1)
            return gate_ref(gate, up, self.activation).to(self.dtype)
        x, squares = normed(stream, before, product.parts[0], self.dtype)
        return linear_gated(
            x, product.parts[0], self.activation, bias=product.biases[0], squares=squares, dtype=self.dtype
        )


class FusedLayer:
    """See blocks.Layer. kept_at: see ModelConfig.kept_at."""

    def __init__(self, module: Layer, index: int, kept_at: int, name: str, reader: MatrixReader) -> None:
        self.index = index
        self.kept_at = kept_at
        self.dtype = reader.dtype
        norms = module.norms
        self.before_attention = read_optional_norm(reader, module, name, norms.before_attention)
        self.after_attention = read_optional_norm(reader, module, name, norms.after_attention)
        self.before_mlp = read_optional_norm(reader, module, name, norms.before_mlp)
        self.after_mlp = read_optional_norm(reader, module, name, norms.after_mlp)
        self.attention = _attention(module, name, reader)
        self.mlp = _mlp(module.mlp, f"{name}.mlp", reader)
        self.beside = FusedBeside(module, name, reader) if isinstance(module, LayerWithExperts) else None
        self.input = FusedLayerInput(module, index, name, reader) if module.has_input else None
        # It stays a factor of the stream, by which whoever ends the layer multiplies it. To divide the stream by the
        # product of all of them instead, and gains and eps with it, saves nothing and may leave the range of float32.
        has_scalar = module.layer_scalar is not None
        self.scalar = float(reader.vector(f"{name}.layer_scalar")) if has_scalar else 1.0

    @property
    def reader(self) -> Reader | None:
        """Who reads the stream before this layer."""
        return reader_of(self.attention.qkv, self.before_attention)

    def keep(self, stream: Stream, run: FusedPass) -> None:
        """See FusedAttention.keep."""
        assert isinstance(self.attention, FusedAttention)
        self.attention.keep(stream, self.before_attention, self.kept_at, run)

    def __call__(self, stream: Stream, run: FusedPass, reader: Reader | None) -> Stream:
        """reader: who reads the stream after this layer."""
        run.checkpoint()
        mixed = self.attention.mix(stream, self.before_attention, self.kept_at, run)
        mlp = None if isinstance(self.mlp, FusedMoE) else reader_of(self.mlp.gate_up, self.before_mlp)
        stream = add_branch(stream, mixed, self.attention.o, self.after_attention, self.dtype, mlp)
        run.checkpoint()
        if isinstance(self.mlp, FusedMoE):
            assert self.scalar == 1
            return self.mlp.add_to(stream, self.before_mlp)
        gated = self.mlp.gated(stream, self.before_mlp)
        run.checkpoint()
        if self.input is None:
            return self._add_mlp(stream, gated, self.mlp.down, reader, self.scalar)
        assert run.inputs is not None
        stream = self._add_mlp(stream, gated, self.mlp.down, self.input.reader, 1.0)
        return self.input.add_to(stream, run.inputs, reader, self.scalar)

    def _add_mlp(self, stream: Stream, gated: Tensor, down: Product, reader: Reader | None, scale: float) -> Stream:
        """The stream with what comes of the MLP, and of the experts beside it where there are such; see add_branch."""
        if self.beside is None:
            return add_branch(stream, gated, down, self.after_mlp, self.dtype, reader, scale)
        assert self.after_mlp is not None
        return self.beside.add_to(stream, gated, down, self.after_mlp, reader, scale)


def _attention(module: Layer, name: str, reader: MatrixReader) -> FusedAttention | FusedDeltaNet:
    if module.linear_attn is not None:
        return FusedDeltaNet(module.linear_attn, f"{name}.linear_attn", reader)
    assert module.self_attn is not None
    return FusedAttention(module.self_attn, f"{name}.self_attn", reader)


def _mlp(module: nn.Module, name: str, reader: MatrixReader) -> FusedMlp | FusedMoE:
    if isinstance(module, MoE):
        return FusedMoE(module.config, name, reader)
    assert isinstance(module, GatedMlp)
    return FusedMlp(module, name, reader)


# Of a layer: the host takes 0.7 to 2 ms to launch one (H200), which then computes at some 700 TFLOP/s in int8. ms of 16
# layers of Llama-3.1-8B, launched one by one | from a graph: 1200 tokens (filled up 5.6e11) 14.0 to 22.0 | 13.5, 1400
# (6.7e11) 17.5 | 15.7, 1700 (7.8e11) 19.0 | 18.6, 2048 (8.9e11) 20.9 | 20.6. Other GPUs have no products in int8, and
# what is filled up costs them more: theirs is what was found for the H200 in bfloat16.
_FLOP_BEHIND_LAUNCHES, _FLOP_ELSEWHERE = 9e11, 5.5e11


def _products_of(config: ModelConfig, n_layers: int) -> tuple[int, int]:
    """How many weights a token is multiplied by in so many layers, and how wide the mixtures of their heads are."""
    experts, numbers = config.experts, range(n_layers)
    layers = [layer for layer in config.attention_layers if layer < n_layers]
    has_mlps = experts is None or experts.is_beside
    widths = sum(map(config.mlp_size, numbers)) if has_mlps else 0
    widths += 0 if experts is None else n_layers * experts.width_of_token
    mixed = sum(config.num_heads * config.heads(layer).head_dim for layer in layers)
    mixers = mixed + sum(map(config.qkv_size, layers))
    if config.delta is not None:
        mixers += (n_layers - len(layers)) * (config.delta.channels + 2 * config.delta.values_size)
    inputs = 0 if config.layer_inputs is None else n_layers * config.layer_inputs.size
    return config.hidden_size * (mixers + 3 * widths + 3 * inputs), mixed


def _last_kept(config: ModelConfig) -> int:
    """The layer from which on a prompt's last row is enough, once the keys and values of all are kept there; the number
    of layers where there is none, for its states follow from all rows."""
    last = max(config.caching_layers, default=-1)
    return config.num_layers if any(map(config.has_delta, range(last + 1, config.num_layers))) else last


class FusedDecoder:
    """A whole model on the device. Reads all weights when it is made; see MatrixReader for what that raises."""

    def __init__(self, decoder: Decoder, reader: MatrixReader) -> None:
        divide_alike(reader.device)
        config = decoder.config
        self.decoder = decoder
        self.eps = config.rms_norm_eps
        self.dtype = reader.dtype
        self.device = reader.device
        self.embedding = laid_out(reader.matrix("model.embed_tokens.weight"))
        self.factor = decoder.model.embed_tokens.factor(reader.dtype)
        has_inputs = config.layer_inputs is not None
        self.inputs = FusedInputs(decoder.model, "model", reader) if has_inputs else None
        self.layers = [
            FusedLayer(layer, index, config.kept_at(index), f"model.layers.{index}", reader)
            for index, layer in enumerate(decoder.layers)
        ]
        self._narrows_at = _last_kept(config)
        self._token_products, self._mixed = _products_of(config, self._narrows_at)
        self.has_experts = any(isinstance(layer.mlp, FusedMoE) or layer.beside is not None for layer in self.layers)
        self.norm = read_norm(reader, decoder.model, "model", "norm")
        self.head = self.embedding if decoder.lm_head is None else laid_out(reader.matrix("lm_head.weight"))
        reader.require_all_read()
        self.nbytes = reader.nbytes

    def hidden(
        self,
        tokens: Tensor,
        caches: Sequence[LayerCache],
        start: Tensor,
        *,
        slots: Sequence[DeltaSlots] = (),
        first: int | None,
        count: Tensor | None = None,
        last: Tensor | None = None,
        n_ctx: int,
        checkpoint: Callable[[], None],
        tap: Tap | None = None,
    ) -> Stream:
        """The final residual stream of `tokens` [M] int64, at positions from `start` on; the caches hold them then.

        slots, first, count: see FusedPass. last: the row whose stream alone is asked for, int64 [1] on the device, and
        the others go no further than what is kept of them; None: all. n_ctx: see Decoder.frequencies. tap: see
        blocks.Tap; it hears the stream itself, of all rows, which is float32 and changes in place.
        """
        narrows_at = len(self.layers) if tap is not None else self._narrows_at
        h, squares = embed(tokens, self.embedding, self.factor, self.eps)
        stream = Stream(h=h, eps=self.eps, squares=squares)
        run = FusedPass(
            caches=caches,
            slots=slots,
            inputs=None if self.inputs is None else self.inputs(tokens, stream),
            start=start,
            first=first,
            count=count,
            rotations=self._rotations(start, len(tokens), n_ctx),
            checkpoint=checkpoint,
        )
        readers = [layer.reader for layer in self.layers[1:]] + [matrix_reader(self.head, self.norm)]
        for layer, reader in zip(self.layers, readers, strict=True):
            if tap is not None:
                tap(layer.index, stream.h)
            if last is not None and layer.index == narrows_at:
                layer.keep(stream, run)
                stream, run = stream.row(last), self._run_of_row(run, last, n_ctx)
            stream = layer(stream, run, reader)
        if tap is not None:
            tap(len(self.layers), stream.h)
        return stream.row(last) if last is not None and narrows_at == len(self.layers) else stream

    def _rotations(self, start: Tensor, n_rows: int, n_ctx: int) -> dict[RopeName, tuple[Tensor, Tensor]]:
        ropes = self.decoder.config.ropes
        return {
            name: angles(start, n_rows, frequencies, ropes[name].attention_factor)
            for name, frequencies in self.decoder.frequencies(n_ctx, self.device).items()
        }

    def _run_of_row(self, run: FusedPass, row: Tensor, n_ctx: int) -> FusedPass:
        """The pass of one of its rows alone, of which everything is kept."""
        start = (run.start + row).to(torch.int32)
        inputs = None if run.inputs is None else run.inputs.index_select(0, row)
        return replace(run, start=start, first=None, inputs=inputs, rotations=self._rotations(start, 1, n_ctx))

    def logits(self, stream: Stream, rows: slice = slice(None)) -> Logits:
        """The logits of those rows of the stream."""
        h = stream.h[rows].contiguous()
        parts = stream.squares.parts[rows].contiguous()
        squares = Squares(parts=parts, size=stream.squares.size, eps=self.norm.eps)
        ready = stream.ready if len(h) == len(stream.h) else None
        part = Stream(h=h, eps=self.norm.eps, squares=squares, ready=ready)
        x, left = normed(part, self.norm, self.head, dtype_of(self.head, self.dtype))
        return linear_logits(x, self.head, squares=left, cap=self.decoder.config.logit_cap)

    def waits_for_launches(self, n_rows: int, first: int) -> bool:
        """Whether a GPU computes a prompt of so many rows, after `first` others, faster than its host launches it.

        It follows from the kind of the GPU and from no clock: the bits of a prompt follow from it.
        """
        flop = 2 * n_rows * (self._token_products + 2 * self._mixed * first)
        return flop < len(self.layers) * (_FLOP_BEHIND_LAUNCHES if is_hopper(self.norm.gain) else _FLOP_ELSEWHERE)

    def interior(self) -> Interior:
        """See Interior: the same weights, each step on its own."""
        return Interior(
            embed=lambda tokens: embed(tokens, self.embedding, self.factor, self.eps)[0].to(self.dtype),
            norm=lambda x: functional.rms_norm(x.float(), x.shape[-1:], self.norm.gain, self.norm.eps).to(self.dtype),
            logits=self._logits_of_normed,
            dtype=self.dtype,
            device=self.device,
            has_kernels=True,
        )

    def _logits_of_normed(self, x: Tensor) -> Tensor:
        rows, _ = activations(x, None, self.head, dtype_of(self.head, self.dtype))
        return linear_logits(rows, self.head, squares=None, cap=self.decoder.config.logit_cap).values
