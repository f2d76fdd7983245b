"""Prompts from the files that people have: one JSON object a line, of one of these shapes.

    prompt | question | instruction | text     a user turn; `input` beside `instruction` is put below it
    turns                                      a list of user turns, of which the first is asked
    messages                                   role and content; a user turn at the end, or everything before an answer

`id` and `split` (`train` or `eval`) are read where they are there. Lines without a split are for training, except
`holdout` of them, which are chosen by a hash of their text: the same ones in every run and on every host.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .config import Data
from .errors import StepError

SPLITS = ("train", "eval")
_TEXTS = ("prompt", "question", "instruction", "text")
Message = dict[str, str]


@dataclass(frozen=True)
class Prompt:
    """A conversation that ends with the user's turn; `split` is empty where the file does not say."""

    id: str
    split: str
    messages: tuple[Message, ...]

    @property
    def text(self) -> str:
        """The last user turn."""
        return self.messages[-1]["content"]

    @property
    def digest(self) -> str:
        """A hash of what is asked."""
        return hashlib.sha256(json.dumps(self.messages, sort_keys=True).encode()).hexdigest()[:16]


def load_prompts(data: Data, more: Sequence[Path] = ()) -> list[Prompt]:
    """The prompts of all files of `data` and of `more`, training first, each text once, at most as many as it says.

    Raises StepError for a file that is missing, a line that is no prompt, or when there is nothing to train on.
    """
    builtin = Path(__file__).with_name("prompts.jsonl")
    paths = [builtin if name == "builtin" else Path(name).expanduser() for name in data.prompts]
    found: dict[str, Prompt] = {}
    for path in (*paths, *more):
        for prompt in read_prompts(path):
            found.setdefault(prompt.digest, prompt)
    prompts = split_off(list(found.values()), data.holdout)
    train = [p for p in prompts if p.split == "train"]
    if not train:
        raise StepError(
            f"no prompt to train on in {', '.join(f'`{p}`' for p in paths)}", hint="set `data.holdout` lower"
        )
    evaluation = [p for p in prompts if p.split == "eval"]
    return train[: data.train_prompts or None] + evaluation[: data.eval_prompts or None]


def named_files(prompts: Sequence[str]) -> list[tuple[str, Path]]:
    """Names and files of `name=file` settings. Raises StepError for one without a name."""
    pairs = [text.partition("=") for text in prompts]
    for name, equals, file in pairs:
        if not (name and equals and file) or "/" in name:
            raise StepError(f"`--prompts {name}{equals}{file}`", hint="write it as `--prompts name=file.jsonl`")
    return [(name, Path(file).expanduser()) for name, _, file in pairs]


def split_off(prompts: Sequence[Prompt], holdout: int) -> list[Prompt]:
    """`prompts` with a split each: of those without one, `holdout` for evaluation and the rest for training."""
    held = {p.digest for p in sorted((p for p in prompts if not p.split), key=lambda p: p.digest)[:holdout]}
    return [replace(p, split=p.split or ("eval" if p.digest in held else "train")) for p in prompts]


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of one JSONL file, in its order."""
    if not path.is_file():
        raise StepError(f"no prompts: `{path}` is no file", hint="set `data.prompts` to `builtin` or JSONL files")
    lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON may hold other ends of lines
    return [_prompt(line, path, n) for n, line in enumerate(lines, 1) if line.strip()]


def _prompt(line: str, path: Path, number: int) -> Prompt:
    try:
        row = json.loads(line)
        messages = _messages(row)
        prompt = Prompt(str(row.get("id", f"{path.stem}-{number}")), row.get("split", ""), messages)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise StepError(
            f"`{path}` line {number} is no prompt: {error!r}",
            hint=f"a line is an object with one of {', '.join(_TEXTS)}, turns, messages",
        ) from error
    if prompt.split not in ("", *SPLITS):
        raise StepError(f"`{path}` line {number}: split `{prompt.split}`", hint=f"choose one of {', '.join(SPLITS)}")
    return prompt


def _messages(row: Any) -> tuple[Message, ...]:
    if "messages" in row:
        messages = [{"role": m["role"], "content": m["content"]} for m in row["messages"]]
        while messages and messages[-1]["role"] != "user":
            messages.pop()
    else:
        text = row["turns"][0] if "turns" in row else row[next((k for k in _TEXTS if k in row), "prompt")]
        instances = row.get("instances") or [{}]
        below = row.get("input") or (instances[0].get("input") if "instruction" in row else "")
        messages = [{"role": "user", "content": f"{text}\n\n{below}" if below else text}]
    if not messages or not all(isinstance(m["content"], str) and m["content"].strip() for m in messages):
        raise ValueError("no text in it")
    return tuple(messages)
