"""Keeps secrets out of keys, manifests and logs.

Two places hold them: addresses (`https://user:password@host`, signed queries) and environment variables. Addresses
are cleaned by form, so that a key does not depend on the environment; environment values only where text is shown.
"""

import os
import re

MASK = "***"
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")
_QUERY = re.compile(r"(?i)([?&][\w-]*(?:token|signature|sig|secret|password|credential|key)[\w-]*=)[^&\s#]+")
_NAME = re.compile(r"(?i)(token|secret|password|passwd|credential|api_?key|private)")
_SHORTEST = 8  # characters; a shorter value would blank out ordinary words


def redact_url(text: str) -> str:
    """`text` with the user part and the signing query fields of any address in it masked."""
    if "://" not in text:
        return text
    return _QUERY.sub(rf"\g<1>{MASK}", _USERINFO.sub(f"{MASK}@", text))


def redact(text: str) -> str:
    """`text` for a log or a manifest: addresses cleaned, values of environment variables named like secrets masked."""
    text = redact_url(text)
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and _NAME.search(name) and value in text and not os.path.exists(value):
            text = text.replace(value, MASK)
    return text


def redact_json(value):
    """`redact` on every text inside JSON values."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list | tuple):
        return [redact_json(item) for item in value]
    if isinstance(value, dict):
        return {name: redact_json(item) for name, item in value.items()}
    return value
