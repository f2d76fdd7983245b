"""Keeps a job's log below its cap by giving back the middle of the file; offsets stay what they were.

The head (how it began) and the tail (how it is going) remain; `dropped` records the range that was given up. The
command appends to the file itself, so nothing stands between it and its log.
"""

from __future__ import annotations

import errno
import os

from . import linux, store

_BLOCK = 4096


def trim(folder: str, cap: int) -> None:
    """Bring the log's size on disk below `cap` bytes. A file system without holes keeps the log whole, and says so."""
    path = os.path.join(folder, "log")
    record = os.path.join(folder, "dropped")
    try:
        size = os.path.getsize(path)
    except FileNotFoundError:
        return  # the job removed its log: that is its right, and no reason to stop looking after it
    dropped = store.read_json(record) or {}
    if size - dropped.get("length", 0) <= cap or dropped.get("error"):
        return
    start = cap // 4 // _BLOCK * _BLOCK
    end = (size - cap // 2) // _BLOCK * _BLOCK
    if end <= start + dropped.get("length", 0):
        return
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        # Recorded only after it is done: on a full disk the record finds room because the hole made it.
        linux.punch_hole(fd, start, end - start)
        store.write_json(record, {"offset": start, "length": end - start}, durable=False)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            store.write_json(record, {"error": "the file system keeps no holes: no effect"}, durable=False)
        elif error.errno != errno.ENOSPC:  # then the next look tries again
            raise
    finally:
        os.close(fd)
