"""What is a secret: by the name that holds it, and by its own form.

An unknown name that reads like a secret's is one. A value that carries its own mark, such as a
token's prefix or an address with a password, is one under any name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

_WORDS = {
    "token",
    "key",
    "keys",
    "apikey",
    "pass",
    "password",
    "passwd",
    "passphrase",
    "pat",
    "pw",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "cookie",
    "cookies",
    "bearer",
    "jwt",
}
_ALWAYS = {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials"}
"""Words that mark a secret anywhere in a name; the others do so at its end."""
_PLACES = {"file", "path", "dir", "url", "name", "command", "cmd", "timeout", "sock"}
"""Last words of names that say where a secret is, not what it is."""
_PRESSED = ["detach", "keys"]
"""Docker's option for the keys of a keyboard that leave a container."""
_SWITCHES = {"", "0", "1", "true", "false", "yes", "no", "none"}

KNOWN_FORMS = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}",
    r"\b(?:sk|pk|nvapi|ghp|gho|ghs|ghu|github_pat|glpat|xox[a-z]|dckr_pat|npm)[-_][A-Za-z0-9_-]{8,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)?",
)
"""Regular expressions of values that are secret by themselves: private keys, and tokens with the
prefix of whoever issues them (Hugging Face, OpenAI, NVIDIA, GitHub, GitLab, Slack, Docker, npm,
AWS, JSON web tokens).
"""
_VALUES = re.compile("|".join(KNOWN_FORMS), re.DOTALL)
_WRITTEN = tuple(
    re.compile(pattern, re.IGNORECASE | re.DOTALL)
    for pattern in (
        *(f"(?P<keep>){form}" for form in KNOWN_FORMS),
        r"(?P<keep>\b(?:Proxy-)?Authorization[\"']?\s{0,4}[:=]\s{0,4}[\"']?)[^\r\n\"']+",
        r"(?P<keep>\b(?:Set-)?Cookie[\"']?\s{0,4}:\s{0,4}[\"']?)[^\r\n\"']+",
        r"(?P<keep>\b(?:Bearer|Basic)\s{1,4})[A-Za-z0-9+/=._~-]{4,}",
    )
)
"""What is written like a secret; `keep` stays before the stand-in."""
_FIELD = re.compile(
    r"(?P<keep>(?<![\w-])(?P<option>--)?"
    r"(?=[\w.-]{0,60}?(?:token|key|pass|pat\b|pw|secret|credential|auth|cookie|bearer|jwt))"
    r"(?P<name>[a-z][\w.-]{1,79})"
    r"(?:[\"']?\s{0,4}[=:]\s{0,4}[\[(]?\s{0,4}|(?(option)\s{1,4}|(?!))))"
    r"(?P<value>\"[^\"\n]{0,4000}(?:\n[^\"\n]{0,4000})?\"|'[^'\n]{0,4000}(?:\n[^'\n]{0,4000})?'"
    r"|[^\s\"',;&\])}<]+)",
    re.IGNORECASE,
)
"""A name that may be a secret's, and its value: in quotes over two lines at most, or one word.
Every repetition is bounded, so that no text makes the search quadratic.
"""
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]{0,20}://[^\s/@:]*:)[^\s/]+@", re.IGNORECASE)


def by_name(name: str) -> bool:
    """Return whether a variable, an option or a field of this name holds a secret."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    words = [word for word in re.split(r"[^a-z]+", parted.lower()) if word]
    if not words or words[-1] in _PLACES or words == _PRESSED:
        return False
    if words[-1] == "id" and len(words) > 1:  # AWS_ACCESS_KEY_ID
        words.pop()
    return words[-1] in _WORDS or not _ALWAYS.isdisjoint(words)


def by_value(value: str) -> bool:
    """Return whether a text holds a secret whatever its name: a known token, a private key, or an
    address with a password.
    """
    return _VALUES.search(value) is not None or _ADDRESS.search(value) is not None


def without_passwords(text: str) -> str:
    """Return a text with `***` for the password of each address in it."""
    return _ADDRESS.sub(r"\1***@", text)


def hide(text: str, stand_in: str = "***") -> str:
    """Return a text with a stand-in for whatever is written like a secret in it."""
    for pattern in _WRITTEN:
        text = pattern.sub(rf"\g<keep>{stand_in}", text)
    return _FIELD.sub(partial(_hidden, stand_in), without_passwords(text))


def _hidden(stand_in: str, match: re.Match[str]) -> str:
    """Return a field with its value replaced if the field is a secret."""
    name, value = match["name"], match["value"].strip("\"'")
    if value == stand_in or not _named(name, value) or re.fullmatch(r"\w+_token", value):
        return match[0]
    counted = re.search(r"tokens?(?:_?ids?)?$|(?<!api)[_-]?key$", name, re.IGNORECASE)
    if counted and len(value) < (8 if value.isdigit() else 6) and not match["option"]:
        return match[0]  # a number of tokens, a key of a cache
    quote = match["value"][0] if match["value"][0] in "\"'" else ""
    return f"{match['keep']}{quote}{stand_in}{quote}"


def _named(name: str, value: str) -> bool:
    """Return whether the name or the value's own form says so; a model's token (`<|im_end|>`), a
    switch and a stand-in are none.
    """
    plain = value.lower() in _SWITCHES or re.fullmatch(r"<\|?\w+\|?>|\*\*\*", value)
    return by_value(value) or (by_name(name) and not plain)


def is_secret(name: str, value: str | None = None) -> bool:
    """Return whether a variable, an option or a field holds a secret.

    Args:
        name: its name.
        value: its value where one is written; a switch such as 0 or true is none, and a field
            inside the value, such as one of JSON or after `=`, may be one.
    """
    if value is None:
        return by_name(name)
    return _named(name, value) or _FIELD.sub(partial(_hidden, ""), value) != value


def without_secrets(value: Any, name: str = "") -> Any:
    """Return a mapping or a list without the secrets in it; what says where a secret is kept stays.

    Args:
        value: a value of a document.
        name: the key that holds it.
    """
    if isinstance(value, list):
        return [without_secrets(item, name) for item in value if not _hides(name, item)]
    if not isinstance(value, Mapping):
        return value
    kept: dict[str, Any] = {}
    for key, item in value.items():
        if value.get("kind") == "Secret" and key in ("data", "stringData"):
            continue
        # The name of an entry {name: HF_TOKEN, value: …} is beside its value.
        label = str(value.get("name", "")) if key == "value" else str(key)
        if not _hides(label, item):
            inside = item if key == "secretKeyRef" else without_secrets(item, label)
            kept |= {key: inside} if inside or not item else {}
    return kept


def _hides(name: str, value: Any) -> bool:
    """Return whether a scalar of a document is a secret."""
    if value is None or isinstance(value, bool | Mapping | list):
        return False
    number = isinstance(value, int) and name.endswith(("token_id", "token_ids"))
    return not number and is_secret(name, str(value))
