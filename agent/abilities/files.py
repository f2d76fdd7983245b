"""Files on hosts: `read`, `list`, `grep` answer at once; `write` and `patch` are todos that ask first.

What is read is data: it comes in a marked block, head and tail, with the size of the whole.
"""

from __future__ import annotations

import shlex
from typing import Annotated

from pydantic import Field

from agent.abilities.base import MAX_CHARS, Ability, Input, Result, Use, _Answered, fenced, free_id, leave
from agent.abilities.commands import HostName
from agent.events import Add
from state.errors import ToolError
from state.specs import TodoSpec
from tools.permissions import decide_path
from tools.shell import clean_text

READ_S = 30.0


class ReadInput(Input):
    path: str
    host: HostName = "local"
    line: Annotated[int, Field(ge=1, description="The first line to read.")] = 1
    lines: Annotated[int, Field(ge=1, le=5000)] = 400


class ListInput(Input):
    path: str = "."
    host: HostName = "local"


class GrepInput(Input):
    pattern: Annotated[str, Field(min_length=1, description="An extended regular expression.")]
    path: Annotated[str, Field(description="A file, or a folder to search through.")] = "."
    host: HostName = "local"
    include: Annotated[str | None, Field(description="Only files whose names fit, such as `*.py`.")] = None
    ignore_case: bool = False
    most: Annotated[int, Field(ge=1, le=1000)] = 200


class WriteInput(Input):
    path: str
    content: str
    host: HostName = "local"
    why: Annotated[str, Field(description="What for; the operator reads it when asked for leave.")] = ""


class PatchInput(Input):
    path: str
    old: Annotated[str, Field(min_length=1, description="A text that occurs exactly once in the file.")]
    new: str
    host: HostName = "local"
    why: str = ""


def path_word(path: str) -> str:
    """A path as one shell word; `~/` stays the host's home folder."""
    if path.startswith("~/"):
        return '"$HOME"/' + shlex.quote(path[2:] or ".")
    return shlex.quote(path if not path.startswith("-") else f"./{path}")


async def _ask_host(use: Use, host: str, path: str, command: str, limit: int = MAX_CHARS) -> str:
    decision = decide_path(use.desk.policy, host, path, "read")
    if decision.verdict != "allow":
        raise ToolError(
            f"`{path}` on `{host}` is not simply read: {decision.why}", hint="use `run`, which asks the operator first"
        )
    done = await (await use.desk.host(host)).run(command, timeout_s=READ_S, max_output=limit)
    if done.timed_out:
        raise ToolError(f"reading `{path}` on `{host}` took longer than {READ_S:.0f} s", hint="use `job` for that")
    if not done.ok and not done.stdout:
        raise ToolError(f"`{path}` on `{host}`: {clean_text(done.stderr).strip() or f'exit code {done.rc}'}")
    return clean_text(done.stdout)


async def read(use: Use, given: ReadInput) -> Result:
    path, last = path_word(given.path), given.line + given.lines - 1
    command = f"wc -c -l < {path} && sed -n '{given.line},{last}p;{last}q' {path}"
    counts, _, text = (await _ask_host(use, given.host, given.path, command, 4 * MAX_CHARS)).partition("\n")
    numbers = [int(part) for part in counts.split()]
    if len(numbers) != 2:
        raise ToolError(f"`{given.path}` on `{given.host}` is no file that can be read")
    lines, size = numbers
    whole = {"bytes": size, "where": f"{given.host}:{given.path}"} if lines > last or len(text) > MAX_CHARS else None
    told = f"{size:,} bytes, {lines:,} lines; from line {given.line} on"
    return Result(f"{told}\n{fenced(text)}", whole=whole)


async def list_folder(use: Use, given: ListInput) -> Result:
    text = await _ask_host(
        use, given.host, given.path, f"LC_ALL=C ls -lA --time-style=long-iso -- {path_word(given.path)}"
    )
    return Result(fenced(text))


async def grep(use: Use, given: GrepInput) -> Result:
    words = ["grep", "-rnIE", "-m", str(given.most), *(["-i"] if given.ignore_case else [])]
    words += [f"--include={given.include}"] if given.include else []
    path = path_word(given.path)
    command = f"{shlex.join([*words, '-e', given.pattern])} -- {path}; code=$?; [ $code -le 1 ]"
    text = await _ask_host(use, given.host, given.path, command)
    count = text.count("\n")
    return Result(f"{count} lines shown\n{fenced(text)}" if count else "nothing fits")


async def write(use: Use, given: WriteInput) -> _Answered:
    size = len(given.content.encode())
    args = {"host": given.host, "path": given.path, "content": given.content}
    return await _change(use, "write_file", args, f"write {size:,} bytes to `{given.path}`", given.why)


async def patch(use: Use, given: PatchInput) -> _Answered:
    args = {"host": given.host, "path": given.path, "old": given.old, "new": given.new}
    return await _change(use, "patch_file", args, f"change `{given.path}`", given.why)


async def _change(use: Use, tool: str, args: dict[str, str], what: str, why: str) -> _Answered:
    decision = decide_path(use.desk.policy, args["host"], args["path"], "write")
    if decision.verdict == "deny":
        raise ToolError(f"`{args['path']}` on `{args['host']}` may not be written: {decision.why}")
    body = {"tool": tool, "plain": args, "by": "model"}
    stem = tool.partition("_")[0]
    spec = TodoSpec(
        free_id(use.graph.state, stem), f"{what[:1].upper()}{what[1:]} on {args['host']}"[:120], "tool", body
    )
    if decision.verdict == "allow":
        return await use.edit([Add(spec)])
    shown = args.get("content") or f"- {args.get('old')}\n+ {args.get('new')}"
    asked = f"{what} on `{args['host']}`" + (f": {why}" if why else "")
    question = leave(use, asked, decision, host=args["host"], command=shown)
    return await use.edit([question, Add(spec, ((question.spec.id, "success"),))])


READ = Ability("read", "Read lines of a text file on a host.", ReadInput, read, read_only=True)
LIST = Ability("list", "List a folder on a host.", ListInput, list_folder, read_only=True)
GREP = Ability("grep", "Search files on a host for a regular expression.", GrepInput, grep, read_only=True)
WRITE = Ability("write", "Write a file on a host, whole. Asks the operator first.", WriteInput, write)
PATCH = Ability("patch", "Replace a text within a file on a host. Asks the operator first.", PatchInput, patch)
