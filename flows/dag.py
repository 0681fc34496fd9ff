"""The cycle as data flow: which stage feeds which. `cycle` runs it, `plan` only looks."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

Handle = TypeVar("Handle")


class RunStage(Protocol[Handle]):
    """Runs, or plans, one stage; `label` tells apart two runs of a stage on different inputs."""

    def __call__(self, stage: str, /, *, label: str = "", **inputs: Handle) -> Handle: ...


def dag(stage: Callable[..., Any]) -> Mapping[str, Any]:
    """Call `stage` once for every node, in an order in which inputs come first; returns the handles by label."""
    corpus = stage("corpus")
    tokenizer = stage("tokenizer", corpus=corpus)
    shards = stage("shards", corpus=corpus, tokenizer=tokenizer)
    base = stage("base", shards=shards, tokenizer=tokenizer)
    core_base = stage("core", label="core_base", model=base, tokenizer=tokenizer)

    conversations = stage("conversations", tokenizer=tokenizer)
    sft = stage("sft", base=base, conversations=conversations, tokenizer=tokenizer)
    core_sft = stage("core", label="core_sft", model=sft, tokenizer=tokenizer)
    chat_base = stage("chat", label="chat_base", model=base, tokenizer=tokenizer)
    chat_sft = stage("chat", label="chat_sft", model=sft, tokenizer=tokenizer)
    prompts = stage("prompts", base=base, sft=sft, tokenizer=tokenizer)

    scores = {"core_base": core_base, "core_sft": core_sft, "chat_base": chat_base, "chat_sft": chat_sft}
    export = stage("export", model=sft, tokenizer=tokenizer, core=core_sft, chat=chat_sft)
    report = stage(
        "report", corpus=corpus, tokenizer=tokenizer, shards=shards, base=base, conversations=conversations, sft=sft,
        prompts=prompts, **scores,
    )  # fmt: skip
    return {
        "corpus": corpus, "tokenizer": tokenizer, "shards": shards, "base": base, "conversations": conversations,
        "sft": sft, "prompts": prompts, "export": export, "report": report, **scores,
    }  # fmt: skip
