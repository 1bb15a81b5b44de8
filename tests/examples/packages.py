"""Packages that bring types, put where a fresh environment would have them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def pip_install(site: Path, packages: Iterable[Path]) -> None:
    """Build them and install them into a directory of their own, without a network."""
    copies = [shutil.copytree(each, site.with_name("built") / each.name) for each in packages]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--no-index", "--no-cache-dir", "--target", str(site)]
    done = subprocess.run([*command, *map(str, copies)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
