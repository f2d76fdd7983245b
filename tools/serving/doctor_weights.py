"""Reads safetensors files without torch: names, shapes and types of tensors, and as many values as are asked for.

Format (github.com/huggingface/safetensors): eight bytes with the length of a JSON header, the header, the data. A
folder has `model.safetensors`, or shards that `model.safetensors.index.json` lists. Values come as Python numbers;
bfloat16 and float16 are widened. Blocking; nothing is kept open.
"""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from state.errors import UsageError

MAX_HEADER = 100_000_000
_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
          "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8}  # fmt: skip
_CODES = {"BOOL": "B", "U8": "B", "I8": "b", "I16": "h", "U16": "H", "I32": "i", "U32": "I", "F32": "f", "I64": "q",
          "U64": "Q", "F64": "d"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor lies: `start` is the byte of the file where its data begins."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int

    @property
    def numbers(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    def read(self, first: int = 0, count: int | None = None) -> list[Any]:
        """`count` numbers from number `first` on, as they lie in memory (rows one after another).

        Raises UsageError for a type that has no plain numbers (8-bit floats) and for a file that ends early.
        """
        number = self.numbers - first if count is None else min(count, self.numbers - first)
        if self.dtype not in _CODES and self.dtype not in ("F16", "BF16"):
            raise UsageError(f"`{self.name}` is `{self.dtype}`", hint="numbers of this type are not read here")
        size = _SIZES[self.dtype]
        with open(self.file, "rb") as file:
            file.seek(self.start + first * size)
            data = file.read(number * size)
        if len(data) < number * size:
            raise UsageError(f"`{self.file}` ends within `{self.name}`", hint="copy or export it again")
        return _numbers(data, self.dtype)


def _numbers(data: bytes, dtype: str) -> list[Any]:
    if dtype == "F16":
        return list(struct.unpack(f"<{len(data) // 2}e", data))
    if dtype == "BF16":  # the upper half of a float32
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        data, dtype = bytes(wide), "F32"
    values = array(_CODES[dtype], data)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a checkpoint folder by name.

    Raises UsageError when there are no safetensors files, or one is damaged or listed and missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = read_json(index).get("weight_map")
        files = sorted({folder / str(name) for name in listed.values()}) if isinstance(listed, dict) else []
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UsageError(f"`{folder}` has no safetensors files", hint="export the weights as `model.safetensors`")
    found: dict[str, Stored] = {}
    for file in files:
        found |= header(file)
    return found


def header(path: Path) -> dict[str, Stored]:
    """The tensors of one file. Raises UsageError when it is not there, damaged or cut short."""
    damaged = f"`{path}` is no whole safetensors file"
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(MAX_HEADER, size - 8):
                raise UsageError(f"{damaged}: {size} bytes, a header of {length}", hint="copy or export it again")
            told = json.loads(file.read(length))
        told.pop("__metadata__", None)
        data = 8 + length
        found = {
            name: Stored(name, str(one["dtype"]), tuple(map(int, one["shape"])), path, data + one["data_offsets"][0])
            for name, one in told.items()
        }
        end = max((data + one["data_offsets"][1] for one in told.values()), default=0)
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", hint="is the folder complete?") from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UsageError(f"{damaged}: {error!r}", hint="copy or export it again") from error
    if end > size:
        raise UsageError(f"{damaged}: its tensors end at byte {end}, the file at {size}", hint="copy it again, whole")
    return found


def metadata(path: Path) -> dict[str, str]:
    """What the writer of a file noted in its header. Raises UsageError for a file that is damaged."""
    header(path)
    with open(path, "rb") as file:
        told = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    found = told.get("__metadata__")
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises UsageError when there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {error.strerror}", hint="give the whole folder") from error
    except ValueError as error:
        raise UsageError(f"`{path}` holds no JSON: {error}", hint="write it again") from error
    if not isinstance(found, dict):
        raise UsageError(f"`{path}` holds no JSON object", hint="write it again")
    return found
