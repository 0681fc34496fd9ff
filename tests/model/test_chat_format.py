"""The template is nanochat's, token for token, and what is not of this template is refused with the
reason."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.chat_format import (
    SPECIAL_TOKENS,
    FormatError,
    PromptError,
    check_prompt,
    render,
    render_for_completion,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden/conversations.json").read_text())


class Bytes:
    """A vocabulary of the 256 byte values and the nine special tokens, as the golden file has it."""

    def __init__(self, lacking: str = "") -> None:
        self._special = {name: id for name, id in GOLDEN["special_tokens"].items() if name != lacking}
        self.vocab_size = 265

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def special(self, name: str) -> int:
        return self._special[name]


BYTES = Bytes()
BOS, USER, USER_END, ASSISTANT, ASSISTANT_END, PYTHON, PYTHON_END, OUTPUT, OUTPUT_END = range(256, 265)
HI = list(b"Hi")


def test_golden_conversations() -> None:
    assert list(SPECIAL_TOKENS) == list(GOLDEN["special_tokens"])
    for case in GOLDEN["render"]:
        assert render(case["conversation"], BYTES, case["max_tokens"]) == (case["ids"], case["mask"])
    for case in GOLDEN["render_for_completion"]:
        assert render_for_completion(case["conversation"], BYTES) == case["ids"]


def test_a_prompt_may_end_with_the_user() -> None:
    question = {"messages": [{"role": "user", "content": "Hi"}]}
    assert render_for_completion(question, BYTES) == [BOS, USER, *HI, USER_END, ASSISTANT]


PROMPT = [BOS, USER, *HI, USER_END, ASSISTANT]
REFUSED = {
    "nothing": ([], "empty"),
    "no BOS": (PROMPT[1:], "user_start.* at position 0 where .*bos"),
    "doubled BOS": ([BOS, *PROMPT], "second .*bos.* at position 1"),
    "BOS inside": ([*PROMPT, *HI, ASSISTANT_END, *PROMPT], "second .*bos.* at position 9"),
    "no assistant_start": (PROMPT[:-1], "must end in an open assistant turn"),
    "assistant has answered": ([*PROMPT, *HI, ASSISTANT_END], "must end in an open assistant turn"),
    "assistant has begun": ([*PROMPT, *HI], "text follows the last"),
    "user turn left open": ([BOS, USER, *HI, ASSISTANT], "assistant_start.* at position 4 where .*user_end"),
    "assistant first": ([BOS, ASSISTANT], "where .*user_start"),
    "user twice": ([*PROMPT[:-1], USER, *HI, USER_END, ASSISTANT], "where .*assistant_start"),
    "text between turns": ([*PROMPT[:-1], *HI, ASSISTANT], "ordinary text at position 5"),
    "foreign markers": (
        [BOS, *b"<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"],
        r"'<\|im_start\|>' of another chat template at position 1",
    ),
    "foreign assistant marker": ([*PROMPT[:-1], *b"<|im_start|>assistant"], "another chat template at position 5"),
    "template in plain text": (list(b"<|bos|><|user_start|>Hi<|user_end|>"), "ordinary text at position 0"),
    "foreign id": ([BOS, USER, 265, USER_END, ASSISTANT], "265 at position 2 is outside the vocabulary"),
    "negative id": ([BOS, USER, -1, USER_END, ASSISTANT], "outside the vocabulary"),
    "open tool call": ([*PROMPT, PYTHON, *HI, ASSISTANT_END, USER, USER_END, ASSISTANT], "where .*python_end"),
    "only BOS": ([BOS], "must end in an open assistant turn"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_prompt_is_refused_with_the_reason(name: str) -> None:
    ids, reason = REFUSED[name]
    with pytest.raises(PromptError, match=reason):
        check_prompt(ids, BYTES)


@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_a_vocabulary_without_the_templates_tokens_is_refused(name: str) -> None:
    with pytest.raises(PromptError, match="not in the vocabulary") as error:
        check_prompt(PROMPT, Bytes(lacking=name))
    assert ("stop token" in str(error.value)) == (name == "<|assistant_end|>")


FAULTY = {
    "no messages": [],
    "only a system message": [{"role": "system", "content": "x"}],
    "system before assistant": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "x"}],
    "assistant first": [{"role": "assistant", "content": "x"}],
    "user twice": [{"role": "user", "content": "x"}] * 2,
    "unknown role": [{"role": "tool", "content": "x"}],
    "user in parts": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
    "no content": [{"role": "user"}],
    "unknown part": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "image"}]}],
    "a part that is text": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ["x"]}],
    "a number": [{"role": "user", "content": "x"}, {"role": "assistant", "content": 4}],
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_conversation_of_another_form_is_refused(name: str) -> None:
    with pytest.raises(FormatError):
        render({"messages": FAULTY[name]}, BYTES)


texts = st.one_of(st.text(max_size=20), st.sampled_from(SPECIAL_TOKENS), st.just("<|im_start|>"))
parts = st.lists(
    st.builds(
        lambda kind, text: {"type": kind, "text": text}, st.sampled_from(["text", "python", "python_output"]), texts
    ),
    max_size=4,
)
turns = st.lists(st.tuples(texts, st.one_of(texts, parts)), min_size=1, max_size=3)


@given(turns, st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_rendered_conversation_gives_a_valid_prompt(talk: list, system: bool) -> None:
    messages = [{"role": "system", "content": "Be kind."}] if system else []
    for said, answered in talk:
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answered}]
    ids, mask = render({"messages": messages}, BYTES, None)
    check_prompt(render_for_completion({"messages": messages}, BYTES), BYTES)
    assert len(ids) == len(mask)
    assert set(mask) <= {0, 1}
    # Content is bytes, never a special token: those are as many as the template itself needs.
    kinds = [part["type"] for _, answered in talk if isinstance(answered, list) for part in answered]
    needed = 1 + 4 * len(talk) + 2 * sum(kind != "text" for kind in kinds)
    assert sum(token >= 256 for token in ids) == needed
    assert sum(token == ASSISTANT_END and supervised for token, supervised in zip(ids, mask, strict=True)) == len(talk)
