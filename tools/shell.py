"""Turns the bytes that a host sends into text that is safe to show, to store and to give to a model.

Logs hold colour codes, window titles, progress bars drawn with carriage returns, NUL bytes and bytes that are no UTF-8.
The raw bytes stay on the host; this is what is shown. It does not read anything and knows nothing of jobs.

    clean_text(b"\\x1b[31mred\\x1b[0m\\x00")      # 'red'
    cleaner = TextCleaner()                       # for a log that arrives in pieces
    cleaner.feed(piece), ..., cleaner.finish()
"""

from __future__ import annotations

import codecs
import re

# ECMA-48: CSI (final byte @ to ~), OSC and the other control strings (ended by BEL or ST), then the short escapes.
# A control string that is never ended stops at the end of its line, so that it cannot swallow the rest of a log.
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LONGEST_LINE = 65536


def _clean(text: str) -> str:
    """Drop control sequences; of a line redrawn with carriage returns keep what a terminal would show last."""
    text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROLS.sub("", text)


def clean_text(data: bytes) -> str:
    """`data` as text: UTF-8 with bad bytes as U+FFFD, no control sequence, no control character but newline and tab."""
    return _clean(data.decode("utf-8", "replace"))


class TextCleaner:
    """`clean_text` for bytes that arrive in pieces: characters, sequences and lines cut by a read come out whole.

    `feed` gives the lines that are complete; a line above 65,536 characters is given in parts, so memory is bounded.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> str:
        """The text that became complete with `data`; may be empty."""
        text = self._rest + self._decoder.decode(data)
        cut = text.rfind("\n") + 1
        if len(text) - cut > _LONGEST_LINE:
            cut = len(text)
        self._rest = text[cut:]
        return _clean(text[:cut])

    def finish(self) -> str:
        """The last line, when it has no newline."""
        text, self._rest = self._rest + self._decoder.decode(b"", final=True), ""
        return _clean(text)
