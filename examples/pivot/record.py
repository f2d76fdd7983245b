"""Plays the example's conversation on the real chat screen, without a terminal, and takes pictures of it.

    python examples/pivot/record.py [--out FOLDER] [--size 140x40]

The operator's part is here: what is typed, and which keys answer the questions. The model's part is `script.yaml`, said
by the scripted model; the engines are stand-ins that really run on this machine. Pictures: `plan.svg` when leave is
asked for, `pivot.svg` when the attempt has failed its gate, `done.svg` at the end. Prints the session's id.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from textual.pilot import Pilot  # noqa: E402 - found once the path is set

from agent.screen_app import ChatApp  # noqa: E402
from agent.screen_question import QuestionPanel  # noqa: E402
from agent.scripted import ScriptedModel  # noqa: E402

SAYS = "vLLM is dead: 15 % acceptance and 0.66x of no speculation. Should we look at SGLang, and try vLLM once more?"
LIMIT_S = 120.0
_FONT = re.compile(r"@font-face \{.*?\}\n?", re.DOTALL)


async def until(app: ChatApp, holds: Callable[[Any], bool], what: str) -> None:
    """Wait until something holds of the chat. Raises what ended the screen, or `TimeoutError`."""
    for _ in range(int(LIMIT_S / 0.05)):
        if app.failure is not None:
            raise app.failure
        chat = app.session.chat if app.session is not None and app.session.ready else None
        if chat is not None and holds(chat):
            return
        await asyncio.sleep(0.05)
    raise TimeoutError(f"waited {LIMIT_S:.0f} s for {what}")


def picture(app: ChatApp, path: Path) -> None:
    """The screen as it stands, as an SVG that loads nothing from anywhere."""
    path.write_text(_FONT.sub("", app.export_screenshot(title="turnout chat")), encoding="utf-8")


def asks(todo: str) -> Callable[[Any], bool]:
    return lambda chat: any(id.startswith(todo) for id in chat.questions)


def ended(todo: str, status: str) -> Callable[[Any], bool]:
    return lambda chat: todo in chat.board.todos and chat.board.todos[todo].status == status


async def say_yes(app: ChatApp, pilot: Pilot[Any]) -> None:
    """Answer the question that is shown; it has the keys when nobody was typing, else Tab gives them to it."""
    if not app.query_one(QuestionPanel).has_focus:
        await pilot.press("tab")
    await pilot.press("y")


async def play(out: Path, size: tuple[int, int]) -> str:
    """The whole conversation; the session's id."""
    app = ChatApp(None, None)
    async with app.run_test(size=size) as pilot:
        await until(app, lambda chat: True, "the session")
        await pilot.press(*SAYS, "enter")
        await until(app, asks("call:"), "the question about the playbook")
        await until(app, lambda chat: chat.talk.doing == "idle", "the end of the model's turn")
        await pilot.pause(0.5)
        picture(app, out / "plan.svg")
        await say_yes(app, pilot)
        await until(app, asks("leave"), "the question about stopping vLLM")
        await until(app, lambda chat: chat.talk.doing == "idle", "the end of the model's turn")
        await pilot.pause(0.5)
        picture(app, out / "pivot.svg")
        await say_yes(app, pilot)
        await until(app, ended("switch", "completed"), "the end")
        await until(
            app, lambda chat: chat.conversation.entries[-1].text.startswith("**Done.**"), "the model's last words"
        )
        await pilot.pause(0.5)
        picture(app, out / "done.svg")
        session = str(app.session.chat.session)
        await pilot.press("ctrl+d")
    return session


def main() -> None:
    """Serve the script, play, say where everything is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--size", default="140x40")
    options = parser.parse_args()
    columns, rows = map(int, options.size.split("x"))
    options.out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    with ScriptedModel.from_file(Path(__file__).with_name("script.yaml")) as model:
        os.environ.update(ANTHROPIC_BASE_URL=model.base_url, ANTHROPIC_API_KEY="none", TURNOUT_MODEL="scripted-model")
        print(asyncio.run(play(options.out, (columns, rows))))


if __name__ == "__main__":
    main()
