"""The model and the run that a config's depth gives."""

from conf.schema import Config
from model.sizing import Sizing, size


def sized(config: Config, vocab_size: int | None = None) -> Sizing:
    """`model.sizing.size` with the fields of the config; `vocab_size` of the trained tokenizer, if it is there."""
    scale = config.scale
    return size(
        config.recipe,
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
