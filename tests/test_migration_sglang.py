"""A real SGLang 0.5.14 takes over from a stand-in vLLM, on a CPU: every step speaks to the engine itself.

It takes minutes at some tokens a second, so it runs only where it is asked for, with an interpreter that has SGLang and
the folder of a small checkpoint:

    TURNOUT_TEST_SGLANG=/opt/sglang/bin/python3 TURNOUT_TEST_MODEL=/models/smollm2 pytest tests/test_migration_sglang.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.migration_site import Site

PYTHON, MODEL = os.environ.get("TURNOUT_TEST_SGLANG", ""), os.environ.get("TURNOUT_TEST_MODEL", "")
ON_A_CPU = [
    "--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--grammar-backend",
    "none", "--dtype", "bfloat16", "--disable-radix-cache", "--max-total-tokens", "4096",
]  # fmt: skip
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON and MODEL), reason="TURNOUT_TEST_SGLANG and TURNOUT_TEST_MODEL name no SGLang here"),
]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.setenv("STANDIN_DEAF", "1")
    with Site(tmp_path) as made:
        made.model = Path(MODEL)
        yield made


def test_a_real_sglang_is_started_measured_compared_and_gets_the_port(site: Site) -> None:
    """Bench, questions, router and watch work on SGLang itself; that it says other things than the stand-in is seen."""
    site.vllm(speculates=False)
    told = site.move(
        "--yes", sglang_python=PYTHON, extra=json.dumps(ON_A_CPU), agree=0, limit=2, max_tokens=8, memory_fraction=0.5,
    )  # fmt: skip
    assert told["status"] == "completed", told
    todos = told["todos"]
    assert todos["bench@base"]["result"]["engine"]["name"] == "sglang"
    assert todos["bench@base"]["result"]["tokens_per_s"] > 0
    assert todos["answers@base"]["result"]["failed"] == 0
    assert todos["answers@base"]["result"]["agree"] < 0.5
    assert todos["watch"]["result"]["failures"] == 0
    assert site.serves() == "sglang"
