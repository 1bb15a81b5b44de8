"""What an error of the disk means for rows: to wait for it, or to refuse them."""

from __future__ import annotations

import errno

from signoff.errors import PermanentError, SinkError, TransientError

_NEVER = frozenset({errno.ENAMETOOLONG, errno.EILSEQ, errno.ELOOP})
"""The name itself is what the disk does not take: no room and no right that comes later helps."""


def cannot_exist(error: OSError) -> bool:
    """No file has, or ever had, the place that was named."""
    return error.errno in _NEVER


def disk_failure(error: OSError, text: str) -> SinkError:
    return PermanentError(text) if error.errno in _NEVER else TransientError(text)
