"""Arithmetic of a plan: what pretraining takes on the chosen hardware, and what to think of before renting it."""

from dataclasses import asdict, dataclass

from conf.schema import Config, Hardware
from conf.sizing import sized
from model.memory import activation_bytes, state_bytes
from model.recipe import Compute
from model.sizing import filled_mesh

GIB = 2**30


@dataclass(frozen=True)
class Estimate:
    """What one stage is expected to take; None where nothing is known."""

    tokens: int | None = None
    memory_gib: float | None = None  # of one chip
    seconds: float | None = None
    basis: str = ""  # where the time comes from

    def dollars(self, hardware: Hardware, spot: bool) -> float | None:
        """Price of the time on all chips."""
        if self.seconds is None:
            return None
        price = hardware.spot_price if spot else hardware.on_demand_price
        return self.seconds / 3600 * hardware.chips * price


def base_estimate(config: Config) -> Estimate:
    """Pretraining: FLOPs over what the chips deliver at the expected share of their peak."""
    hardware, sizing = config.hardware, sized(config)
    tokens = sizing.iterations * sizing.total_batch_tokens
    memory = memory_gib(config)
    if hardware.peak_flops is None:
        return Estimate(tokens, memory)
    rate = hardware.peak_flops * hardware.chips * hardware.expected_mfu
    return Estimate(
        tokens, memory, tokens * sizing.flops_per_token / rate, f"at {100 * hardware.expected_mfu:.0f} % MFU"
    )


def memory_gib(config: Config) -> float:
    """What one chip holds at the least: its part of the state, and the activations of its smallest micro-batch."""
    chosen, sizing = config.compute, sized(config)
    compute = Compute(compute_dtype=chosen.compute_dtype, param_dtype=chosen.param_dtype, remat=chosen.remat)
    rows = config.base.device_batch_rows or 1
    flash = chosen.attention != "xla" and config.hardware.platform != "cpu"
    activations = rows * config.scale.seq_len * activation_bytes(sizing.config, compute, flash=flash)
    return (state_bytes(sizing.config, compute, **hardware_mesh(config)) + activations) / GIB


def hardware_mesh(config: Config) -> dict[str, int]:
    """The mesh on this hardware, with -1 filled in."""
    mesh = asdict(config.compute.mesh)
    return dict(zip(mesh, filled_mesh(**mesh, devices=config.hardware.chips), strict=True))


def cautions(config: Config) -> list[str]:
    """What wastes money on this hardware with this model, found before it is rented; one sentence each."""
    hardware, sizing = config.hardware, sized(config)
    found: list[str] = []
    if hardware.platform == "cpu":
        return found
    unit, head_dim = hardware.matrix_unit, config.scale.head_dim
    if head_dim % unit:
        found.append(
            f"scale.head_dim={head_dim} fills {head_dim / unit:.0%} of the {unit}×{unit} matrix unit in attention; "
            f"scale.head_dim={unit} was 17 % faster in a published d24 run on v6e."
        )
    if config.compute.compute_dtype == "float32":
        found.append("compute.compute_dtype=float32 runs far below the bf16 peak that MFU is counted against.")
    if config.compute.attention == "xla" and hardware.platform == "tpu":
        found.append("compute.attention=xla keeps whole score matrices; auto takes the splash kernel on TPU.")
    if memory_gib(config) > hardware.hbm_gib:
        found.append(
            f"One row a chip needs {memory_gib(config):.0f} GiB and a chip has {hardware.hbm_gib:.0f}: raise "
            "compute.mesh.fsdp, or set compute.remat=full."
        )
    kv_heads, tensor = sizing.config.n_kv_head, config.compute.mesh.tensor
    if tensor > 1 and kv_heads % tensor:
        found.append(
            f"{kv_heads} KV heads do not divide compute.mesh.tensor={tensor}: K and V projections are replicated on it."
        )
    return found
