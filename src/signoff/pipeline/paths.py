"""Whether the paths of a pipeline can be paths at all: a loop of symlinks, or a name that no disk takes, is
found here once, so that whatever looks at them later need not expect it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from signoff.pipeline.model import NodeConfig, SinkConfig, SourceConfig

_LONGEST_NAME = 255
_HARMLESS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM})
"""What is not there yet may come; what may not be seen is for whoever uses it to say."""


def unusable_paths_of(config: NodeConfig, base: Path) -> str:
    """Why a path of a node cannot be used, or ''."""
    try:
        paths = [base / path for path in config.local_directories(base)]
        paths += [directory / name for directory, name in config.writes(base)]
        if isinstance(config, SinkConfig):
            config.target(base)
        if isinstance(config, SourceConfig) and (pattern := config.reads(base)):
            paths.append(Path(pattern))
    except (OSError, RuntimeError, ValueError) as error:
        return _why(error)
    return unusable(paths)


def unusable(paths: Iterable[Path]) -> str:
    """Why one of the paths cannot be used, or ''."""
    for path in paths:
        try:
            path.resolve()
            if any(len(os.fsencode(part)) > _LONGEST_NAME for part in path.parts):
                return f"a name in it is longer than {_LONGEST_NAME} bytes"
            path.stat()
        except (OSError, RuntimeError, ValueError) as error:
            if not isinstance(error, OSError) or error.errno not in _HARMLESS:
                return _why(error)
    return ""


def _why(error: Exception) -> str:
    if isinstance(error, RuntimeError) or getattr(error, "errno", None) == errno.ELOOP:
        return "symbolic links lead back to themselves"
    return str(getattr(error, "strerror", None) or error)
