"""Print the options of the SGLang (or vLLM) that this Python has, as one JSON object: its own argparse, asked.

    python3 dump.py sglang          on a host, sent over standard input
    python3 dump.py vllm --stubs    beside the unpacked sources of a wheel: what is not there is a stand-in

Standard library alone and Python 3.8, since it runs where the engine is. The engine's parser is built by the engine's
own code and then read; no option's help text is kept. The shape is that of `tools/serving/flags/table.py`.
"""

from __future__ import annotations

import argparse
import enum
import importlib
import json
import sys
from typing import Any

MARK = "TURNOUT-FLAGS "
_VLLM = ("vllm.entrypoints.openai.cli_args", "vllm.entrypoints.common.cli_args")
_FLEXIBLE = ("vllm.utils.argparse_utils", "vllm.utils")


def sglang_parser() -> argparse.ArgumentParser:
    """SGLang's parser, as `sglang.launch_server` builds it."""
    arguments = importlib.import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser()
    arguments.add_cli_args(parser)
    return parser


def vllm_parser() -> argparse.ArgumentParser:
    """vLLM's parser, as `vllm serve` builds it. Releases differ in where it is. Raises ImportError."""
    said = []
    for name in _VLLM:
        try:
            module = importlib.import_module(name)
            if getattr(module, "__file__", None):
                return _flexible(module)
        except (ImportError, AttributeError) as error:
            said.append("{}: {}".format(name, error))  # noqa: UP032
    raise ImportError("; ".join(said) or "no make_arg_parser in this vLLM")


def _flexible(module: Any) -> argparse.ArgumentParser:
    for place in _FLEXIBLE:
        try:
            kind = importlib.import_module(place).FlexibleArgumentParser
        except (ImportError, AttributeError):
            continue
        if isinstance(kind, type) and issubclass(kind, argparse.ArgumentParser):
            parser: argparse.ArgumentParser = module.make_arg_parser(kind())
            return parser
    raise ImportError("no FlexibleArgumentParser")


def plain(value: Any) -> Any:
    """A default or a choice as JSON has it."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return None


def _choices(choices: Any) -> Any:
    """In the engine's order; of a set, which has none, sorted."""
    return plain(choices if isinstance(choices, (set, frozenset)) else list(choices))


def type_name(kind: Any) -> str:
    """The name of a converter; vLLM's `optional_type(int)` is `optional int`."""
    name = str(getattr(kind, "__qualname__", type(kind).__name__))
    if "<locals>" not in name:
        return name
    inner = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    names = [str(getattr(value, "__name__", "")) for value in inner if callable(value)]
    return " ".join(["optional" if "optional" in name else name.rpartition(".")[2], *names])


def option(action: Any) -> dict[str, Any]:
    """One option: only what differs from an option that stores one string is said."""
    said: dict[str, Any] = {
        "flags": list(action.option_strings), "dest": action.dest, "action": type(action).__name__.strip("_"),
    }  # fmt: skip
    const = action.const if action.const is not None else getattr(action, "const_value", None)
    more = {
        "type": None if action.type is None else type_name(action.type),
        "nargs": action.nargs,
        "choices": None if action.choices is None else _choices(action.choices),
        "const": plain(const),
        "default": None if action.default == argparse.SUPPRESS else plain(action.default),
        "required": True if action.required and action.option_strings else None,
        "instead": getattr(action, "new_flag", None),
        "deprecated": True if getattr(action, "deprecated", False) else None,
    }
    said.update({name: value for name, value in more.items() if value is not None})
    return said


def version_of(engine: str) -> str | None:
    """The installed version: of the distribution, else what the module says."""
    from importlib import metadata

    try:
        return metadata.version(engine)
    except metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(engine), "__version__", "unknown"))


def main() -> None:
    """Print the table behind a mark, because engines print while they are imported."""
    engine = sys.argv[1] if len(sys.argv) > 1 else "sglang"
    if "--stubs" in sys.argv:
        stand_ins = importlib.import_module("stand_ins")
        stand_ins.install(engine, sys.argv[sys.argv.index("--stubs") + 1 :])
    parser = sglang_parser() if engine == "sglang" else vllm_parser()
    options = [option(action) for action in parser._actions if action.dest != "help"]
    print(MARK + json.dumps({"engine": engine, "version": version_of(engine), "options": options}))


if __name__ == "__main__":
    main()
