"""What a model is, as data: a recipe (every number nanochat chose), the shape of one model, and how to compute it.

Nothing here computes on arrays. A new recipe is a new YAML file with these fields; no code asks for its name.
Every value is checked when the object is made: ValueError names the field, its value and what it must be.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")


def _between(owner: Any, low: float, high: float, *names: str) -> None:
    """Raise ValueError for the first named field outside [low, high]; NaN is outside."""
    for name in names:
        value = getattr(owner, name)
        if not low <= value <= high:
            raise ValueError(f"{name} is {value}: it must be between {low:g} and {high:g}")


def _among(owner: Any, name: str, *choices: str) -> None:
    if getattr(owner, name) not in choices:
        raise ValueError(f"{name} is {getattr(owner, name)!r}: it must be one of {', '.join(choices)}")


@dataclass(frozen=True)
class Architecture:
    """Constants of the forward pass."""

    rope_base: float
    qk_scale: float  # q and k are multiplied by this after their norm
    softcap: float  # logits = softcap · tanh(z / softcap)
    short_window_divisor: int  # S windows: seq_len / divisor, rounded to a multiple
    short_window_multiple: int
    short_window_round: Literal["up", "down"]
    value_gate_channels: int
    value_gate_range: float
    smear: bool  # mix the embedding of the token before into each token
    smear_channels: int
    backout: bool  # subtract the middle of the residual stream before the last norm
    mlp_ratio: int
    vocab_multiple: int  # the vocabulary is padded to a multiple of this

    def __post_init__(self) -> None:
        _between(self, 1, 1e9, "rope_base")
        _between(self, 1e-3, 100, "qk_scale", "value_gate_range")
        _between(
            self, 1, 60, "softcap"
        )  # exp(softcap) · vocabulary must stay inside float32: model.loss needs no maximum
        _between(self, 1, 1 << 20, "short_window_divisor", "short_window_multiple", "vocab_multiple")
        _between(self, 1, 4096, "value_gate_channels", "smear_channels", "mlp_ratio")
        _among(self, "short_window_round", "up", "down")


@dataclass(frozen=True)
class Initial:
    """Scales of the initial values; U(−s, s) with s = √(3 / n_embd) unless said otherwise."""

    wte_std: float
    lm_head_std: float
    mlp_in_scale: float  # times U(−s, s)
    value_gate_max: float  # U(0, max)
    resid_start: float  # resid_lambdas fall linearly from start to start − fall at the last layer
    resid_fall: float
    x0_start: float
    x0_fall: float
    smear_gate_max: float  # U(0, max)
    smear_lambda: float
    backout_lambda: float

    def __post_init__(self) -> None:
        _between(self, 0, 10, "wte_std", "lm_head_std", "mlp_in_scale", "value_gate_max", "smear_gate_max")
        _between(
            self,
            -10,
            10,
            "resid_start",
            "resid_fall",
            "x0_start",
            "x0_fall",
            "smear_lambda",
            "backout_lambda",
        )


RATES = ("unembedding_lr", "embedding_lr", "matrix_lr", "scalar_lr", "smear_lr")


@dataclass(frozen=True)
class AdamGroup:
    """One AdamW parameter group; its learning rate is a base rate times a factor."""

    rate: Literal["unembedding_lr", "embedding_lr", "matrix_lr", "scalar_lr", "smear_lr"]
    factor: float
    width_scaled: bool  # times √(width_reference / n_embd)
    batch_scaled: bool  # times √(batch / reference batch)
    beta1: float
    beta2: float
    weight_decay: float

    def __post_init__(self) -> None:
        _among(self, "rate", *RATES)
        _between(self, 0, 100, "factor", "weight_decay")
        _between(self, 0, 0.999999, "beta1", "beta2")


@dataclass(frozen=True)
class Muon:
    """Muon with Polar Express and NorMuon, for every matrix inside the layers."""

    beta2: float
    weight_decay: float  # at the reference horizon and batch; sizing scales it
    equilibrate_rows: bool  # each row to the mean row norm before the iteration
    norm_factor: float  # the iteration starts from X / (norm_factor · ‖X‖_F)
    renormalize: bool  # to ‖X‖_F = √min(m, n) after the iteration

    def __post_init__(self) -> None:
        _between(self, 0, 0.999999, "beta2")
        _between(self, 0, 100, "weight_decay")
        _between(self, 1, 2, "norm_factor")


@dataclass(frozen=True)
class Optimizer:
    """Base learning rates and the parameter groups that use them."""

    unembedding_lr: float
    embedding_lr: float
    matrix_lr: float
    scalar_lr: float
    smear_lr: float
    width_reference: int
    adam_epsilon: float
    lm_head: AdamGroup
    wte: AdamGroup
    value_embeds: AdamGroup
    resid_lambdas: AdamGroup
    x0_lambdas: AdamGroup
    smear_backout: AdamGroup
    muon: Muon

    def __post_init__(self) -> None:
        _between(self, 0, 100, *RATES)
        _between(self, 1, 1 << 20, "width_reference")
        _between(self, 0, 1, "adam_epsilon")


@dataclass(frozen=True)
class Schedule:
    """How rates, Muon's momentum and Muon's decay move over a run; see model.schedules for the formulas."""

    warmup_steps: int
    warmdown_fraction: float
    final_fraction: float
    momentum_start: float
    momentum_peak: float
    momentum_warmup_steps: int
    momentum_final: float  # reached linearly over the warm-down; the peak again if it does not move
    decay: Literal["cosine", "linear"]

    def __post_init__(self) -> None:
        _between(self, 0, 1 << 24, "warmup_steps", "momentum_warmup_steps")
        _between(self, 0, 1, "warmdown_fraction", "final_fraction")
        _between(self, 0, 0.999999, "momentum_start", "momentum_peak", "momentum_final")
        _among(self, "decay", "cosine", "linear")


@dataclass(frozen=True)
class Horizon:
    """How batch and length of a run follow from the model; see model.sizing for the formulas."""

    ratio: float  # target tokens per parameter (inside layers + lm_head)
    reference_depth: int
    reference_batch_tokens: int
    batch_exponent: float

    def __post_init__(self) -> None:
        _between(self, 1e-6, 1e6, "ratio")
        _between(self, 1, 1024, "reference_depth")
        _between(self, 1, 1 << 30, "reference_batch_tokens")
        _between(self, 0, 1, "batch_exponent")


@dataclass(frozen=True)
class Recipe:
    """Everything that distinguishes one generation of nanochat from another. `name` is for people only."""

    name: str
    architecture: Architecture
    initial: Initial
    optimizer: Optimizer
    schedule: Schedule
    sft_schedule: Schedule
    horizon: Horizon

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Recipe:
        """The inverse of to_dict; ValueError names an unknown or missing field by its path."""
        return _build(cls, data, "recipe")


@dataclass(frozen=True)
class GPTConfig:
    """The shape of one model."""

    recipe: Recipe
    vocab_size: int
    seq_len: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    window_pattern: str = "SSSL"

    def __post_init__(self) -> None:
        _between(self, 1, 1 << 24, "vocab_size", "seq_len", "n_layer", "n_head", "n_kv_head", "n_embd")
        if self.n_embd % (2 * self.n_head):
            raise ValueError(f"n_embd is {self.n_embd}: it must be a multiple of 2 · n_head = {2 * self.n_head}")
        if self.n_head % self.n_kv_head:
            raise ValueError(f"n_kv_head is {self.n_kv_head}: it must divide n_head = {self.n_head}")
        if not self.window_pattern or set(self.window_pattern) - set("SL"):
            raise ValueError(f"window_pattern is {self.window_pattern!r}: it must be made of S and L")
        arch = self.recipe.architecture
        widest = max(arch.value_gate_channels, arch.smear_channels if arch.smear else 0)
        if self.n_embd < widest:
            raise ValueError(f"n_embd is {self.n_embd}: the recipe's gates read {widest} channels")

    @property
    def head_dim(self) -> int:
        return self.n_embd // self.n_head

    @property
    def padded_vocab_size(self) -> int:
        multiple = self.recipe.architecture.vocab_multiple
        return -(-self.vocab_size // multiple) * multiple

    @property
    def windows(self) -> tuple[int, ...]:
        """For each layer, how many tokens before itself a token sees. The last layer is always long."""
        arch = self.recipe.architecture
        unit = arch.short_window_divisor * arch.short_window_multiple
        rounds = math.ceil if arch.short_window_round == "up" else math.floor
        sizes = {"S": rounds(self.seq_len / unit) * arch.short_window_multiple, "L": self.seq_len}
        tiled = [self.window_pattern[i % len(self.window_pattern)] for i in range(self.n_layer)]
        return tuple(sizes[letter] for letter in (*tiled[:-1], "L"))

    def has_value_embed(self, layer: int) -> bool:
        """Every second layer, so that the last one is among them."""
        return layer % 2 == (self.n_layer - 1) % 2

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GPTConfig:
        """The inverse of to_dict; ValueError names an unknown or missing field by its path."""
        return _build(cls, data, "model")


@dataclass(frozen=True)
class Compute:
    """How to compute it: nothing here changes the mathematics, only precision, memory and speed."""

    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    param_dtype: Literal["float32"] = "float32"  # bfloat16 would round most updates away
    polar_dtype: Literal["float32", "bfloat16"] = "float32"  # Muon's iteration; bfloat16 on accelerators
    attention: Literal["auto", "xla", "splash", "cudnn"] = "auto"
    loss_chunk: int = 512  # tokens per device whose logits exist at the same time
    remat: Literal["none", "full", "dots"] = "none"
    layer_loop: Literal["unrolled", "scan"] = "unrolled"

    def __post_init__(self) -> None:
        for name in ("compute_dtype", "polar_dtype"):
            _among(self, name, "float32", "bfloat16")
        _among(self, "param_dtype", "float32")
        _among(self, "attention", "auto", "xla", "splash", "cudnn")
        _among(self, "remat", "none", "full", "dots")
        _among(self, "layer_loop", "unrolled", "scan")
        _between(self, 1, 1 << 24, "loss_chunk")


def _build(cls: type[T], data: Any, path: str) -> T:
    """A frozen dataclass from nested plain data, numbers coerced to the declared int or float."""
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if not isinstance(data, dict):
        raise ValueError(f"{path} is {data!r}: it must be a mapping with the fields {', '.join(fields)}")
    for name in data.keys() - fields.keys():
        raise ValueError(f"{path}.{name} is not a field; the fields are {', '.join(fields)}")
    required = {name for name, f in fields.items() if f.default is dataclasses.MISSING}
    for name in sorted(required - data.keys()):
        raise ValueError(f"{path}.{name} is missing")
    return cls(**{name: _value(hints[name], value, f"{path}.{name}") for name, value in data.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    expected = hint if isinstance(hint, type) and not isinstance(hint, types.GenericAlias) else str
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise ValueError(f"{path} is {value!r}: it must be of type {expected.__name__}")
    return value
