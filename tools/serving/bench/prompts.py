"""Reads prompts from JSONL of the shapes that evaluation sets come in.

A line is an object with one of

    input_ids, prompt_ids     token ids, sent as they are
    messages                  a conversation that ends with the user
    conversations             ShareGPT's [{"from": "human", "value": ...}, ...], up to the first answer
    turns                     MT-bench's list of user turns; the first is asked
    question | prompt | instruction (with `input`) | text | problem      what the user says

or is a JSON string. `answer_ids` beside `prompt_ids` (as the trainer's answers have them) is kept as the answer that
the target itself gave. A conversation gets the chat template of the server; with `raw` a text is sent without one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from .errors import BenchError

_TEXTS = ("question", "prompt", "instruction", "text", "problem")
_SPEAKERS = {"human": "user", "user": "user", "system": "system"}


class Prompt(NamedTuple):
    """Exactly one of `ids`, `messages` and `text`, except that `ids` may stand beside the `messages` they came from."""

    messages: list[dict[str, Any]] | None = None
    text: str | None = None
    ids: list[int] | None = None
    answer_ids: list[int] | None = None


def load(path: str, *, raw: bool = False, split: str | None = None, limit: int = 0) -> list[Prompt]:
    """The prompts of a file, the first `limit` of them (0: all), of one `split` where lines name theirs.

    Raises BenchError for a file that cannot be read, a line that is no prompt, and a file without any.
    """
    prompts: list[Prompt] = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                row = _parse(line, path, number)
                if row is None or (split and isinstance(row, dict) and row.get("split", split) != split):
                    continue
                prompts.append(_prompt(row, raw, path, number))
                if limit and len(prompts) >= limit:
                    break
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"cannot read prompts from `{path}`: {error}", "give a JSONL file in UTF-8") from error
    if not prompts:
        raise BenchError(
            "`{}` has no prompt{}".format(path, f" of split `{split}`" if split else ""), "give a JSONL file with some"
        )
    return prompts


def _parse(line: str, path: str, number: int) -> Any:
    if not line.strip():
        return None
    try:
        return json.loads(line)
    except ValueError as error:
        raise BenchError(f"`{path}` line {number} is no JSON: {error}", "write one object a line") from error


def _prompt(row: Any, raw: bool, path: str, number: int) -> Prompt:
    if isinstance(row, str):
        return _said(row, raw)
    if isinstance(row, dict):
        ids = row.get("input_ids") or row.get("prompt_ids")
        messages = _messages(row)
        text = _text(row)
        if ids and all(isinstance(token, int) for token in ids):
            asked = messages or ([{"role": "user", "content": text}] if text else None)
            return Prompt(messages=asked, ids=list(ids), answer_ids=row.get("answer_ids"))
        if messages:
            return Prompt(messages=messages)
        if text:
            return _said(text, raw)
    raise BenchError(
        f"`{path}` line {number} holds no prompt: `{json.dumps(row)[:120]}`",
        "give it one of messages, turns, conversations, input_ids, " + ", ".join(_TEXTS),
    )


def _said(text: str, raw: bool) -> Prompt:
    return Prompt(text=text) if raw else Prompt(messages=[{"role": "user", "content": text}])


def _text(row: dict[str, Any]) -> str | None:
    for name in _TEXTS:
        value = row.get(name)
        if isinstance(value, str) and value.strip():
            extra = row.get("input") if name == "instruction" else None
            return value + ("\n\n" + extra if isinstance(extra, str) and extra.strip() else "")
    return None


def _messages(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The conversation of a line up to the last thing that is to be answered, or `None`."""
    turns = row.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return [{"role": "user", "content": turns[0]}]
    found: list[dict[str, Any]] = [
        {"role": str(message.get("role", "user")), "content": message.get("content")}
        for message in row.get("messages") or ()
    ]
    while found and found[-1]["role"] == "assistant":
        found.pop()
    for message in () if found else row.get("conversations") or ():
        role = _SPEAKERS.get(str(message.get("from", message.get("role"))))
        if role is None:  # the first answer: what follows was said to somebody else's words
            break
        found.append({"role": role, "content": message.get("value", message.get("content"))})
    return found if any(message["role"] == "user" for message in found) else None
