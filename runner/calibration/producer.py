"""Rounds a model layer after layer, each on the output of the layers already rounded (see quant/mq/producer.py).

Two streams of activations go through the layers: the model's, and that of the copy that has been rounded so far. Each
matrix is first moved to where it makes up for the copy's errors, then rounded with error feedback. One layer's weights
are held at a time, twice, as float32. It knows nothing of files.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from runner.backends.base import Tokenizer
from runner.backends.native.architectures import build
from runner.backends.native.blocks import Layer
from runner.backends.native.model_files import chat_template, tokenizer_path
from runner.backends.native.placement import is_out_of_memory
from runner.backends.native.tokenizer import HuggingFaceTokenizer
from runner.calibration.inputs import LayerInputs
from runner.calibration.moments import MATRICES, Group, Side, groups_of, measure, run_layer, target
from runner.calibration.own_text import own_text
from runner.calibration.text import GivenText, not_calibrated, read_text, text_starts
from runner.errors import DoesNotFit, UnsupportedModel, UsageError
from runner.model_config import ModelConfig
from runner.quant.mq.basis import stored_rows, to_float
from runner.quant.mq.formats import TENSOR_FORMATS
from runner.quant.mq.gptq import round_with_feedback
from runner.quant.mq.grid import GridFormat
from runner.quant.mq.packed_file import PackedFile
from runner.quant.mq.plain import PlainProducer, encode, not_finite
from runner.quant.mq.plan import PackedPlan, TensorPlan
from runner.quant.mq.producer import OnStage, Producer
from runner.quant.mq.rotation import unrotate
from runner.quant.mq.source import PackedSource
from runner.quant.mq.tensor_format import Encoded
from runner.quant.weights import EMBEDDINGS, Weights

_Kept = tuple[Tensor, Tensor]  # keys and values of all sequences
DEFAULT_TOKENS: Final = 65536
_LENGTH: Final = 512  # tokens of a sequence
_SEED: Final = 0
# From the demo model, where 0.03 to 0.4 and 0.2 to 2 differ by no more than chance does (docs/LOG.md).
_DAMPING: Final = 0.1
_TARGET_DAMPING: Final = 0.5
_BATCH_WEIGHTS: Final = {"cpu": 2**22, "cuda": 2**28}  # activations of the widest matrix that are held at a time


@dataclass(frozen=True, kw_only=True)
class CalibratedProducer:
    """text: what to calibrate on; None lets the model write `n_tokens`, in sequences of 512 at most.

    template, bos, eos: the chat template and the texts of its tokens, for the chats that the model writes.
    """

    device: torch.device
    tokenizer: Tokenizer
    template: str | None
    bos: str
    eos: str
    text: GivenText | None = None
    n_tokens: int = DEFAULT_TOKENS

    def calibration(self, plan: PackedPlan) -> Mapping[str, Any] | None:
        if not any(_is_calibrated(tensor) for tensor in plan.tensors):
            return None
        count, length = windows_of(plan.config, self.n_tokens)
        text: dict[str, Any] = {"kind": "written by the model", "seed": _SEED}
        if self.text is not None:
            count = len(self.text.ids)
            text = {"kind": "file", "name": self.text.name, "sha256": self.text.sha256}
        return {
            "method": "gptq",
            "text": text,
            "tokens": count * length,
            "sequence_length": length,
            "damping": _DAMPING,
            "target_damping": _TARGET_DAMPING,
        }

    def produce(
        self, plan: PackedPlan, weights: Weights, written: PackedFile, on_stage: OnStage
    ) -> Iterator[tuple[str, Encoded]]:
        """See Producer."""
        work = _Work(self.device, plan, weights, written, on_stage)
        try:
            yield from work.alone([tensor for tensor in plan.tensors if not _is_calibrated(tensor)])
            if all(tensor.name in written.done for tensor in plan.tensors):
                return
            with torch.inference_mode(), _fast_products():
                ids = self._ids(plan, weights, written, on_stage)
            yield from work.layers(ids)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise DoesNotFit(
                f"Calibrating ran out of memory ({self.device.type}).",
                hint="Give fewer --calibration-tokens, or --no-calibrate; what is done is kept.",
            ) from error

    def _ids(self, plan: PackedPlan, weights: Weights, written: PackedFile, on_stage: OnStage) -> Tensor:
        if self.text is not None:
            return self.text.ids.to(self.device)
        count, length = windows_of(plan.config, self.n_tokens)
        return own_text(
            _config(plan),
            weights,
            self.tokenizer,
            text_starts(self.tokenizer, self.template, self.bos, self.eos, count, _SEED),
            length,
            device=self.device,
            seed=_SEED,
            written=written,
            on_stage=on_stage,
        )


def calibrated(
    text: Path | None, n_tokens: int, *, on_refusal: Callable[[str], None] | None = None
) -> Callable[[PackedSource, torch.device], Producer]:
    """What makes the producer of a source: see CalibratedProducer for the arguments.

    on_refusal: is told why a model cannot be calibrated, and it is rounded without; None refuses it. The result raises
    UsageError for a text that cannot be read, UnsupportedModel for a source without a tokenizer or one that is refused.
    """
    if text is not None and not text.is_file():
        raise UsageError(f"{text} is not a file.", hint="Give a text file to --calibrate.")

    def make(source: PackedSource, device: torch.device) -> Producer:
        if source.config.experts is not None:
            reason = f"{source.name} has experts, and a model that has them cannot be calibrated"
            if on_refusal is None:
                raise not_calibrated(f"{reason}.")
            on_refusal(f"{reason}: it is rounded without.")
            return PlainProducer(device=device)
        tokenizer = HuggingFaceTokenizer(tokenizer_path(source.companions), source.config.vocab_size)
        count, length = windows_of(source.config, n_tokens)

        def name(token: int | None) -> str:
            return "" if token is None else tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")

        return CalibratedProducer(
            device=device,
            tokenizer=tokenizer,
            template=chat_template(source.companions),
            bos=name(tokenizer.bos_id),
            eos=name(tokenizer.eos_id),
            text=None if text is None else read_text(text, tokenizer, length, count),
            n_tokens=n_tokens,
        )

    return make


def windows_of(config: ModelConfig, n_tokens: int) -> tuple[int, int]:
    """How many sequences of how many tokens make up about `n_tokens`."""
    length = min(_LENGTH, config.max_position_embeddings, n_tokens)
    return max(1, n_tokens // length), length


def _config(plan: PackedPlan) -> ModelConfig:
    """The configuration of the model in the plan's basis."""
    is_tied = plan.config_changes.get("tie_word_embeddings", plan.config.tie_word_embeddings)
    return replace(plan.config, tie_word_embeddings=is_tied)


def _is_calibrated(tensor: TensorPlan) -> bool:
    """Whether it is a matrix of a layer in a format that error feedback can round to."""
    is_in_layer = any(tensor.name.endswith(f".{name}.weight") for name in MATRICES)
    return is_in_layer and isinstance(TENSOR_FORMATS.get(tensor.format), GridFormat)


@contextmanager
def _fast_products() -> Iterator[None]:
    """Let a GPU round the factors of float32 products to 10 bits of mantissa: activations need no more."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class _Work:
    """One run over the layers. Nothing of it survives the run: a resumed one reads what was written and goes on."""

    def __init__(
        self, device: torch.device, plan: PackedPlan, weights: Weights, written: PackedFile, on_stage: OnStage
    ) -> None:
        self._device, self._plan, self._weights, self._written = device, plan, weights, written
        self._on_stage = on_stage
        self._by_name = plan.by_name
        with torch.device("meta"):
            self._decoder = build(_config(plan))
        self._groups = [groups_of(layer) for layer in self._decoder.layers]
        widest = max(plan.config.hidden_size, plan.config.widest_mlp)
        self._batch = max(1, _BATCH_WEIGHTS[device.type] // (widest * _LENGTH))

    def alone(self, tensors: list[TensorPlan]) -> Iterator[tuple[str, Encoded]]:
        """The tensors that no text is needed for."""
        for tensor in tensors:
            if tensor.name not in self._written.done:
                yield tensor.name, encode(tensor, self._weights, self._device, self._plan.largest_f32_bytes // 2)

    def layers(self, ids: Tensor) -> Iterator[tuple[str, Encoded]]:
        embed = copy.deepcopy(self._decoder.model.embed_tokens)
        embed.weight = nn.Parameter(to_float(self._weights.read(EMBEDDINGS), self._device), requires_grad=False)
        of_model = embed(ids)
        del embed
        of_copy = of_model.clone()
        inputs = self._inputs(ids, of_model)
        config, kept = self._plan.config, dict[int, tuple[_Kept, _Kept]]()
        shared = {config.seen_by(layer) for layer in range(config.num_layers) if config.shares_cache(layer)}
        done, total = 0, sum(self._by_name[name].source_bytes for name in self._in_layers())
        for index in range(config.num_layers):
            layer = self._layer(index)
            own = None if inputs is None else inputs.of(index)
            seen = kept[config.seen_by(index)] if config.shares_cache(index) else (None, None)
            model = Side(layer=layer, x=of_model, own_input=own, seen=seen[0])
            rounded = Side(layer=copy.deepcopy(layer), x=of_copy, own_input=own, seen=seen[1])
            for group in self._groups[index]:
                names = self._names(index, group)
                yield from self._group(index, group, model, rounded)
                done += sum(self._by_name[name].source_bytes for name in names)
                self._on_stage("calibrating", done, total)
            found = tuple(self._run(side, index, keeps=index in shared) for side in (model, rounded))
            if index in shared:
                kept[index] = cast(tuple[_Kept, _Kept], found)

    def _inputs(self, ids: Tensor, embedded: Tensor) -> LayerInputs | None:
        """Of the layers beside the stream, where they have such."""
        if self._plan.config.layer_inputs is None:
            return None
        return LayerInputs(self._decoder.model, self._weights, ids, embedded.clone())

    def _run(self, side: Side, index: int, *, keeps: bool) -> _Kept | None:
        """Puts what the layer makes of the stream in its place. keeps: gives the keys and values that it made."""
        found: list[_Kept] = []
        with torch.inference_mode(), _fast_products():
            for start in range(0, len(side.x), self._batch):
                span = slice(start, start + self._batch)
                side.x[span], seen = run_layer(self._decoder, side.part(span), index)
                if keeps and seen is not None:
                    found.append(seen)
        return (torch.cat([keys for keys, _ in found]), torch.cat([values for _, values in found])) if keeps else None

    def _in_layers(self) -> list[str]:
        return [
            name for index, groups in enumerate(self._groups) for group in groups for name in self._names(index, group)
        ]

    def _names(self, index: int, group: Group) -> list[str]:
        return [f"model.layers.{index}.{matrix}.weight" for matrix in group.matrices]

    def _layer(self, index: int) -> Layer:
        """Layer `index` with the weights of the plan's basis, float32."""
        prefix = f"model.layers.{index}."
        layer = cast(Layer, copy.deepcopy(self._decoder.model.layers[index]))
        for name, _ in list(layer.named_parameters()):
            path, _, leaf = name.rpartition(".")
            values = to_float(self._weights.read(prefix + name), self._device)
            setattr(layer.get_submodule(path), leaf, nn.Parameter(values, requires_grad=False))
        return layer

    def _group(self, index: int, group: Group, model: Side, rounded: Side) -> Iterator[tuple[str, Encoded]]:
        """Round the matrices of one group and put them into the copy; those written before are taken from there."""
        names = self._names(index, group)
        found: dict[str, Encoded] = {}
        with torch.inference_mode():
            if all(name in self._written.done for name in names):
                found = {name: self._written.read(name) for name in names}
            else:
                found = self._rounded(index, group, names, model, rounded)
            for matrix, name in zip(group.matrices, names, strict=True):
                linear = rounded.layer.get_submodule(matrix)
                linear.weight = nn.Parameter(self._dense(self._by_name[name], found[name]), requires_grad=False)
        for name in names:
            if name not in self._written.done:
                yield name, found[name]

    def _rounded(self, index: int, group: Group, names: list[str], model: Side, rounded: Side) -> dict[str, Encoded]:
        """The group's matrices, those of one format as one: they share their input."""
        tensors = [self._by_name[name] for name in names]
        found = {
            tensor.name: encode(tensor, self._weights, self._device, self._plan.largest_f32_bytes // 2)
            for tensor in tensors
            if not _is_calibrated(tensor)
        }
        by_format: dict[str, list[TensorPlan]] = {}
        for tensor in tensors:
            if tensor.name not in found:
                by_format.setdefault(tensor.format, []).append(tensor)
        if not by_format:
            return found
        (rotation,) = {tensor.input_rotation for some in by_format.values() for tensor in some}
        with _fast_products():
            moments = measure(self._decoder, index, group, rotation, model, rounded, self._batch)
        for form, some in by_format.items():
            w = torch.cat([self._stored(one) for one in some])
            grid = TENSOR_FORMATS[form]
            assert isinstance(grid, GridFormat)
            try:
                wanted = target(w, moments, _TARGET_DAMPING)
                encoded = round_with_feedback(wanted, moments.own, grid, damping=_DAMPING)
            except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
                raise _overflow(some) from error
            if not wanted.isfinite().all():  # what it was rounded to means nothing then
                raise _overflow(some)
            found |= _split(encoded, some)
        return found

    def _stored(self, tensor: TensorPlan) -> Tensor:
        """The model's matrix [N, K] float32 in the stored basis."""
        n_rows, _ = tensor.matrix_shape
        rows = stored_rows(self._weights, tensor.name, tensor.input_rotation, 0, n_rows, self._device)
        if not rows.isfinite().all():
            raise not_finite(tensor.name)
        return rows

    def _dense(self, tensor: TensorPlan, encoded: Encoded) -> Tensor:
        """The matrix [N, K] float32 as the model computes with it."""
        if tensor.is_kept:
            return encoded.parts[""].to(self._device).float()
        on_device = Encoded(
            parts={suffix: part.to(self._device) for suffix, part in encoded.parts.items()},
            parameters=encoded.parameters,
        )
        stored = TENSOR_FORMATS[tensor.format].decode(on_device, tensor.matrix_shape)
        return unrotate(stored, tensor.input_rotation)


def _overflow(tensors: list[TensorPlan]) -> UnsupportedModel:
    return not_calibrated(f"The inputs of {tensors[0].name!r} are so large that their squares are not finite.")


def _split(encoded: Encoded, tensors: list[TensorPlan]) -> dict[str, Encoded]:
    """The matrices that were stacked, each by itself again, on the CPU."""
    sizes = [tensor.shape[0] for tensor in tensors]
    pieces = {suffix: torch.split(part.cpu(), sizes) for suffix, part in encoded.parts.items()}
    return {
        tensor.name: Encoded(
            parts={suffix: pieces[suffix][i].contiguous() for suffix in pieces}, parameters=encoded.parameters
        )
        for i, tensor in enumerate(tensors)
    }
