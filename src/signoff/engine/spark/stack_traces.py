"""What a stack trace of Spark says, in one line."""

from __future__ import annotations

from signoff.pipeline.secrets import excerpt, redact


def last_line(error: BaseException) -> str:
    """The line of a stack trace that says what happened; Spark wraps it in many others."""
    text = redact(str(error))  # before a line is chosen: a secret may have several
    if (of_python := _python_line(text)) is not None:
        return excerpt(of_python, 500)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if not line.startswith(("at ", "...", "File ", "Traceback", "JVM stacktrace", "^"))
    ]
    place = next((at for at, line in enumerate(telling) if line.startswith("[") and "]" in line), 0)
    chosen = telling[place] if telling else type(error).__name__
    for further in telling[place + 1 :]:
        if not chosen.endswith((":", ",")):  # else what it announces is in the next line
            break
        chosen = f"{chosen} {further}"
    return excerpt(chosen.split(" SQLSTATE")[0], 500)


def _python_line(text: str) -> str | None:
    """What a Python worker said: the last line of its traceback, behind which Java's begins."""
    _, found, rest = text.rpartition("Traceback (most recent call last):\n")
    if not found:
        return None
    for line in rest.splitlines():
        if line.strip() and not line.startswith((" ", "\t")):
            return line.strip()
    return None
