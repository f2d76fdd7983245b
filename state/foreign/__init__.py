"""Sessions that other programs recorded, read into our own log.

    with reading(path) as source:                 # state/foreign/detect.py finds the format
        for found in source.sessions: ...         # state/foreign/store.py writes them

Formats: Claude Code JSONL, opencode (folders, both generations of its database, export, run stream), Codex rollouts,
SWE-agent trajectories. Nothing here changes a source, runs what it says, or trusts it: broken files give what can be
had, and every loss is told with its place and reason. docs/formats.md says what becomes of what.
"""
