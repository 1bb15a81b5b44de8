"""What was probably meant by a name that is not known: "did you mean …?"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    by_lower = {each.lower(): each for each in known}
    close = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def suggestion(word: str, known: Iterable[str], listing: str) -> str:
    """A hint: the word that was probably meant, else all there are."""
    words = list(known)
    close = did_you_mean(word, words)
    if close:
        return f'did you mean "{close}"?'
    return f"{listing}: {', '.join(words)}" if words else ""
