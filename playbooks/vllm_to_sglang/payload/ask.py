"""The same questions to a server: what a user of the chat interface would see, in a form that can be compared.

python3 -m vllm_to_sglang.ask --url http://127.0.0.1:8000 --prompts mt=mt.jsonl --out old.json

Asked greedily: each prompt with the log-probabilities of its tokens, one question that calls a tool, one that thinks.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from .common import StepError, fetch, main, progress, result, said, write

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather in a city now.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip
TOOL_QUESTION = "What is the weather in Paris? Use the tool."
REASONING_QUESTION = (
    "A bat and a ball cost 1.10 together; the bat costs 1.00 more than the ball. What does the ball cost?"
)


def prompts(path: Path, limit: int) -> list[list[dict[str, Any]]]:
    """Conversations of a file of JSON lines, of the shapes that the bench reads. Raises StepError for none."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line) if line.strip() else {}
        turns = one.get("turns")
        named = (one[key] for key in ("question", "prompt", "instruction", "text", "problem") if one.get(key))
        text = next(named, turns[0] if turns else None)
        messages = one.get("messages") or (text if isinstance(text, list) else None)
        if messages:
            found.append([m for m in messages if m.get("role") in ("system", "user")])
        elif isinstance(text, str):
            found.append([{"role": "user", "content": text}])
    if not found:
        raise StepError(f"`{path}` has no prompt: lines with `messages`, `prompt`, `question`, `text` or `turns`")
    return found[:limit] if limit else found


def chat(url: str, model: str, messages: list[dict[str, Any]], tokens: int, **more: Any) -> dict[str, Any]:
    """One greedy answer: `text`, `tokens` with their `logprobs`, `tool_calls`, `reasoning`, `finish`; or `error`."""
    body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0, "seed": 0, **more}
    try:
        choice = fetch(url + "/v1/chat/completions", body, 300)["choices"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        return {"error": said(error)}
    message = choice.get("message") or {}
    content = ((choice.get("logprobs") or {}).get("content")) or []
    calls = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    return {
        "text": message.get("content") or "",
        "tokens": [one.get("token") for one in content],
        "logprobs": [one.get("logprob") for one in content],
        "tool_calls": [{"name": call.get("name"), "arguments": _parsed(call.get("arguments"))} for call in calls],
        # vLLM calls it `reasoning` (older ones `reasoning_content`), SGLang `reasoning_content`.
        "reasoning": message.get("reasoning_content") or message.get("reasoning") or "",
        "finish": choice.get("finish_reason"),
    }


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def ask(given: argparse.Namespace) -> int:
    """Ask everything and write it down."""
    url = given.url.rstrip("/")
    try:
        model = fetch(url + "/v1/models", limit_s=30)["data"][0]["id"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise StepError(f"`{url}` names no model: {said(error)}") from error
    _, _, path = given.prompts.partition("=")
    asked = prompts(Path(path or given.prompts), given.limit)
    began, answers = time.monotonic(), []
    for number, messages in enumerate(asked):
        answers.append(chat(url, model, messages, given.max_tokens, logprobs=True, top_logprobs=1))
        progress(number + 1, len(asked) + 2, "questions")
    tools = chat(
        url, model, [{"role": "user", "content": TOOL_QUESTION}], 4 * given.max_tokens, tools=[TOOL], tool_choice="auto"
    )
    thinks = chat(url, model, [{"role": "user", "content": REASONING_QUESTION}], 8 * given.max_tokens)
    progress(len(asked) + 2, len(asked) + 2, "questions")
    write(Path(given.out), json.dumps({"model": model, "answers": answers, "tool": tools, "reasoning": thinks}))
    failed = sum("error" in one for one in answers)
    first = next((one["error"] for one in answers if "error" in one), None)
    if failed == len(answers):
        raise StepError(f"`{url}` answered none of {len(answers)} questions: {first}")
    took = round(time.monotonic() - began, 2)
    result({"asked": len(asked), "failed": failed, "first_error": first, "model": model, "seconds": took})
    return 0


def arguments() -> argparse.Namespace:
    """What it takes."""
    parser = argparse.ArgumentParser(prog="ask")
    parser.add_argument("--url", required=True)
    parser.add_argument("--prompts", required=True, metavar="[NAME=]FILE")
    parser.add_argument("--out", required=True)
    parser.add_argument("--limit", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    return parser.parse_args()


if __name__ == "__main__":
    main(lambda: ask(arguments()))
