"""What the driver makes of jobs: specs that no host could take, names for ends, and text that is safe to show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.errors import UsageError
from tools.jobs import JobSpec, JobState, clean_text, describe_end, failure_kind
from tools.shell import TextCleaner


@pytest.mark.parametrize("job_id", ["", "../x", "a/b", ".hidden", "a b", "x" * 129, "ü", "a\n"])
def test_an_id_that_could_name_another_directory_is_refused(job_id: str) -> None:
    """A job id is one directory name on every host, or it is no job id."""
    with pytest.raises(UsageError, match="no job id"):
        JobSpec(job_id, "true")


@pytest.mark.parametrize("ready", [{}, {"log": "x", "http": "y"}, {"port": "80"}])
def test_a_readiness_check_is_exactly_one_of_three(ready: dict[str, str]) -> None:
    """A readiness check that the host would not understand is refused before it is sent."""
    with pytest.raises(UsageError, match="ready"):
        JobSpec("j", "true", ready=ready)


@pytest.mark.parametrize(
    ("state", "kind", "said"),
    [
        (JobState("j", "exited", rc=0), None, "exit code 0"),
        (JobState("j", "running"), None, "running"),
        (JobState("j", "unknown"), None, "unknown"),
        (JobState("j", "exited", rc=1), "failed", "exit code 1"),
        (JobState("j", "exited", signal="SIGKILL"), "failed", "SIGKILL"),
        (JobState("j", "exited", rc=137), "failed", "exit code 137 (SIGKILL)"),
        (JobState("j", "exited", signal="SIGKILL", oom="kernel log"), "oom", "SIGKILL (out of memory: kernel log)"),
        (JobState("j", "exited", rc=1, tail="torch.OutOfMemoryError: CUDA out of memory"), "oom", "exit code 1"),
        (JobState("j", "exited", rc=1, tail="memory is fine"), "failed", "exit code 1"),
        (JobState("j", "exited", signal="SIGTERM", timed_out=True), "timeout", "SIGTERM (timed out)"),
        (JobState("j", "exited", rc=0, timed_out=True), "timeout", "exit code 0 (timed out)"),
        (JobState("j", "exited", cancelled=True), "cancelled", "not started (cancelled)"),
        (JobState("j", "lost", reason="reboot"), "lost", "lost: reboot"),
        (JobState("j", "lost", oom="kernel log", reason="OOM killer"), "oom", "lost: OOM killer"),
    ],
)
def test_every_end_has_one_name(state: JobState, kind: str | None, said: str) -> None:
    """Unknown and running are no failures; each failure has the kind that its evidence supports, and no better one."""
    assert failure_kind(state) == kind
    assert describe_end(state) == said


def test_terminal_codes_and_nul_never_reach_a_reader() -> None:
    """Colours, window titles, NUL and other controls are gone; newline and tab stay."""
    raw = b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b(Bend\x00\x08\x7f\tok\r\n\x9b31mx\xc2\x9b0m"
    assert clean_text(raw) == "red end\tok\n�31mx"


def test_a_progress_bar_shows_its_last_drawing() -> None:
    """Of a line that was drawn again and again what remains is what a terminal would show last."""
    assert clean_text(b" 10%|#   |\r 50%|##  |\r100%|####|\ndone\r\n") == "100%|####|\ndone\n"


def test_a_control_string_without_end_stops_at_its_line() -> None:
    """An unfinished escape sequence cannot swallow the rest of a log."""
    assert clean_text(b"\x1b]0;never ended\nnext line\n") == "\nnext line\n"


@given(st.lists(st.sampled_from(["█", "é", "\x1b[31m", "\x1b[0m", "abc", "\r", "\n", "\x00", "漢字"])), st.data())
def test_text_in_pieces_is_the_text_in_one(parts: list[str], data: st.DataObject) -> None:
    """Wherever reads cut the bytes, characters and sequences come out as if they had come at once."""
    raw = "".join(parts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    cleaner = TextCleaner()
    pieces = [cleaner.feed(raw[a:b]) for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert "".join(pieces) + cleaner.finish() == clean_text(raw)
