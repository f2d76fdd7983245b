"""What people paste: lists, logs, prompts, and commands that copying has damaged."""

from __future__ import annotations

import json

import pytest

from tests.translate_helpers import COMMAND, WANTED, in_bash, server
from tools.serving.flags import translate


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(
            [
                {
                    "Config": {
                        "Image": "vllm/vllm-openai",
                        "Entrypoint": ["vllm", "serve"],
                        "Env": ["PATH=/bin"],
                        "Cmd": ["org/m", "-tp", "2", "--max-model-len=4096", "--hf-overrides", '{"a": "b c"}'],
                    }
                }
            ]
        ),
        '[vllm serve org/m --max-model-len=4096 -tp 2 --hf-overrides {"a": "b c"}]',
        "cmd: ['vllm', 'serve', 'org/m', '-tp', '2', '--max-model-len', '4096', '--hf-overrides', '{\"a\": \"b c\"}']",
        "vllm\0serve\0org/m\0-tp\0" + "2\0--max-model-len\0" + '4096\0--hf-overrides\0{"a": "b c"}\0',
        "INFO non-default args: {'model': 'org/m', 'tensor_parallel_size': 2, 'max_model_len': 4096, "
        "'hf_overrides': {'a': 'b c'}}",
        "INFO args: Namespace(model='org/m', tensor_parallel_size=2, max_model_len=4096, hf_overrides={'a': 'b c'}, "
        "x=None)",
        "root 12 1.0 2.0 100 200 ? Sl 10:00 0:01 /usr/bin/python3 /usr/bin/vllm serve org/m -tp 2 --max-model-len 4096 "
        '--hf-overrides {"a": "b c"}',
        '--model org/m -tp 2 --max-model-len 4096 --hf-overrides \'{"a": "b c"}\'',
        "# How\n\n```bash\n" + COMMAND + "\n```\n",
    ],
)
def test_lists_and_logs_are_read(text: str) -> None:
    """Logged arguments, `ps`, `/proc`, pages and bare flags say the same as the command did."""
    assert translate(text).parsed == WANTED


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (COMMAND.replace(" --", " `\n  --"), "PowerShell"),
        (COMMAND.replace(" --", " ^\n  --"), "PowerShell"),
        (COMMAND.replace(" --", " \\\n\n  --"), "empty line"),
        (COMMAND.replace(" --", " \\\n  # a remark\n  --"), "a comment"),
        (COMMAND.replace(" --", " \\ --"), "a backslash and a space"),
        (COMMAND.replace(" --", "\u00a0--"), "spaces"),
        (COMMAND.replace(" --", " \u2013"), "typographic dash"),
        (COMMAND.replace('"', "\u201d").replace("'", ""), "typographic quotes"),
        (COMMAND.replace("'", ""), "cut at its spaces"),
    ],
)
def test_what_copying_did_to_a_command_is_mended_and_said(text: str, note: str) -> None:
    """Damage that has one reading is mended, what comes out is whole, and the report says what it was."""
    found = translate(text)
    assert found.parsed == WANTED
    assert found.exit_code == 10
    assert any(note in line for line in found.warnings), found.warnings
    assert [server(words) for words in in_bash(found.command or "")] == [WANTED]


@pytest.mark.parametrize("prompt", ["$ ", "# ", "(venv) me@host:~/x$ ", "> "])
def test_a_prompt_goes(prompt: str) -> None:
    """A command that was copied with its prompt comes out without it."""
    found = translate(prompt + COMMAND)
    assert found.parsed == WANTED
    assert (found.command or "").startswith("python -m sglang")
