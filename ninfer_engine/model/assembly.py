"""From a checkpoint's tensors, under the names of transformers, to the decoder's fused weights."""

import torch
from torch import Tensor

from ninfer_engine.model.checkpoint import Checkpoint
from ninfer_engine.model.config import ExpertShape, LayerKind, LinearShape, ModelConfig
from ninfer_engine.model.weights import (
    DecoderWeights,
    DenseWeights,
    ExpertWeights,
    FullWeights,
    LayerWeights,
    LinearWeights,
)


def assemble(config: ModelConfig, checkpoint: Checkpoint) -> DecoderWeights:
    """Fuse a checkpoint's tensors. Raises ModelError, as `checkpoint.take` does, which names the tensor."""
    return _Assembly(config, checkpoint).decoder()


class _Assembly:
    """One checkpoint being read; nothing is kept but what the weights hold."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint) -> None:
        self._config, self._checkpoint = config, checkpoint
        self._take = checkpoint.take

    def decoder(self) -> DecoderWeights:
        config, prefix = self._config, self._config.tensor_prefix
        embed = self._take(f"{prefix}embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = tuple(self._layer(index, kind) for index, kind in enumerate(config.layers))
        final_norm = self._norm(f"{prefix}norm.weight", config.hidden_size)
        if config.tied_embeddings:
            return DecoderWeights(embed, layers, final_norm, embed)
        head = self._take("lm_head.weight", config.vocab_size, config.hidden_size)
        return DecoderWeights(embed, layers, final_norm, head)

    def _layer(self, index: int, kind: LayerKind) -> LayerWeights:
        config, name = self._config, f"{self._config.tensor_prefix}layers.{index}"
        linear = config.linear if kind is LayerKind.LINEAR else None
        experts = config.experts if index in config.expert_layers else None
        return LayerWeights(
            mixer_norm=self._norm(f"{name}.input_layernorm.weight", config.hidden_size),
            mixer=self._linear(f"{name}.linear_attn", linear) if linear else self._full(f"{name}.self_attn"),
            mlp_norm=self._norm(f"{name}.post_attention_layernorm.weight", config.hidden_size),
            feed_forward=self._experts(f"{name}.mlp", experts) if experts
            else self._dense(f"{name}.mlp", config.intermediate_size),
        )

    def _norm(self, name: str, size: int) -> Tensor:
        """A norm's factor in fp32; a centred weight is stored as what is added to one."""
        weight = self._take(name, size).float()
        return 1.0 + weight if self._config.architecture.centred else weight

    def _dense(self, name: str, width: int) -> DenseWeights:
        hidden = self._config.hidden_size
        parts = [self._take(f"{name}.{part}_proj.weight", width, hidden) for part in ("gate", "up")]
        return DenseWeights(torch.cat(parts), self._take(f"{name}.down_proj.weight", hidden, width))

    def _experts(self, name: str, shape: ExpertShape) -> ExpertWeights:
        hidden, count, width = self._config.hidden_size, shape.count, shape.width
        if self._checkpoint.has(f"{name}.experts.gate_up_proj"):
            gate_up = self._take(f"{name}.experts.gate_up_proj", count, 2 * width, hidden)
            down = self._take(f"{name}.experts.down_proj", count, hidden, width)
        else:
            apart = [self._dense(f"{name}.experts.{expert}", width) for expert in range(count)]
            gate_up = torch.stack([expert.gate_up for expert in apart])
            down = torch.stack([expert.down for expert in apart])
        return ExpertWeights(
            router=self._take(f"{name}.gate.weight", count, hidden),
            gate_up=gate_up,
            down=down,
            shared=self._dense(f"{name}.shared_expert", shape.shared_width),
            shared_gate=self._take(f"{name}.shared_expert_gate.weight", 1, hidden),
        )

    def _linear(self, name: str, shape: LinearShape) -> LinearWeights:
        hidden = self._config.hidden_size
        if self._config.architecture.joined:
            parts = self._joined(name, shape)
        else:
            parts = [
                self._take(f"{name}.in_proj_qkv.weight", shape.conv_channels, hidden),
                self._take(f"{name}.in_proj_z.weight", shape.values, hidden),
                self._take(f"{name}.in_proj_b.weight", shape.value_heads, hidden),
                self._take(f"{name}.in_proj_a.weight", shape.value_heads, hidden),
            ]
        conv = self._take(f"{name}.conv1d.weight", shape.conv_channels, 1, shape.conv_width)
        return LinearWeights(
            project=torch.cat(parts),
            conv=conv.squeeze(1).contiguous(),
            neg_decay_scale=-self._take(f"{name}.A_log", shape.value_heads).float().exp(),
            dt_bias=self._take(f"{name}.dt_bias", shape.value_heads).float(),
            norm=self._take(f"{name}.norm.weight", shape.value_dim).float(),
            out=self._take(f"{name}.out_proj.weight", hidden, shape.values),
        )

    def _joined(self, name: str, shape: LinearShape) -> list[Tensor]:
        """q, k, v, z, b, a out of two matrices that hold, key head after key head, that head's rows of each."""
        hidden, keys, group = self._config.hidden_size, shape.key_heads, shape.value_heads // shape.key_heads
        values = group * shape.value_dim
        rows = 2 * shape.keys + 2 * shape.values
        qkvz = self._take(f"{name}.in_proj_qkvz.weight", rows, hidden).view(keys, -1, hidden)
        ba = self._take(f"{name}.in_proj_ba.weight", 2 * shape.value_heads, hidden).view(keys, -1, hidden)
        sizes = [shape.key_dim, shape.key_dim, values, values]
        parts = [*qkvz.split_with_sizes(sizes, 1), *ba.split_with_sizes([group, group], 1)]
        return [part.reshape(-1, hidden) for part in parts]

    def _full(self, name: str) -> FullWeights:
        config = self._config
        hidden, dim, heads, kv_heads = config.hidden_size, config.head_dim, config.heads, config.kv_heads
        if config.architecture.gated:
            # The checkpoint interleaves query and gate head by head; apart, each is one slice of the projection.
            pair = self._take(f"{name}.q_proj.weight", heads * 2 * dim, hidden).view(heads, 2, dim, hidden)
            parts = [pair[:, part].reshape(heads * dim, hidden) for part in (1, 0)]
        else:
            parts = [self._take(f"{name}.q_proj.weight", heads * dim, hidden)]
        parts += [self._take(f"{name}.{part}_proj.weight", kv_heads * dim, hidden) for part in ("k", "v")]
        qk_norm = None
        if config.architecture.qk_norm:
            rows = [self._norm(f"{name}.{part}_norm.weight", dim) for part in ("q", "k")]
            qk_norm = torch.cat((rows[0].expand(heads, dim), rows[1].expand(kv_heads, dim)))
        out = self._take(f"{name}.o_proj.weight", hidden, heads * dim)
        return FullWeights(torch.cat(parts), qk_norm, out)
