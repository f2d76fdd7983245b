"""The few Linux calls that Python 3.8's standard library does not wrap: pidfd, locks of open files, sparse logs.

Each raises OSError as the kernel reports it. Numbers are from the kernel's uapi headers and are the same on x86-64
and arm64 (and on all newer architectures, which share one table).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN, _CLOSE_RANGE = 424, 434, 436
_F_OFD_GETLK, _F_OFD_SETLK = 36, 37
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01
# struct flock on 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (must be 0 for locks of open files).
_FLOCK = struct.Struct("hhqqi4x")


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def pidfd_open(pid: int) -> int:
    """A descriptor that becomes readable when `pid` ends (Linux 5.3). ESRCH: no such process; ENOSYS: old kernel."""
    return _check(_libc.syscall(_PIDFD_OPEN, ctypes.c_int(pid), ctypes.c_uint(0)))


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process behind `pidfd`, and to no other that may have got its number since."""
    _check(_libc.syscall(_PIDFD_SEND_SIGNAL, ctypes.c_int(pidfd), ctypes.c_int(number), None, ctypes.c_uint(0)))


def close_range(first: int, last: int) -> None:
    """Close all descriptors from `first` to `last`, in one call where the kernel has it (5.9)."""
    if _libc.syscall(_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0)) == 0 or first > last:
        return
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if first <= fd <= last:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor that the listing itself used


def become_subreaper() -> None:
    """From now on orphaned descendants become children of this process instead of pid 1."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def set_name(name: str) -> None:
    """The name that `ps` and `top` show for this process, 15 bytes of it."""
    _check(_libc.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0))


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give the blocks of a range back to the file system; the file's size and all offsets stay. EOPNOTSUPP possible."""
    _check(_libc.fallocate(fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(length)))


def try_lock(fd: int) -> bool:
    """Take the write lock of the open file `fd`; False when another open file holds it. Gone when `fd` is closed."""
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def lock_held(path: str) -> bool:
    """Whether somebody holds the lock of `path`. Asks without taking it: an asker can never look like a holder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
