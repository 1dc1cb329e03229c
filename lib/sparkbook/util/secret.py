"""What is a secret: by the name that holds it, and by its own form.

An unknown name that reads like a secret's is one. A value that carries its own mark, such as a
token's prefix or an address with a password, is one under any name.
"""

from __future__ import annotations

import re

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
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]{0,20}://[^\s/@:]*:)[^\s/]+@", re.IGNORECASE)


def by_name(name: str) -> bool:
    """Return whether a variable, an option or a field of this name holds a secret."""
    parted = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    words = [word for word in re.split(r"[^a-z]+", parted.lower()) if word]
    if not words or words[-1] in _PLACES:
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


def is_secret(name: str, value: str | None = None) -> bool:
    """Return whether a variable, an option or a field holds a secret.

    Args:
        name: its name.
        value: its value where one is written; a switch such as 0 or true is none.
    """
    if value is None:
        return by_name(name)
    return by_value(value) or (by_name(name) and value.lower() not in _SWITCHES)
