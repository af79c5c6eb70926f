"""The EAGLE-3 head as a module (arXiv:2503.01840): one decoder layer that guesses the token after the next.

Row i joins the target's hidden states at position i with the embedding of the token at i + 1, and guesses the token at
i + 2. Guessing on, the head takes its own state in place of the target's. It computes that in two forms: row after row
over a cache (drafting), and all rows at once, several steps deep (training). It knows no files and no target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from runner.backends.native.blocks import Attention, Checkpointed, Embedding, GatedMlp, Mixing, Pass, RmsNorm, go_on
from runner.backends.native.heads.eagle3_config import Eagle3Config
from runner.backends.native.heads.rotary import RotaryRows
from runner.backends.native.kv_cache import KvCache
from runner.backends.native.linear import Linear
from runner.model_config import RopeName

_Rows = tuple[Tensor, Tensor]
"""Keys and values of rows, [..., G, T, D] each."""


@dataclass(frozen=True)
class _Unchecked:
    checkpoint: Callable[[], None] = go_on


class Eagle3Layer(nn.Module):
    """x + attention(join(norm(embedding), norm(x))), then x + mlp(norm(x))."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        layer = config.layer
        self.is_normed_residual = config.norm_before_residual
        self.hidden_norm = RmsNorm(layer.hidden_size, layer.rms_norm_eps)
        self.input_layernorm = RmsNorm(layer.hidden_size, layer.rms_norm_eps)
        self.self_attn = Attention(
            layer,
            bias=layer.attention_bias,
            output_bias=layer.attention_output_bias,
            norm=layer.qk_norm,
            window=layer.window(0),
            in_features=2 * layer.hidden_size,
        )
        self.post_attention_layernorm = RmsNorm(layer.hidden_size, layer.rms_norm_eps)
        self.mlp = GatedMlp(layer, bias=layer.mlp_bias)

    def joined(self, x: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads, [..., T, 2 * hidden], and the residual."""
        normed = self.hidden_norm(x)
        joined = torch.cat((self.input_layernorm(embeddings), normed), dim=-1)
        return joined, normed if self.is_normed_residual else x

    def finished(self, residual: Tensor, mixed: Tensor, run: Checkpointed) -> Tensor:
        """The layer's output, from its residual and what attention adds to it."""
        x = residual + mixed
        return x + self.mlp(self.post_attention_layernorm(x), run)  # type: ignore[no-any-return]


class Eagle3Head(nn.Module):
    """Parameters have the names of public checkpoints, and are uninitialized until `initialize` or the loader.

    embed_tokens: the head's own embeddings, None where it reads the target's. d2t: a draft id's distance to the
    target's id, [draft vocabulary] int64; t2d: which of the target's ids are drafted, [V] bool.
    """

    d2t: Tensor
    t2d: Tensor

    def __init__(self, config: Eagle3Config, *, has_embeddings: bool = False) -> None:
        super().__init__()
        layer = config.layer
        joined = config.num_captured * config.target_hidden_size
        self.config = config
        self.embed_tokens = Embedding.of(layer) if has_embeddings else None
        norms = [RmsNorm(config.target_hidden_size, layer.rms_norm_eps) for _ in range(config.num_captured)]
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.input_norm = RmsNorm(joined, layer.rms_norm_eps) if config.norm_before_fc else None
        self.fc = Linear(joined, layer.hidden_size)
        self.midlayer = Eagle3Layer(config)
        self.norm = RmsNorm(layer.hidden_size, layer.rms_norm_eps)
        self.lm_head = Linear(layer.hidden_size, config.draft_vocab_size)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(layer.vocab_size, dtype=torch.bool))
        self._rotary = RotaryRows(layer.ropes["global"], layer.max_position_embeddings)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.parameters(), *self.buffers()))

    @property
    def target_ids(self) -> Tensor:
        """The target's id of each draft id, [draft vocabulary] int64, ascending in all that we write."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def set_vocabulary(self, target_ids: Tensor) -> None:
        """Draft these ids of the target's, [draft vocabulary] int64, ascending."""
        assert len(target_ids) == len(self.d2t)
        self.d2t.copy_(target_ids - torch.arange(len(target_ids), device=target_ids.device))
        self.t2d.zero_()
        self.t2d[target_ids.to(self.t2d.device)] = True

    def initialize(self, generator: torch.Generator, std: float = 0.02) -> None:
        """Random matrices and neutral norms, to train from. The vocabulary is the first ids until it is set."""
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 1:
                    parameter.fill_(1.0)
                else:
                    parameter.normal_(0.0, std, generator=generator)
            for name, bias in self.named_parameters():
                if name.endswith(".bias"):
                    bias.zero_()
        self.set_vocabulary(torch.arange(len(self.d2t), device=self.d2t.device))

    def fuse(self, captured: Tensor) -> Tensor:
        """The captured states of each position, side by side, [..., T, num_captured * target_hidden], as one state
        [..., T, hidden]."""
        if self.fc_norm is not None:
            parts = captured.chunk(len(self.fc_norm), dim=-1)
            captured = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        if self.input_norm is not None:
            captured = self.input_norm(captured)
        return self.fc(captured)  # type: ignore[no-any-return]

    def extend(self, states: Tensor, embeddings: Tensor, cache: KvCache) -> Tensor:
        """Rows after those in `cache` (of one layer), which holds them then: drafting.

        states [T, hidden]: `fuse` of what was captured at their positions, or what this gave for the row before.
        embeddings [T, hidden]: of the tokens one position further on. Gives what a next step takes, [T, hidden].
        """
        n_rows, start = len(states), cache.length
        cache.reserve(start + n_rows)
        given = self.computed(states, embeddings, Pass(cache, start, self.rotations(start, n_rows), go_on))
        cache.advance(n_rows)
        return given

    def rotations(self, start: int | Tensor, n_rows: int) -> dict[RopeName, tuple[Tensor, Tensor]]:
        """Those of rows from `start` on; see RotaryRows."""
        return {"global": self._rotary(start, n_rows, self.fc.weight.device)}

    def computed(self, states: Tensor, embeddings: Tensor, run: Mixing) -> Tensor:
        """What `extend` gives, in a pass that keeps the rows."""
        layer = self.midlayer
        joined, residual = layer.joined(states, embeddings)
        return self._fed_back(layer.finished(residual, layer.self_attn(joined, 0, run), run))

    def unroll(self, captured: Tensor, embeddings: Tensor, n_steps: int) -> Iterator[Tensor]:
        """All rows of whole sequences at once, `n_steps` deep: training ("training-time test").

        captured: [B, T, num_captured * target_hidden]. embeddings: of the tokens at the same positions,
        [B, T, hidden]. Step s gives states [B, T - 1 - s, hidden] for `logits`: row i guesses the token at i + 2 + s,
        so its label is the target's output at position i + 1 + s. In it a row takes its own state of step s - 1 and
        the true token at i + 1 + s, and sees what it would in drafting: the rows up to i of step 0, and of every later
        step its own alone.
        """
        states = self.fuse(captured)
        length = states.shape[1]
        chain: list[_Rows] = []
        for step in range(min(n_steps, length - 1)):
            n_rows = length - 1 - step
            rotation = self._rotary(step, n_rows, states.device)
            layer = self.midlayer
            joined, residual = layer.joined(states[:, :n_rows], embeddings[:, 1 + step :])
            q, k, v, _ = layer.self_attn.heads(joined, *rotation)
            chain = [(keys[..., :n_rows, :], values[..., :n_rows, :]) for keys, values in (*chain, (k, v))]
            mixed = _attend_chain(q, chain, layer.self_attn.scale)
            x = layer.finished(residual, layer.self_attn.output(mixed), _Unchecked())
            states = self._fed_back(x)
            yield states

    def logits(self, states: Tensor) -> Tensor:
        """Over the draft vocabulary, [..., draft vocabulary] float32, of states that `extend` or `unroll` gave."""
        return self.lm_head(states if self.config.norm_output else self.norm(states)).float()  # type: ignore[no-any-return]

    def _fed_back(self, x: Tensor) -> Tensor:
        return self.norm(x) if self.config.norm_output else x


def _attend_chain(q: Tensor, chain: list[_Rows], scale: float) -> Tensor:
    """Each row attends causally to the first of the chain, and in each further one to its own row.

    q: [B, H, T, D]; the chain's keys and values [B, G, T, D]. Returns [B, H, T, D]; the softmax is float32.
    """
    (keys, values), *own = chain
    grouped = q.reshape(*keys.shape[:2], -1, *q.shape[2:]) * scale  # [B, G, H / G, T, D]
    scores = grouped @ keys.unsqueeze(2).transpose(-2, -1)
    n_rows = q.shape[-2]
    hidden = torch.ones(n_rows, n_rows, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(hidden, -torch.inf)
    of_own = [(grouped * k.unsqueeze(2)).sum(-1, keepdim=True) for k, _ in own]
    weights = functional.softmax(torch.cat((scores, *of_own), dim=-1), dim=-1, dtype=torch.float32).to(q.dtype)
    mixed = weights[..., :n_rows] @ values.unsqueeze(2)
    for index, (_, v) in enumerate(own):
        mixed = mixed + weights[..., n_rows + index, None] * v.unsqueeze(2)
    return mixed.flatten(1, 2)
