"""What a str may hold that UTF-8 cannot."""


def replace_surrogates(text: str) -> tuple[str, int]:
    """`text` with each lone surrogate (U+D800–U+DFFF) replaced by U+FFFD, and how many there were.

    JSON's `\\ud800` gives one, and UTF-8 has no code for half a pair: such a text can be neither tokenized nor
    written. Two halves that stand side by side are joined to the character they spell.
    """
    if text.isascii():
        return text, 0
    try:
        text.encode()
    except UnicodeEncodeError:
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return whole, whole.count("\ufffd") - text.count("\ufffd")
    return text, 0
