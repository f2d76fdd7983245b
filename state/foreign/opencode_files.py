"""opencode's folders (before 1.2): one JSON file for each session, message and part.

    storage/session/<project>/<ses>.json  message/<ses>/<msg>.json  part/<msg>/<prt>.json  todo/<ses>.json
    storage/session/{info,message,part}/...                         before 0.6; parts below <ses>/<msg>/

A file that a power cut emptied costs what it held and nothing else; a session whose own file is lost is told from its
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from state.foreign.damage import Losses, decode
from state.foreign.opencode import Message, Stored
from state.foreign.story import Found


def storage_of(path: Path) -> Path | None:
    """The storage folder that a path is, holds, or lies in."""
    for place in (path, path / "storage", *path.parents):
        session = place / "session"
        if session.is_dir() and any(
            (place / n).is_dir() or (session / n).is_dir() for n in ("message", "info", "part")
        ):
            return place
        if place.name == "storage" and session.is_dir():
            return place
    return None


def sessions(storage: Path, losses: Losses, only: Path | None = None) -> list[Found]:
    """The sessions below `storage` that nobody else started, oldest first; of a single file, only its session."""
    layout = _Layout(storage)
    stored: dict[str, Stored] = {}
    for key, file in sorted(layout.infos().items()):
        info = _read(storage, file, losses) if file is not None else {}
        if info is None and not any(layout.messages_of(key)):
            continue  # told by `_read`; nothing else is left of it
        if file is None:
            losses.add(f"message/{key}", "messages without the record of their session: told from the messages alone")
        stored[key] = Stored(key, info or {}, str(storage), _messages(layout, key))
        stored[key].todos = _todos(storage, key, losses)
    tops: list[Stored] = []
    for one in stored.values():
        parent = stored.get(str(one.info.get("parentID") or ""))
        (parent.children if parent is not None and parent is not one else tops).append(one)
    wanted = None if only is None else _session_of(storage, only)
    chosen = [one for one in stored.values() if one.key == wanted] if wanted else tops
    return sorted((one.found() for one in chosen), key=lambda found: (found.time, found.key))


class _Layout:
    """Where things lie, in either layout."""

    def __init__(self, storage: Path) -> None:
        self.storage = storage
        self.old = (storage / "session" / "info").is_dir()
        base = storage / "session" if self.old else storage
        self._message, self._part = base / "message", base / "part"

    def infos(self) -> dict[str, Path | None]:
        """The file of every session; `None` where only messages are left."""
        found: dict[str, Path | None] = {folder.name: None for folder in self._message.glob("*") if folder.is_dir()}
        pattern = "info/*.json" if self.old else "*/*.json"
        for file in (self.storage / "session").glob(pattern):
            found[file.stem] = file
        return found

    def messages_of(self, session: str) -> Iterator[Path]:
        yield from (self._message / session).glob("*.json")

    def parts_of(self, session: str, message: str) -> list[Path]:
        folder = self._part / session / message if self.old else self._part / message
        return sorted(folder.glob("*.json"))


def _messages(layout: _Layout, key: str) -> Callable[[Losses], Iterator[Message]]:
    def read(losses: Losses) -> Iterator[Message]:
        found = []
        for file in layout.messages_of(key):
            info = _read(layout.storage, file, losses)
            if info is not None:
                time = info.get("time") or (info.get("metadata") or {}).get("time") or {}
                created = time.get("created") if isinstance(time, Mapping) else 0
                found.append((created if isinstance(created, int | float) else 0, file.stem, file))
        for _, stem, file in sorted(found):
            info = _read(layout.storage, file, Losses()) or {}
            parts = [part for p in layout.parts_of(key, stem) if (part := _read(layout.storage, p, losses)) is not None]
            yield str(file.relative_to(layout.storage)), {"id": stem, **info}, parts

    return read


def _read(storage: Path, file: Path, losses: Losses) -> dict[str, Any] | None:
    """One file's object. What cannot be read is told, by name, and is `None`."""
    place = str(file.relative_to(storage))
    try:
        raw = file.read_bytes()
    except OSError as error:
        losses.add(place, f"cannot be read: {error.strerror}")
        return None
    if not raw.strip(b"\x00 \t\r\n"):
        losses.add(place, f"{len(raw)} bytes, all NUL or blank: a write that a power cut undid")
        return None
    values = decode(raw, losses, place, last=True)
    return next((value for value in values if isinstance(value, dict)), None)


def _todos(storage: Path, key: str, losses: Losses) -> list[Any]:
    file = storage / "todo" / f"{key}.json"
    if not file.is_file():
        return []
    values = decode(file.read_bytes(), losses, str(file.relative_to(storage)), last=True)
    return values[0] if values and isinstance(values[0], list) else values


def _session_of(storage: Path, file: Path) -> str | None:
    """The session that a file belongs to; `None` for the storage folder itself."""
    if file == storage or not file.is_file():
        return None
    for part in (file.stem, *reversed(file.parts)):
        if part.startswith("ses_"):
            return part
    info = _read(storage, file, Losses()) or {}
    return str(info.get("sessionID") or "") or None
