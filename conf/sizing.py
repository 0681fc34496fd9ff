"""The model and the run that a config's depth gives, and what of a config cannot be built."""

from conf.errors import ConfigError
from conf.schema import Config
from model.sizing import Sizing, mesh_sizes, size


def sized(config: Config, vocab_size: int | None = None) -> Sizing:
    """`model.sizing.size` with the fields of the config; `vocab_size` of the trained tokenizer, if it is there.

    Raises ConfigError for a shape that no model has.
    """
    scale = config.scale
    try:
        return size(
            config.recipe,  # type: ignore[arg-type]
            scale.depth,
            vocab_size=vocab_size or config.tokenizer.vocab_size,
            seq_len=scale.seq_len,
            ratio=scale.ratio,
            aspect=scale.aspect,
            head_dim=scale.head_dim,
            n_kv_head=scale.n_kv_head,
            window_pattern=scale.window_pattern,
            total_batch_tokens=config.base.total_batch_tokens,
            iterations=config.base.steps,
        )
    except ValueError as error:
        raise ConfigError(f"scale gives no model: {error}.") from error


def rows_in_batch(total_batch_tokens: int, seq_len: int) -> int:
    """Rows of a batch; raises ConfigError unless its tokens make whole rows."""
    rows, rest = divmod(total_batch_tokens, seq_len)
    if rest or rows == 0:
        below = f"{rows * seq_len} or " if rows else ""
        raise ConfigError(
            f"total_batch_tokens={total_batch_tokens} is not a multiple of seq_len={seq_len}: take "
            f"{below}{(rows + 1) * seq_len}."
        )
    return rows


def check(config: Config) -> Config:
    """The config itself; raises ConfigError where training would refuse it, hours later, whatever the data."""
    rows_in_batch(sized(config).total_batch_tokens, config.scale.seq_len)
    if config.sft.total_batch_tokens is not None:
        rows_in_batch(config.sft.total_batch_tokens, config.scale.seq_len)
    mesh, hardware = config.compute.mesh, config.hardware
    if hardware.platform != "cpu":  # a CPU can emulate any number of devices
        try:
            mesh_sizes(mesh.data, mesh.fsdp, mesh.tensor, hardware.chips)
        except ValueError as error:
            raise ConfigError(f"hardware={hardware.name}: {error}.") from error
    return config
