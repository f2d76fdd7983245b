"""Whether an endpoint speaks the Messages API as the client needs it, whatever its model says.

    python -m benchmarks.messages --url http://127.0.0.1:30000 --model HuggingFaceTB/SmolLM2-135M-Instruct

It asks for a short answer, one that is cut off at `max_tokens`, one with a tool and its result before it, and one that
cannot be, because the question is too long. Each is checked for what the client relies on: text in pieces, a stop
reason, counts of tokens, an error of a known kind. Exit code 1 when something is not as it must be.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import anyio

from agent.abilities.catalogue import planner_abilities, schemas
from agent.config import ModelConfig
from agent.model import Answer, Model, Request
from state.errors import ModelError

SYSTEM = [{"type": "text", "text": "You are brief."}]


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def with_tools() -> list[dict[str, Any]]:
    """A conversation in which a tool was called and answered."""
    use = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "/etc/hostname"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "gpu1\n"}
    text = {"type": "text", "text": "What is the name of this machine?"}
    return [
        said("Read /etc/hostname."),
        {"role": "assistant", "content": [{"type": "text", "text": "I read it."}, use]},
        {"role": "user", "content": [result, text]},
    ]


async def attempt(model: Model, request: Request) -> tuple[Answer | ModelError, int, float]:
    """The answer or the error, the number of pieces of text, and the seconds that it took."""
    pieces = 0

    def hear(kind: str, text: str) -> None:
        nonlocal pieces
        pieces += kind == "text"

    began = time.perf_counter()
    try:
        answer: Answer | ModelError = await model.ask(request, hear)
    except ModelError as error:
        answer = error
    return answer, pieces, time.perf_counter() - began


async def check(config: ModelConfig) -> bool:
    """Ask for all of it, print a line each; whether all was as it must be."""
    model = Model(config)
    few = schemas({name: a for name, a in planner_abilities().items() if name in ("read", "run")}, config)
    asked = {
        "short": (Request(config.name, SYSTEM, [], [said("Say hello.")], 64), ("end_turn", "max_tokens")),
        "cut off": (Request(config.name, SYSTEM, [], [said("Count to one thousand.")], 2), ("max_tokens",)),
        "with tools": (Request(config.name, SYSTEM, few, with_tools(), 64), ("end_turn", "max_tokens", "tool_use")),
        "too long": (Request(config.name, SYSTEM, [], [said("word " * 400_000)], 64), ("bad_request",)),
    }
    fine = True
    try:
        for name, (request, wanted) in asked.items():
            answer, pieces, seconds = await attempt(model, request)
            if isinstance(answer, ModelError):
                told, good = f"{answer.kind}: {answer.message[:120]}", answer.kind in wanted
            else:
                first = f"first after {answer.ttft_s or 0:.2f} s"
                told = f"{answer.stop_reason}, {pieces} pieces, {first}, usage {answer.usage}"
                counted = answer.usage.get("input", 0) > 0 and answer.usage.get("output", 0) > 0
                good = answer.stop_reason in wanted and counted and (pieces > 0 or bool(answer.tool_uses))
            fine = fine and good
            print(f"{'ok  ' if good else 'WRONG'} {name:<11} {seconds:6.2f} s  {told}", flush=True)
    finally:
        await model.close()
    return fine


def main() -> None:
    """Check an endpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    sys.exit(0 if anyio.run(check, ModelConfig(name=options.model, base_url=options.url)) else 1)


if __name__ == "__main__":
    main()
