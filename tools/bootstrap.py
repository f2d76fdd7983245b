"""Packs the remote half and says how to start it: one file known by its hash, one command line every shell reads alike.

The command reaches the host's login shell (bash, dash, zsh, tcsh, fish), which only has to start `/bin/sh`. That finds
a Python, and Python runs the stored file if it is the right one, or asks for it first. On stdout the driver reads one
line, whatever a message of the day or an rc file printed before it:

    TURNOUT <nonce> ready              frames follow
    TURNOUT <nonce> need               send the packed file on stdin, then wait for `ready`
    TURNOUT <nonce> nopython           no Python 3.8 or newer at any of the places
    TURNOUT <nonce> failed: <why>      no Linux, half a Python, or no place to keep the file

Nothing here connects.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import json
import re
import zipfile
from dataclasses import dataclass
from importlib import resources

from state.errors import UsageError

# The system's own Python first: version managers put slow shims on the PATH, and environments are deleted.
PYTHONS = (
    "/usr/bin/python3", "python3", "/usr/local/bin/python3", "python3.13", "python3.12", "python3.11", "python3.10",
    "python3.9", "python3.8", "/opt/conda/bin/python3", "$HOME/miniconda3/bin/python3", "$HOME/.local/bin/python3",
)  # fmt: skip
# What a shell could take for its own inside single quotes (`'`, `!` and newline for csh) or the double quotes within.
_UNQUOTABLE = re.compile(r"['\"!`\\\n]")
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)

_LOADER = """
import hashlib, json, os, sys
a = json.loads(__import__("base64").b64decode(sys.argv[2]))
def say(text):
    os.write(1, ("TURNOUT %s %s\\n" % (a["nonce"], text)).encode())
def right(data):
    return hashlib.sha256(data).hexdigest() == a["hash"]
if not sys.platform.startswith("linux"):
    say("failed: jobs need Linux, this is " + sys.platform)
    sys.exit(3)
root = os.path.join(os.path.expanduser("~"), os.path.expanduser(a["root"]))
path = os.path.join(root, "runner", a["hash"] + ".pyz")
try:
    with open(path, "rb") as f:
        there = right(f.read())
except OSError:
    there = False
if not there:
    say("need")
    data = b""
    while len(data) < a["size"]:
        more = os.read(0, a["size"] - len(data))
        if not more:
            sys.exit(3)
        data += more
    if not right(data):
        say("failed: the file was damaged on its way")
        sys.exit(3)
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open("%s.%d" % (path, os.getpid()), "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.rename(f.name, path)
    except OSError as e:
        say("failed: %s" % e)
        sys.exit(3)
os.execv(sys.executable, [sys.executable, "-IS", path, a["nonce"], root])
"""

# A process of its own name: who looks at the host's processes sees a file and a folder, not the loader's text.
_MAIN = """
import os, sys
if sys.argv[1] == "attend":  # on a compute node of Slurm
    from turnout_remote.batch import attend
    attend(*sys.argv[2:])
nonce, root = sys.argv[1:]
try:
    from turnout_remote.serve import main
except ImportError as e:
    why = "%s lacks a part of the standard library: %s" % (sys.executable, e)
    os.write(1, ("TURNOUT %s failed: %s\\n" % (nonce, why)).encode())
    sys.exit(3)
main(root, nonce)
"""


@dataclass(frozen=True, slots=True)
class Package:
    """The remote half as one file: `data` (a zip that Python can import from) and its SHA-256."""

    data: bytes
    digest: str


@functools.cache
def package() -> Package:
    """Pack `tools/remote`. Stored, sorted, dated 1980: the same sources give the same bytes everywhere."""
    modules = [item for item in resources.files("tools.remote").iterdir() if item.name.endswith(".py")]
    sources = {module.name: module.read_bytes() for module in modules}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _ZIP_EPOCH), _MAIN)
        for name in sorted(sources):
            archive.writestr(zipfile.ZipInfo(f"turnout_remote/{name}", _ZIP_EPOCH), sources[name])
    data = buffer.getvalue()
    return Package(data, hashlib.sha256(data).hexdigest())


def command(nonce: str, root: str, python: str = "") -> str:
    """The command line that starts the remote half below `root`, with `python` or the first one that is fit.

    Raises UsageError for a `python` with characters that no quoting carries through every shell.
    """
    if _UNQUOTABLE.search(python):
        raise UsageError(f"the host's python `{python}` holds a quote or a backslash", hint="give a plain path")
    packed = package()
    arguments = {"nonce": nonce, "hash": packed.digest, "size": len(packed.data), "root": root}
    places = " ".join(f'"{place}"' for place in ((python,) if python else PYTHONS))
    return (
        f"exec /bin/sh -c 'for p in {places}; do "
        'q=$(command -v "$p" 2>/dev/null) || continue; '
        '"$q" -IS -c "import sys; sys.exit(sys.version_info < (3, 8))" </dev/null >/dev/null 2>&1 || continue; '
        'exec "$q" -IS -c "import sys, base64; exec(base64.b64decode(sys.argv[1]))" '
        f"{_base64(_LOADER.encode())} {_base64(json.dumps(arguments).encode())}; "
        f"done; echo TURNOUT {nonce} nopython; exit 127'"
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
