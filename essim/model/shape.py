"""ModelShape: a transformer as the integers that its decode time and memory depend on."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from essim.errors import InputError
from essim.model.blocks import (
    ATTENDS,
    Count,
    LayerSizes,
    Mixer,
    Mla,
    Mlp,
    Moe,
    Quantised,
    Recurrent,
    WeightPart,
    dtype_bytes,
    split_sizes,
)
from essim.model.matrices import PART_OF, matrices
from essim.model.problems import problems
from essim.text.yaml import Strict

__all__ = ["ATTENDS", "PRESETS", "Count", "Mla", "ModelShape", "Moe", "Recurrent", "dtype_bytes"]

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
    other_layers
        Layers with other numbers of heads or other widths than the model's own.
    quantised, wide
        How weights of a dtype below 8 bits are stored; what stays 16-bit where weights are smaller.
    kv_scale_group, tp
        Elements of quantised KV that share one 16-bit scale; ranks of tensor parallelism.
    """

    name: str = "inline"
    layers: Annotated[int, Field(ge=1, le=10_000)]
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
    other_layers: list[LayerSizes] | None = None
    quantised: Quantised | None = None
    wide: list[WeightPart] | None = None
    kv_scale_group: Count | None = None
    tp: Count = 1

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        for problem in problems(self):
            raise ValueError(problem)
        return self

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
            **split_sizes(
                {key: getattr(self, key) for key in ("heads", "kv_heads", "ffn")}, self.tp
            ),
            "vocab": self.padded_vocab // self.tp,
        }
        if self.other_layers:
            split["other_layers"] = [
                {"layers": other.layers, **split_sizes(other.sizes(), self.tp)}
                for other in self.other_layers
            ]
        if self.moe:
            widths = {"ffn": self.moe.ffn // self.tp, "shared_ffn": self.moe.shared_ffn // self.tp}
            split["moe"] = self.moe.model_dump() | widths
        if self.recurrent:
            sizes = self.recurrent.model_dump()
            split["recurrent"] = {key: -(-size // self.tp) for key, size in sizes.items()}
        return ModelShape(**self.model_dump() | split)

    def parts(self) -> list[ModelShape]:
        """Return the layers as shapes of equal sizes: this one, or one for each size there is."""
        if not self.other_layers:
            return [self]
        others = {layer for other in self.other_layers for layer in other.layers}
        own = [layer for layer in range(self.layers) if layer not in others]
        pairs = [(own, {}), *((other.layers, other.sizes()) for other in self.other_layers)]
        return [self._part(layers, sizes) for layers, sizes in pairs if layers]

    def _part(self, layers: list[int], sizes: dict[str, int]) -> ModelShape:
        mixers, mlps = [self.mixer(i) for i in layers], [self.mlp(i) for i in layers]
        listed = {"layers": len(layers), "mixers": mixers, "mlps": mlps}
        return self.model_copy(update={**sizes, **listed, "other_layers": None})

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
        return matrices(self)[name]

    def matrix_dtype(self, name: str) -> str:
        """Return the dtype of a weight matrix, as `gemm_shape` names it."""
        return "bf16" if PART_OF[name] in (self.wide or ()) else self.weight_dtype

    def _matrix_bytes(self, *names: str) -> int:
        total = 0
        for name in names:
            (n, k), dtype = self.gemm_shape(name), self.matrix_dtype(name)
            stored = self.quantised if dtype == self.weight_dtype else None
            total += stored.matrix_bytes(n, k) if stored else n * k * dtype_bytes(dtype)
        return total

    def kv_bytes_per_token_layer(self) -> int:
        """Bytes that one token takes in one attending layer: its K and V, or its latent."""
        width = self.mla.latent_width if self.mla else 2 * self.kv_width
        scales = width // self.kv_scale_group * _SCALE_BYTES if self.kv_scale_group else 0
        return width * dtype_bytes(self.kv_dtype) + scales

    def kv_bytes_per_token(self) -> int:
        """Bytes that one token takes in all attending layers (131,072 for llama-3.1-8b).

        Each head is counted once, however many ranks hold it; `rank` gives those of one rank.
        """
        return sum(
            sum(map(part.count, ATTENDS)) * part.kv_bytes_per_token_layer() for part in self.parts()
        )

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
        return sum(
            (part.count("full") * cached_tokens + part.count("sliding") * windowed)
            * part.kv_bytes_per_token_layer()
            for part in self.parts()
        )

    def weight_bytes(self) -> int:
        """Bytes of all weights; tied embeddings are stored once, norms and routers are 16-bit.

        Raises
        ------
        InputError
            If layers without attention are of unknown size.
        """
        # Embedding and LM head stay 16-bit in the quantised checkpoints that serving uses.
        wide = self.padded_vocab * self.hidden * (2 - self.tied_embeddings) + self.hidden
        return sum(part._layer_bytes() for part in self.parts()) + wide * self.activation_bytes

    def _layer_bytes(self) -> int:
        """Bytes of the weights of all layers, which are of equal sizes."""
        attending = sum(map(self.count, ATTENDS))
        weights = attending * self._matrix_bytes(*self.attention_gemms())
        weights += self.count("dense") * self._matrix_bytes("gate_up", "down")
        wide = (2 * self.layers - self.count("none")) * self.hidden
        if self.mla:
            wide += attending * (self.mla.kv_rank + (self.mla.q_rank or 0))
        if self.moe:
            experts = self.moe.experts * self._matrix_bytes("expert_gate_up", "expert_down")
            shared = self._matrix_bytes("shared_gate_up", "shared_down")
            weights += self.count("moe") * (experts + shared)
            wide += self.count("moe") * self.moe.experts * self.hidden
        if self.count("recurrent"):
            element = dtype_bytes(self.matrix_dtype("recurrent"))
            weights += self.count("recurrent") * self._recurrent().weights * element
        return weights + wide * self.activation_bytes

    def state_bytes(self) -> int:
        """Bytes of one sequence's recurrent states, the same at every length; raises likewise."""
        return self.count("recurrent") * self._recurrent().state_bytes

    def unknown(self) -> str:
        """Return why the weights and states are not known, or an empty text."""
        count = self.count("recurrent")
        if not count or self.recurrent is not None:
            return ""
        return (
            f"{count} layers of {self.name} have no attention, and the size of what they have "
            "instead is not known"
        )

    def _recurrent(self) -> Recurrent:
        if self.unknown():
            hint = "Give weights and state_bytes of one layer"
            raise InputError(self.unknown(), hint, key="model.recurrent")
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
