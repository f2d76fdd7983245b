"""What every step shares: its command line, its progress, its result, its device, and files that are written whole.

A step is a function `(Config, Workdir) -> result`. `run_step` parses the command line, runs it in the work directory,
and stores the result as JSON in `results/<step>.json` for the later steps and at the path in `TURNOUT_OUTPUT` for
whoever started it (without that variable it is printed). Expected trouble ends in one message on stderr and exit code
1.

Nothing here imports torch before it is needed: a step that finds its work done is over in a tenth of a second.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import Config, load_config
from .errors import StepError

if TYPE_CHECKING:
    import torch

Result = dict[str, Any]


@dataclass(frozen=True)
class Workdir:
    """Where the steps of one session leave things for each other."""

    root: Path

    @property
    def target(self) -> Path:
        """The target's checkpoint (a link to where it is cached)."""
        return self.root / "target"

    @property
    def answers(self) -> Path:
        return self.root / "answers.jsonl"

    def set_of(self, name: str) -> Path:
        """The target's answers to the prompt set `name`."""
        return self.root / "sets" / f"{name}.jsonl"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    @property
    def drafter(self) -> Path:
        return self.root / "drafter"

    @property
    def report(self) -> Path:
        return self.root / "report"

    def save_result(self, step: str, result: Result) -> None:
        write_json(self.root / "results" / f"{step}.json", result)

    def result(self, step: str) -> Result:
        """What `step` reported. Raises StepError when it has not run here."""
        path = self.root / "results" / f"{step}.json"
        if not path.is_file():
            raise StepError(
                f"`{path}` is missing: step `{step}` has not finished here", hint=f"run `python -m eagle3.{step}` first"
            )
        return read_json(path)


def run_step(
    name: str,
    step: Callable[[Config, Workdir], Result],
    argv: Sequence[str] | None = None,
    *,
    shorthands: Mapping[str, str] | None = None,
) -> int:
    """Run one step as a command and return its exit code: 0, or 1 with a message on stderr.

    `shorthands` are further options: `--NAME` sets the boolean setting that it maps to, `--NAME VALUE`, as often as
    wanted, the one whose name ends in `[]`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m eagle3.{name}", description=(step.__doc__ or "").split("\n")[0])
    parser.add_argument("--preset", default="smoke", help="a preset's name, or the path of a .toml file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting")
    parser.add_argument("--work", default=".", help="the directory shared by the steps (default: this one)")
    for option, setting in (shorthands or {}).items():
        if setting.endswith("[]"):
            parser.add_argument(option, action="append", default=[], help=f"adds to `{setting[:-2]}`")
        else:
            parser.add_argument(option, action="store_true", help=f"the same as `--set {setting}=true`")
    arguments = parser.parse_args(argv)
    overrides = list(arguments.set)
    for option, setting in (shorthands or {}).items():
        if given := getattr(arguments, option.lstrip("-").replace("-", "_")):
            name_of, value = (setting[:-2], json.dumps(given)) if setting.endswith("[]") else (setting, "true")
            overrides.append(f"{name_of}={value}")
    work = Workdir(Path(arguments.work).absolute())
    started = time.monotonic()
    try:
        work.root.mkdir(parents=True, exist_ok=True)
        result = _run(name, step, load_config(arguments.preset, overrides), work)
    except StepError as error:
        print(error.render(), file=sys.stderr)
        return 1
    if not _leads():
        return 0
    result = {**result, "seconds": round(time.monotonic() - started, 1)}
    work.save_result(name, result)
    output = os.environ.get("TURNOUT_OUTPUT")
    if output:
        write_json(Path(output), result)
    else:
        print(json.dumps(result, indent=2))
    return 0


def _run(name: str, step: Callable[[Config, Workdir], Result], config: Config, work: Workdir) -> Result:
    """The step, with memory that does not suffice told as what to lower and to what."""
    if config.trust_remote_code:
        from .target import trust_remote_code

        trust_remote_code(True)
    try:
        return step(config, work)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        tokens, size = config.extract.batch_tokens, config.generate.batch_size
        lower = {
            "extract": f"set `extract.batch_tokens={tokens // 2}` (it is {tokens})",
            "generate": f"set `generate.batch_size={max(1, size // 2)}` (it is {size})",
        }
        raise StepError(
            f"step `{name}` does not fit the device's memory: {str(error).strip().splitlines()[0]}",
            hint=lower.get(name, "see that nothing else runs on that GPU")
            + "; a target that alone is too large wants `device_map=auto`. What was finished is kept",
        ) from error


def _leads() -> bool:
    """Whether this process speaks for all of `torchrun`'s."""
    return os.environ.get("RANK", "0") == "0"


class Progress:
    """Prints `::progress DONE/TOTAL UNIT`, at most once a second and always at the end."""

    def __init__(self, total: int, unit: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.unit = unit
        self._clock = clock
        self._next = clock()

    def update(self, done: int) -> None:
        now = self._clock()
        if now >= self._next or done >= self.total:
            self._next = now + 1.0
            say(f"::progress {done}/{self.total} {self.unit}")


def say(text: str) -> None:
    """One line for the person who reads the log; of several processes the first speaks."""
    if _leads():
        print(text, flush=True)


def set_up_torch(config: Config) -> torch.device:
    """Seed torch, set its threads and return the device that `config` names.

    Raises StepError when that device is not there.
    """
    import torch

    if config.threads:
        torch.set_num_threads(config.threads)
    torch.manual_seed(config.seed)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats itself only with a fixed workspace
        torch.use_deterministic_algorithms(True, warn_only=True)
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise StepError(
            f"`device` is `{name}`, and torch sees no CUDA device", hint="set `device=cpu`, or another host"
        )
    return torch.device(name)


def compute(device: torch.device) -> torch.autocast:
    """How the drafter computes: in bfloat16 on CUDA, as it will be served; in float32 on a CPU."""
    import torch

    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


def torch_dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype called `name`; `auto` is bfloat16 on CUDA and float32 on a CPU."""
    import torch

    if name == "auto":
        name = "bfloat16" if device.type == "cuda" else "float32"
    dtypes = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    if name not in dtypes:
        raise StepError(f"`{name}` is no dtype that is used here", hint=f"choose one of {', '.join(dtypes)} or auto")
    return dtypes[name]


def write_json(path: Path, value: Any) -> None:
    """Write `value` so that a reader sees the old file or the whole new one, also after a power cut."""
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def read_lines(path: Path, *, whole: bool = False) -> list[str]:
    """The lines of a file, without empty ones; with `whole` without a last one that its writer did not finish.

    Lines end with a line feed and nothing else: JSON may hold U+2028, U+0085 and form feeds, at which Python's
    `splitlines` cuts.
    """
    text = path.read_text(encoding="utf-8", errors="replace" if whole else "strict")
    return [line for line in (text[: text.rfind("\n") + 1] if whole else text).split("\n") if line.strip()]


def read_json(path: Path) -> Any:
    """The JSON in `path`. Raises StepError when it is not there or no JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StepError(f"`{path}` is missing", hint="run the step that writes it") from None
    except ValueError as error:
        raise StepError(f"`{path}` holds no JSON: {error}", hint="remove it and run its step again") from error
