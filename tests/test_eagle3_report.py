"""The report shows what an engine measured, as the bench wrote it, and the page keeps to itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload import sections  # noqa: E402
from playbooks.eagle3.payload.measured import read_measured  # noqa: E402
from playbooks.eagle3.payload.page import Code, Facts, Heading, Page, Quote, Table, Text  # noqa: E402
from playbooks.eagle3.payload.runtime import Workdir  # noqa: E402
from tests.standin_engine import StandIn  # noqa: E402

pytestmark = pytest.mark.train
BENCH = Path(__file__).parent.parent / "tools" / "serving"


def bench(url: str, out: Path, prompts: Path, *more: str) -> None:
    command = [sys.executable, "-m", "bench", "--url", url, "--set", f"mt={prompts}", "--concurrency", "1,2"]
    done = subprocess.run(
        [*command, "--max-tokens", "32", "--out", str(out), *more],
        cwd=BENCH,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_what_the_bench_measured_is_in_the_report(tmp_path: Path) -> None:
    """Rates, multipliers and lengths of each set and number of requests, read from real results of the bench."""
    prompts, folder = tmp_path / "p.jsonl", tmp_path / "bench"
    prompts.write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(6)))
    folder.mkdir()
    with StandIn("sglang") as plain:
        bench(plain.url, folder / "plain.json", prompts)
    with StandIn("sglang", accept=[0.8, 0.5, 0.2]) as drafted:
        bench(drafted.url, folder / "eagle3.json", prompts, "--baseline", str(folder / "plain.json"))
    found = read_measured(folder, 3)
    assert [(m.set, m.concurrency) for m in found] == [("mt", 1), ("mt", 2)]
    assert all(1.5 < (m.length or 0) < 3.5 for m in found)
    assert all(m.plain and m.multiplier and m.cost for m in found)
    work, page = Workdir(tmp_path), Page("t", "l")
    work.report.mkdir()
    sections.engine(page, work, found)
    whole = page.html(work.report)
    assert "Tokens a second without and with the drafter" in whole
    assert f"{found[0].multiplier:.2f}x" in whole
    assert found[0].engine in page.markdown()


def test_without_a_measurement_there_is_no_section_of_it(tmp_path: Path) -> None:
    """Nothing is shown of an engine that was not measured."""
    page = Page("t", "l")
    sections.engine(page, Workdir(tmp_path), read_measured(tmp_path, 3))
    assert page.parts == []


def test_what_the_target_said_cannot_write_into_the_page(tmp_path: Path) -> None:
    """Answers are shown as they are, whatever tags and marks they hold."""
    page = Page("a `b`", "**c**")
    evil = "<script>alert(1)</script> | `x` **y**"
    page.add(
        Heading(evil),
        Text(evil),
        Facts([(evil, evil)]),
        Table([evil, "n"], [[evil, "1"]]),
        Quote(evil, evil),
        Code(evil),
    )
    whole = page.html(tmp_path)
    assert "<script>" not in whole
    assert "<code>b</code>" in whole
    assert page.markdown().startswith("# a `b`\n\n**c**")
    row = next(line for line in page.markdown().splitlines() if line.endswith("| 1 |"))
    assert "\\|" in row
