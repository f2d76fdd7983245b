"""What is around the translation: its tables, its page, its bounds and its command line."""

from __future__ import annotations

import json
import time
from pathlib import Path

from state.errors import UsageError
from tests.cli_helpers import ROOT, turnout
from tests.translate_helpers import COMMAND, WANTED, in_bash, server
from tools.serving.flags import translate
from tools.serving.flags.items import vocabulary
from tools.serving.flags.names import (
    ATTENTION,
    COPIES,
    DEFAULTS,
    LOSSES,
    MOE_A2A,
    MOE_RUNNER,
    REASONING_PARSERS,
    TOOL_PARSERS,
)
from tools.serving.flags.page import missing, page
from tools.serving.flags.table import load


def test_names_of_the_tables_exist() -> None:
    """Every flag and value that a rule writes down is one that vLLM had, and that SGLang has."""
    sglang, words = load("sglang"), vocabulary()
    old = {option.dest.replace("_", "-") for table in words.tables for option in table.options}
    for names in (COPIES, DEFAULTS, LOSSES):
        assert not names.keys() - old, names.keys() - old
    assert not [flag for flag in COPIES.values() if sglang.find(flag) is None]
    for flag, values in (
        ("--attention-backend", ATTENTION), ("--moe-runner-backend", MOE_RUNNER), ("--moe-a2a-backend", MOE_A2A),
        ("--tool-call-parser", TOOL_PARSERS), ("--reasoning-parser", REASONING_PARSERS),
    ):  # fmt: skip
        option = sglang.find(flag)
        assert option is not None
        assert not set(values.values()) - set(option.choices or ())


def test_the_page_is_what_the_program_does() -> None:
    """docs/flags.md is up to date, and no known option is without a row."""
    assert (ROOT / "docs" / "flags.md").read_text(encoding="utf-8") == page()
    assert list(missing()) == []


def test_a_megabyte_of_anything_is_answered_at_once() -> None:
    """No input makes work out of proportion: the effort is bounded, whatever the text holds."""
    size = 1 << 20
    texts = [
        "export A=1\n" * (size // 11) + COMMAND, "vllm serve M " + "--port 80 " * (size // 10), "{ " * (size // 2),
        "vllm serve M --hf-overrides " + '{"a":' * (size // 5), "docker run " * (size // 11),
        "image: vllm\nargs:\n" + "- --port=80\n" * (size // 12), "[" * size, "vllm serve M\n" * (size // 13),
        "vllm\0" * (size // 5), "A=$A$A\n" * (size // 7) + "vllm serve $A",
    ]  # fmt: skip
    began = time.process_time()
    for text in texts:
        try:
            translate(text)
        except UsageError:
            continue
    assert time.process_time() - began < 60


def test_the_command_line_puts_the_command_on_stdout_and_the_report_on_stderr(tmp_path: Path) -> None:
    """So a script can be written by redirection, and programs get one JSON object."""
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\n" + COMMAND + " --config c.yaml\n", encoding="utf-8")
    (tmp_path / "c.yaml").write_text("max-num-seqs: 7\n", encoding="utf-8")
    done = turnout("translate", str(script))
    assert done.returncode == 0, done.stderr
    assert [server(words)["max_running_requests"] for words in in_bash(done.stdout)] == [7]
    assert "clean" in done.stderr
    told = json.loads(turnout("translate", "-", "--json", stdin=COMMAND).stdout)
    assert told["parsed"] == WANTED
    assert set(told) >= {"command", "form", "parsed", "env", "no_counterpart", "warnings", "refused"}
    refused = turnout("translate", "vllm serve M --lora-path x")
    assert refused.returncode == 20
    assert refused.stdout == ""
    assert "--lora-modules" in refused.stderr
    unknown = turnout("translate", "nowhere.sh")
    assert unknown.returncode == 2
    assert "no file" in unknown.stderr
