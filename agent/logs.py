"""Debug logs of the program itself, on stderr: warnings by default, everything with `-v`.

What a session did is in its log in the database, and what a job printed is in the job's log on the host; this is only
about Turnout's own doings. Nothing is written to a file.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog


def configure_once() -> None:
    """Warnings only, unless `configure` was called before: structlog's own default prints everything on stdout."""
    if not structlog.is_configured():
        configure(verbose=False)


def configure(*, verbose: bool) -> None:
    """Set up structlog for this process: one short line an event, coloured when stderr is a terminal."""
    level = logging.DEBUG if verbose else logging.WARNING
    shown = [structlog.processors.TimeStamper(fmt="%H:%M:%S")] if verbose else []
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *shown,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=0,
                pad_level=False,
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *names: structlog.PrintLogger(sys.stderr),
    )
    # Libraries log through the standard library; asyncssh is chatty below WARNING.
    logging.basicConfig(level=level, handlers=[_Stderr()], format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.INFO if verbose else logging.ERROR)


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what stderr is at that moment: the live picture puts itself in between while it is shown."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        """Nothing to keep."""
