"""The figures that are published: the tables of docs/benchmarks.md say what the stored results say."""

from __future__ import annotations

import subprocess
import sys

from tests.cli_helpers import ROOT


def test_the_page_says_what_was_measured() -> None:
    """No table of the page differs from the results that the repository holds."""
    command = [sys.executable, "-m", "benchmarks.report", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
