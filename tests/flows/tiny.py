"""Words that make the whole cycle run in a minute or two: every stage real, every number small."""

from pathlib import Path

WORLD = ["data.world.documents=400", "data.world.val_documents=60", "data.world.conversations=120"]
SIZES = ["data.world.questions=8", "scale.depth=2", "scale.seq_len=128", "tokenizer.vocab_size=400"]
TRAINING = ["base.steps=6", "base.total_batch_tokens=1024", "base.eval_every=3", "base.eval_tokens=1024"]
TUNING = ["sft.steps=3", "sft.total_batch_tokens=1024", "sft.eval_every=3", "sft.eval_tokens=1024"]
ASKING = ["eval.max_per_task=2", "chat.max_per_task=2", "chat.max_new_tokens=8", "prompts.max_new_tokens=8"]


def words(directory: Path, *more: str) -> list[str]:
    """Hydra overrides for a tiny cycle with its store and caches in `directory`."""
    places = [f"store.root={directory}/runs", f"store.cache_dir={directory}/cache", "flow.retry_seconds=0"]
    return [*WORLD, *SIZES, *TRAINING, *TUNING, *ASKING, "data.allow_repeat=true", *places, *more]
