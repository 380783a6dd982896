"""ModelShape: a transformer as the integers that its decode time and memory depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import model_validator

from essim.errors import InputError
from essim.model.blocks import Count, Mla, Moe, Recurrent, dtype_bytes
from essim.text.yaml import Strict

__all__ = ["PRESETS", "Count", "Mla", "ModelShape", "Moe", "Recurrent", "dtype_bytes"]

Mixer = Literal["full", "sliding", "recurrent", "none"]
Mlp = Literal["dense", "moe", "none"]

# Mixers that keep K and V, and so have an attention op in the step.
ATTENDS: tuple[Mixer, ...] = ("full", "sliding")
_SCALE_BYTES = 2


class ModelShape(Strict):
    """A decoder of attention and gated-MLP layers; bytes, FLOPs and GEMMs follow from its fields.

    Left out, together under 1 %: biases, position tables, output gates, norms of single heads.

    Attributes
    ----------
    mixers
        What mixes the tokens of each layer; absent, all are ``full`` attention. The same list
        decides which layers hold KV and which have an attention op.
    window_tokens
        What ``sliding`` layers attend to and keep, the current token included.
    mlps
        The MLP of each layer; absent, all are ``moe`` if there is one, else ``dense``.
    kv_scale_group, tp
        Elements of quantised KV that share one 16-bit scale; ranks of tensor parallelism.
    """

    name: str = "inline"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: Count
    vocab: Count
    max_context_tokens: Count = 131072
    tied_embeddings: bool = False
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"
    gated_mlp: bool = True
    mixers: list[Mixer] | None = None
    window_tokens: Count | None = None
    mlps: list[Mlp] | None = None
    mla: Mla | None = None
    moe: Moe | None = None
    recurrent: Recurrent | None = None
    kv_scale_group: Count | None = None
    tp: Count = 1

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        dtype_bytes(self.weight_dtype)
        dtype_bytes(self.kv_dtype)
        for problem in (*self._attention_problems(), *self._layer_problems(), *self._tp_problems()):
            raise ValueError(problem)
        return self

    def _attention_problems(self) -> Iterator[str]:
        mla, group = self.mla, self.kv_scale_group
        if self.heads % self.kv_heads:
            yield f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
        if mla and (self.head_dim, self.kv_heads) != (mla.nope_dim + mla.rope_dim, self.heads):
            yield "under mla, head_dim must be nope_dim + rope_dim, and kv_heads equal heads"
        if group and dtype_bytes(self.kv_dtype) > 1:
            yield f"kv_scale_group needs a quantised kv_dtype, not {self.kv_dtype}"
        cached = mla.latent_width if mla else self.head_dim
        if group and cached % group:
            yield f"kv_scale_group ({group}) must divide the {cached} elements cached for a head"

    def _layer_problems(self) -> Iterator[str]:
        for key, listed in (("mixers", self.mixers), ("mlps", self.mlps)):
            if listed is not None and len(listed) != self.layers:
                yield f"{key} lists {len(listed)} layers, not {self.layers}"
                return
        if not any(map(self.count, ATTENDS)):
            yield "mixers: no layer attends, so there is no KV cache"
        if self.count("sliding") and (self.window_tokens is None or self.mla):
            yield "sliding layers need window_tokens, and no mla"
        if self.count("moe") and self.moe is None:
            yield "mlps lists moe layers, but moe is not given"

    def _tp_problems(self) -> Iterator[str]:
        whole = {"heads": self.heads, "ffn": self.ffn}
        if self.moe:
            whole |= {"moe.ffn": self.moe.ffn, "moe.shared_ffn": self.moe.shared_ffn}
        for key, number in whole.items():
            if number % self.tp:
                yield f"{key} ({number}) must be a multiple of tp ({self.tp})"
        if self.kv_heads % self.tp and self.tp % self.kv_heads:
            yield f"tp ({self.tp}) must divide kv_heads ({self.kv_heads}) or be its multiple"

    def mixer(self, layer: int) -> Mixer:
        """Return what mixes the tokens in a layer."""
        return self.mixers[layer] if self.mixers else "full"

    def mlp(self, layer: int) -> Mlp:
        """Return the kind of a layer's MLP."""
        every: Mlp = "moe" if self.moe else "dense"
        return self.mlps[layer] if self.mlps else every

    def count(self, kind: Mixer | Mlp) -> int:
        """Return how many layers have this mixer or MLP; ``none`` counts both."""
        mixers = self.mixers or [self.mixer(0)] * self.layers
        mlps = self.mlps or [self.mlp(0)] * self.layers
        return [*mixers, *mlps].count(kind)

    def full_layers(self) -> list[int]:
        """Return the layers that attend to the whole cache: those a selector may route."""
        return [layer for layer in range(self.layers) if self.mixer(layer) == "full"]

    def rank(self) -> ModelShape:
        """Return what one tensor-parallel rank holds, as a shape with ``tp: 1``.

        Heads, MLP widths and the (padded) vocabulary are split; KV heads are copied where there
        are fewer than ranks, and a latent is whole on every rank.
        """
        if self.tp == 1:
            return self
        split: dict[str, Any] = {
            "tp": 1,
            "heads": self.heads // self.tp,
            "kv_heads": max(1, self.kv_heads // self.tp),
            "ffn": self.ffn // self.tp,
            "vocab": self.padded_vocab // self.tp,
        }
        if self.moe:
            widths = {"ffn": self.moe.ffn // self.tp, "shared_ffn": self.moe.shared_ffn // self.tp}
            split["moe"] = self.moe.model_dump() | widths
        if self.recurrent:
            sizes = self.recurrent.model_dump()
            split["recurrent"] = {key: -(-size // self.tp) for key, size in sizes.items()}
        return ModelShape(**self.model_dump() | split)

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding and the LM head: a multiple of `tp`."""
        return -(-self.vocab // self.tp) * self.tp

    @property
    def q_width(self) -> int:
        """Width of all query heads together, H*D."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all KV heads together, G*D (of K alone, or of V alone)."""
        return self.kv_heads * self.head_dim

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation element: 16-bit, whatever the weights are stored in."""
        return 2

    def attention_gemms(self) -> tuple[str, ...]:
        """Return the weight matrices of one attention layer, as `gemm_shape` names them."""
        if self.mla is None:
            return ("qkv", "o")
        return ("qkv", "q_b", "kv_b", "o") if self.mla.q_rank else ("qkv", "kv_b", "o")

    def gemm_shape(self, name: str) -> tuple[int, int]:
        """Return (n, k) of a weight matrix: n outputs, k inputs.

        Parameters
        ----------
        name
            ``qkv``, ``o``, ``gate_up``, ``down`` or ``head`` (the LM head). Under MLA ``qkv`` makes
            the compressed query and the latent, and ``q_b`` and ``kv_b`` expand them. Of one
            expert: ``expert_gate_up`` and ``expert_down``; of the shared ones ``shared_...``.
        """
        wide = 1 + self.gated_mlp
        shapes = {
            "qkv": (self.q_width + 2 * self.kv_width, self.hidden),
            "o": (self.hidden, self.q_width),
            "gate_up": (wide * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
            "head": (self.padded_vocab, self.hidden),
        }
        if self.mla:
            queries = self.mla.q_rank or self.q_width
            shapes |= {
                "qkv": (queries + self.mla.latent_width, self.hidden),
                "q_b": (self.q_width, self.mla.q_rank or 0),
                "kv_b": (self.heads * (self.mla.nope_dim + self.mla.v_dim), self.mla.kv_rank),
                "o": (self.hidden, self.heads * self.mla.v_dim),
            }
        if self.moe:
            shapes |= {
                "router": (self.moe.experts, self.hidden),
                "expert_gate_up": (wide * self.moe.ffn, self.hidden),
                "expert_down": (self.hidden, self.moe.ffn),
                "shared_gate_up": (wide * self.moe.shared_ffn, self.hidden),
                "shared_down": (self.hidden, self.moe.shared_ffn),
            }
        return shapes[name]

    def _elements(self, *names: str) -> int:
        return sum(n * k for n, k in map(self.gemm_shape, names))

    def kv_bytes_per_token_layer(self) -> int:
        """Bytes that one token takes in one attending layer: its K and V, or its latent."""
        width = self.mla.latent_width if self.mla else 2 * self.kv_width
        scales = width // self.kv_scale_group * _SCALE_BYTES if self.kv_scale_group else 0
        return width * dtype_bytes(self.kv_dtype) + scales

    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in all attending layers (131,072 for llama-3.1-8b).

        Each head is counted once, however many ranks hold it; `rank` gives those of one rank.
        """
        return sum(map(self.count, ATTENDS)) * self.kv_bytes_per_token_layer()

    def kv_bytes(self, cached_tokens: int, sequence_tokens: int) -> int:
        """Bytes of one sequence's KV cache.

        Parameters
        ----------
        cached_tokens
            Token slots of a layer with full attention.
        sequence_tokens
            Token slots of everything seen, of which a sliding layer keeps its window.
        """
        windowed = min(sequence_tokens, self.window_tokens or 0)
        held = self.count("full") * cached_tokens + self.count("sliding") * windowed
        return held * self.kv_bytes_per_token_layer()

    def weight_bytes(self) -> int:
        """Bytes of all weights; tied embeddings are stored once, norms and routers are 16-bit.

        Raises
        ------
        InputError
            If layers without attention are of unknown size.
        """
        attending = sum(map(self.count, ATTENDS))
        weights = attending * self._elements(*self.attention_gemms())
        weights += self.count("dense") * self._elements("gate_up", "down")
        # Embedding and LM head stay 16-bit in the quantised checkpoints that serving uses.
        wide = self.padded_vocab * self.hidden * (2 - self.tied_embeddings)
        wide += (2 * self.layers - self.count("none") + 1) * self.hidden
        if self.mla:
            wide += attending * (self.mla.kv_rank + (self.mla.q_rank or 0))
        if self.moe:
            experts = self.moe.experts * self._elements("expert_gate_up", "expert_down")
            shared = self._elements("shared_gate_up", "shared_down")
            weights += self.count("moe") * (experts + shared)
            wide += self.count("moe") * self._elements("router")
        weights += self.count("recurrent") * self._recurrent().weights
        return weights * dtype_bytes(self.weight_dtype) + wide * self.activation_bytes

    def state_bytes(self) -> int:
        """Bytes of one sequence's recurrent states, the same at every length; raises likewise."""
        return self.count("recurrent") * self._recurrent().state_bytes

    def _recurrent(self) -> Recurrent:
        if self.count("recurrent") and self.recurrent is None:
            raise InputError(
                f"{self.count('recurrent')} layers of {self.name} have no attention, and the size "
                "of what they have instead is not known",
                "Give weights and state_bytes of one layer",
                key="model.recurrent",
            )
        return self.recurrent or Recurrent()


_INTEGERS = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")


def _preset(name: str, context: int, *integers: int, tied: bool = False) -> ModelShape:
    fields: dict[str, Any] = dict(zip(_INTEGERS, integers, strict=True))
    return ModelShape(name=name, max_context_tokens=context, tied_embeddings=tied, **fields)


# Integers of the published config.json files.
PRESETS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _preset("llama-3.1-8b", 131072, 32, 4096, 32, 8, 128, 14336, 128256),
        _preset("llama-3-8b", 8192, 32, 4096, 32, 8, 128, 14336, 128256),
        _preset("llama-3.1-70b", 131072, 80, 8192, 64, 8, 128, 28672, 128256),
        _preset("mistral-7b-v0.2", 32768, 32, 4096, 32, 8, 128, 14336, 32000),
        _preset("qwen2.5-7b", 131072, 28, 3584, 28, 4, 128, 18944, 152064),
        _preset("qwen2.5-32b", 131072, 64, 5120, 40, 8, 128, 27648, 152064),
        _preset("smollm2-135m", 8192, 30, 576, 9, 3, 64, 1536, 49152, tied=True),
    )
}
