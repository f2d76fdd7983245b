"""The training log: a line of JSON for each step, and TensorBoard's files as well where TensorBoard is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from .runtime import read_lines, say, write_text

Row = dict[str, Any]


class Journal:
    """Rows of `log.jsonl` from the step after `done` on. Of several processes only the first has one."""

    def __init__(self, folder: Path, done: int) -> None:
        path = folder / "log.jsonl"
        write_text(path, "".join(json.dumps(row) + "\n" for row in read_log(path)[:done]))
        self._file = path.open("a", encoding="utf-8")
        self._board = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(folder / "tensorboard", purge_step=done + 1)
        else:
            say(f"TensorBoard is not installed here: the log is `{path}` alone")

    def write(self, row: Row) -> None:
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board:
            for name, value in row.items():
                values = enumerate(value, 1) if isinstance(value, list) else [("", value)]
                for n, number in values:
                    if number is not None:
                        self._board.add_scalar(f"{name}/{n}" if n else name, number, row["step"])

    def close(self) -> None:
        self._file.close()
        if self._board:
            self._board.close()


def read_log(path: Path) -> list[Row]:
    """The whole lines of a training log."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in read_lines(path, whole=True)]
