"""What a host's word about a job means to the core. Pure."""

from __future__ import annotations

from agent.events import JobSeen
from tools.jobs import JobState, describe_end, failure_kind


def job_seen(state: JobState) -> JobSeen | None:
    """What a host's word about a job means to the core; `None` where it means nothing new."""
    if state.refused is not None:
        return JobSeen(state.id, "refused", failure="failed", reason=f"not started: {state.refused}")
    if state.terminal:
        return JobSeen(
            state.id,
            state.state,
            rc=state.rc,
            signal=state.signal,
            failure=failure_kind(state),
            reason=None if state.ok else describe_end(state),
            output=state.output,
            started=state.started,
            ended=state.ended,
        )
    if state.state == "unknown":
        return JobSeen(state.id, "lost", failure="lost", reason="the host has no record of it any more")
    if state.state == "ready":
        return JobSeen(state.id, "ready", output=state.output, started=state.started)
    if state.state in ("running", "orphan"):
        return JobSeen(state.id, "running", started=state.started)
    return None
