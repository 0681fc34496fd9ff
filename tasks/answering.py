"""A chat model that answers: the template, the check of the prompt, the calculator and the engine in one
place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from model.chat_format import (
    ASSISTANT_END,
    BOS,
    OUTPUT_END,
    OUTPUT_START,
    PYTHON_END,
    PYTHON_START,
    Conversation,
    PromptError,
    check_prompt,
    render_for_completion,
)
from model.generate import Engine, Tool
from tasks.calculator import calculate
from tasks.judges import Answer
from tasks.stage import InputError
from tasks.store.artifact import Artifact
from tasks.tokenizer import Tokenizer
from tasks.training.placement import Placement
from tasks.training.planning import make_compute
from tasks.training.weights_io import load_model


@dataclass(frozen=True)
class Answerer:
    """A model with its tokenizer."""

    engine: Engine
    tokenizer: Tokenizer

    @classmethod
    def of(cls, model: Artifact, tokenizer: Tokenizer, compute: Any) -> Answerer:
        """The model of an artifact, on the devices of `config.compute`; InputError where the two do not
        fit."""
        params, shape = load_model(model)
        if shape.vocab_size != tokenizer.vocab_size:
            raise InputError(
                f"{model!r} has a vocabulary of {shape.vocab_size} and the tokenizer one of {tokenizer.vocab_size}: "
                "evaluate a model with the tokenizer that it was trained with."
            )
        placement = Placement.choose(shape, compute.mesh)
        return cls(Engine(params, shape, make_compute(compute), placement.mesh), tokenizer)

    @property
    def context(self) -> int:
        """Tokens that the model was trained on at a time."""
        return self.engine.config.seq_len

    def prompt(self, conversation: Conversation) -> list[int]:
        """The checked prompt that asks for the next assistant turn; a turn that is there already is left
        out."""
        ids = render_for_completion(conversation, self.tokenizer)
        try:
            check_prompt(ids, self.tokenizer)
        except PromptError as error:
            raise InputError(f"A prompt was not sent to the model: {error}.") from error
        return ids

    def letters(self, prompts: Sequence[list[int]], letters: Sequence[tuple[str, ...]]) -> list[dict[str, float]]:
        """For each prompt the logit of each of its letters as the first token of the answer."""
        logits = self.engine.next_logits(prompts)
        return [
            {letter: float(row[self._letter(letter)]) for letter in own}
            for row, own in zip(np.asarray(logits), letters, strict=True)
        ]

    def texts(
        self, prompts: Sequence[list[int]], *, between: Callable[[], None] | None = None, **settings: Any
    ) -> list[list[tuple[Answer, int]]]:
        """For each prompt the answers with their number of tokens; `settings` are those of
        `Engine.generate`."""
        stop = [self.tokenizer.special(ASSISTANT_END), self.tokenizer.special(BOS)]
        completions = self.engine.generate(prompts, stop=stop, tool=self._calculator(), between=between, **settings)
        return [
            [(Answer(self.tokenizer.decode(one.tokens), one.stopped), len(one.tokens)) for one in samples]
            for samples in completions
        ]

    def _letter(self, letter: str) -> int:
        ids = self.tokenizer.encode(letter)
        if len(ids) != 1:
            raise InputError(f"The letter {letter!r} is {len(ids)} tokens: a choice must be a single one.")
        return ids[0]

    def _calculator(self) -> Tool:
        def run(ids: list[int]) -> list[int] | None:
            result = calculate(self.tokenizer.decode(ids))
            return None if result is None else self.tokenizer.encode(result)

        start, end, out, out_end = map(self.tokenizer.special, (PYTHON_START, PYTHON_END, OUTPUT_START, OUTPUT_END))
        return Tool(start, end, out, out_end, run)
