"""The one chat template of Encore: SFT rows, chat evaluation, judged prompts and sampling render through it.

    <|bos|> ( <|user_start|> text <|user_end|> <|assistant_start|> parts <|assistant_end|> )*

A part of an answer is text, a tool call `<|python_start|> … <|python_end|>` or a tool's result
`<|output_start|> … <|output_end|>`. The loss mask is 1 on what the assistant has to produce itself: its text,
its tool calls with both of their markers, and the closing `<|assistant_end|>`; never on the result of a tool.
A system message goes in front of the first user message, two newlines between them. All of it equals
nanochat's, token for token (tests/golden/conversations.json).

Text between two special tokens is encoded in one piece, and only ever as ordinary text: special ids come from
`tokenizer.special(name)`, so a message that spells out `<|assistant_end|>` stays characters.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, NoReturn, Protocol

BOS = "<|bos|>"
USER_START, USER_END = "<|user_start|>", "<|user_end|>"
ASSISTANT_START, ASSISTANT_END = "<|assistant_start|>", "<|assistant_end|>"
PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
OUTPUT_START, OUTPUT_END = "<|output_start|>", "<|output_end|>"

SPECIAL_TOKENS = (
    BOS,
    USER_START,
    USER_END,
    ASSISTANT_START,
    ASSISTANT_END,
    PYTHON_START,
    PYTHON_END,
    OUTPUT_START,
    OUTPUT_END,
)

# Turn markers of other chat templates; only used to name the mistake in an error.
FOREIGN_MARKERS = (
    "<|im_start|>",
    "<|im_end|>",
    "<|start_header_id|>",
    "<start_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "[INST]",
    "<<SYS>>",
    "### Instruction",
    "User:",
    "Human:",
    "<s>",
)

Message = Mapping[str, Any]
Conversation = Mapping[str, Any]


class FormatError(ValueError):
    """A conversation that the template cannot express; one sentence."""


class PromptError(ValueError):
    """Token ids that are not a prompt of this template; one sentence with the position."""


class ChatTokenizer(Protocol):
    """What rendering needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    def encode(self, text: str) -> list[int]:
        """Ordinary token ids of `text`; never a special token."""
        ...

    def special(self, name: str) -> int:
        """Id of a special token; KeyError where the vocabulary lacks it."""
        ...


class Rendered(NamedTuple):
    """Token ids of a conversation and, beside each, 1 where the model is trained to predict it."""

    ids: list[int]
    mask: list[int]


def render(conversation: Conversation, tokenizer: ChatTokenizer, max_tokens: int | None = 2048) -> Rendered:
    """Token ids and loss mask of a whole conversation, cut after `max_tokens` (None: never).

    `conversation` is `{"messages": [{"role", "content"}, …]}`; content is a string or, for the assistant, a
    list of parts `{"type": "text" | "python" | "python_output", "text"}`. FormatError for anything else.
    """
    ids, mask = [tokenizer.special(BOS)], [0]
    for message in _turns(conversation):
        for name, text, supervised in _segments(message):
            piece = [tokenizer.special(name)] if name else tokenizer.encode(text)
            ids += piece
            mask += [supervised] * len(piece)
    return Rendered(ids[:max_tokens], mask[:max_tokens])


def render_for_completion(conversation: Conversation, tokenizer: ChatTokenizer) -> list[int]:
    """Prompt ids that end in an open assistant turn; an answer already there at the end is left out.

    Never cut: a prompt without its last turn would ask something else.
    """
    turns = _turns(conversation)
    if turns[-1]["role"] == "assistant":
        turns = turns[:-1]
    ids = render({"messages": turns}, tokenizer, max_tokens=None).ids
    return [*ids, tokenizer.special(ASSISTANT_START)]


def check_prompt(ids: Sequence[int], tokenizer: ChatTokenizer) -> None:
    """Refuse with PromptError any ids that are not BOS, complete turns and one open assistant turn.

    Also refused: an id outside the vocabulary, and a vocabulary that lacks a token of the template, above all
    the `<|assistant_end|>` by which an answer stops.
    """
    names = _special_names(tokenizer)
    if not ids:
        raise PromptError(f"the prompt is empty; it must start with {BOS} and a user turn")
    for position, token in enumerate(ids):
        if not 0 <= token < tokenizer.vocab_size:
            raise PromptError(
                f"token {token} at position {position} is outside the vocabulary of {tokenizer.vocab_size}; "
                "the prompt was made with another tokenizer"
            )
    expected = [BOS]
    inside = ""  # the marker whose text is being read
    for position, token in enumerate(ids):
        found = names.get(token)
        if found is None and inside in _MAY_FOLLOW_TEXT:
            continue
        if found not in expected:
            _refuse(ids, position, found, expected, tokenizer)
        assert found is not None
        inside = found
        expected = _FOLLOWS[found]
    if inside != ASSISTANT_START:
        raise PromptError(
            f"the prompt ends inside or after {inside} at position {len(ids) - 1}; it must end in an open "
            f"assistant turn, that is in {ASSISTANT_START}"
        )
    if names.get(ids[-1]) != ASSISTANT_START:
        raise PromptError(f"text follows the last {ASSISTANT_START}; a prompt ends where the answer has to begin")


_FOLLOWS: dict[str, list[str]] = {
    BOS: [USER_START],
    USER_START: [USER_END],
    USER_END: [ASSISTANT_START],
    ASSISTANT_START: [ASSISTANT_END, PYTHON_START, OUTPUT_START],
    ASSISTANT_END: [USER_START],
    PYTHON_START: [PYTHON_END],
    PYTHON_END: [ASSISTANT_END, PYTHON_START, OUTPUT_START],
    OUTPUT_START: [OUTPUT_END],
    OUTPUT_END: [ASSISTANT_END, PYTHON_START, OUTPUT_START],
}
_MAY_FOLLOW_TEXT = {USER_START, ASSISTANT_START, PYTHON_START, PYTHON_END, OUTPUT_START, OUTPUT_END}


def _refuse(
    ids: Sequence[int], position: int, found: str | None, expected: list[str], tokenizer: ChatTokenizer
) -> NoReturn:
    want = " or ".join(expected)
    if found == BOS:
        raise PromptError(f"a second {BOS} at position {position} where {want} belongs; render alone adds it")
    marker = _foreign_marker(ids, position, tokenizer)
    what = found or (f"the plain text {marker!r} of another chat template" if marker else "ordinary text")
    raise PromptError(f"{what} at position {position} where {want} belongs; render prompts with this module")


def _foreign_marker(ids: Sequence[int], position: int, tokenizer: ChatTokenizer) -> str | None:
    for marker in FOREIGN_MARKERS:
        spelled = tokenizer.encode(marker)
        if spelled and list(ids[position : position + len(spelled)]) == spelled:
            return marker
    return None


def _special_names(tokenizer: ChatTokenizer) -> dict[int, str]:
    names = {}
    for name in SPECIAL_TOKENS:
        try:
            token = tokenizer.special(name)
        except (KeyError, ValueError):
            token = None
        if token is None or not 0 <= token < tokenizer.vocab_size:
            role = "stop token" if name == ASSISTANT_END else "template's token"
            raise PromptError(f"the {role} {name} is not in the vocabulary; train the tokenizer with it")
        names[token] = name
    return names


def _turns(conversation: Conversation) -> list[Message]:
    """Messages with the system message folded into the first user message; roles checked to alternate."""
    messages = list(conversation.get("messages") or [])
    if messages and messages[0].get("role") == "system":
        system, *messages = messages
        if not messages or messages[0].get("role") != "user":
            raise FormatError("a system message must be followed by a user message")
        first = messages[0]
        joined = f"{_text_of(system, 0)}\n\n{_text_of(first, 1)}"
        messages[0] = {"role": "user", "content": joined}
    if not messages:
        raise FormatError("a conversation needs at least one message of a user")
    for index, message in enumerate(messages):
        role = ("user", "assistant")[index % 2]
        if message.get("role") != role:
            raise FormatError(
                f"message {index} is from {message.get('role')!r} where the {role} speaks; roles alternate"
            )
        if role == "user" or not isinstance(message.get("content"), list):
            _text_of(message, index)
    return messages


def _text_of(message: Message, index: int) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise FormatError(
            f"content of {message.get('role')} message {index} is {type(content).__name__}; only the "
            "assistant may speak in parts, others in one string"
        )
    return content


def _segments(message: Message) -> Iterator[tuple[str | None, str, int]]:
    """(special token name or None, text, supervised) in order."""
    content = message["content"]
    if message["role"] == "user":
        yield USER_START, "", 0
        yield None, content, 0
        yield USER_END, "", 0
        return
    yield ASSISTANT_START, "", 0
    parts = [("text", content)] if isinstance(content, str) else [_part(part) for part in content]
    # Neighbouring texts are joined: encoded apart, a merge across their border would be lost (marin#7210).
    for kind, group in groupby(parts, key=lambda part: part[0]):
        texts = [text for _, text in group]
        if kind == "text":
            yield None, "".join(texts), 1
            continue
        start, end, supervised = _PART_MARKERS[kind]
        for text in texts:
            yield start, "", supervised
            yield None, text, supervised
            yield end, "", supervised
    yield ASSISTANT_END, "", 1


_PART_MARKERS = {
    "python": (PYTHON_START, PYTHON_END, 1),
    "python_output": (OUTPUT_START, OUTPUT_END, 0),
}


def _part(part: Any) -> tuple[str, str]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind not in ("text", *_PART_MARKERS) or not isinstance(text, str):
        raise FormatError(
            f"part {part!r} of an assistant message is not {{'type': 'text', 'python' or 'python_output', "
            "'text': a string}"
        )
    return kind, text
