"""The words of a vLLM command as settings: each flag once, by its full name, whatever way it was written.

    read_words(split("vllm serve M -tp=2 --max_model_len 4k")[2:])

Knows the options of several vLLM releases (`tables/vllm-*.json`): what any of them took is understood, abbreviations
too; what none of them took is marked unknown. Values that are JSON are read here, also damaged ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tools.serving.flags.items import STRUCTURED, Item, resolve
from tools.serving.flags.repair import balanced, mend, pairs
from tools.serving.flags.table import Option
from tools.serving.flags.words import Word

_DASHES = str.maketrans({"\u2013": "--", "\u2014": "--", "\u2212": "-"})
_JOIN_AT_MOST = 200


def read_words(words: Sequence[Word], *, source: str = "", positional: bool = True) -> list[Item]:
    """The settings that `words` make. What belongs to no flag has the name "" (`model` for the first, `positional`)."""
    return _Reader(list(words), source, positional).read()


class _Reader:
    def __init__(self, words: list[Word], source: str, positional: bool) -> None:
        self.words, self.source, self.positional = words, source, positional
        self.at = 0
        self.items: list[Item] = []

    def read(self) -> list[Item]:
        while self.at < len(self.words):
            word = self.words[self.at]
            text = _plain(word)
            self.at += 1
            if text in ("", "\\"):
                continue
            item = self._flag(text) if _is_flag(text) else self._stray(text)
            if word.text != word.text.lstrip():
                item.notes.append("a backslash and a space stood before it: the shell made them part of the word")
            if text != word.text.strip():
                item.notes.append("it was written with a typographic dash")
            item.source = self.source
            self.items.append(item)
        return self.items

    def _stray(self, text: str) -> Item:
        if self.positional and not any(item.name == "model" for item in self.items):
            return Item(written="MODEL", name="model", values=[text])
        return Item(written=text, name="", known=False)

    def _flag(self, text: str) -> Item:
        if text.startswith("-O") and text != "-O":
            return Item(written=text, name="optimization-level", values=[text[2:].lstrip("=")])
        written, sep, joined = text.partition("=")
        item, option = resolve(written)
        if sep:
            return self._joined(item, option, joined)
        if option is not None and option.switch and not item.value:
            return self._after_switch(item)
        if "." in written:
            item.values = [word.text for word in self._following(1, numbers=True)]
        elif option is None and not item.known:
            item.values = [word.text for word in self._following(1)]
        elif item.name in STRUCTURED:
            self._structured(item, self._following(1))
        elif option is not None and option.many:
            item.values = [word.text for word in self._following(len(self.words))]
        else:
            item.values = [word.text for word in self._following(1, numbers=True)]
        if option is not None and not option.switch and not item.values:
            item.notes.append("its value is missing")
        return self._dotted(item)

    def _joined(self, item: Item, option: Option | None, value: str) -> Item:
        item.values = [value]
        if option is not None and option.switch and item.name not in STRUCTURED:
            return _switch_with_value(item)
        if "." in item.written:
            return self._dotted(item)
        if item.name in STRUCTURED or (value[:1] in ("{", "[") and not balanced(value)):
            word = self.words[self.at - 1]
            raw = word.raw.partition("=")[2]
            self._structured(item, [Word(value, raw, word.end - len(raw), word.end)])
        elif option is not None and option.many:
            item.values += [word.text for word in self._following(len(self.words))]
        return self._dotted(item)

    def _after_switch(self, item: Item) -> Item:
        following = self.words[self.at : self.at + 1]
        if following and following[0].text.lower() in ("true", "false") and self.items:
            self.at += 1
            item.values = [following[0].text]
            return _switch_with_value(item)
        item.switch = True
        return item

    def _following(self, most: int, *, numbers: bool = False) -> list[Word]:
        """The words up to the next flag; a negative number is a value where `numbers` are wanted."""
        found: list[Word] = []
        while self.at < len(self.words) and len(found) < most:
            word = self.words[self.at]
            text = _plain(word)
            if text not in ("", "\\"):
                if _is_flag(text) or (text.startswith("-") and not (numbers and _is_number(text))):
                    break
                found.append(word)
            self.at += 1
        return found

    def _structured(self, item: Item, words: list[Word]) -> None:
        """Read a JSON value; words that its spaces were split at are put together again."""
        if not words:
            item.notes.append("its value is missing")
            return
        raw, plain, end = words[0].raw, words[0].text, words[0].end
        split = False
        while not balanced(raw) and self.at < len(self.words) and len(raw) < 64 * 1024:
            word = self.words[self.at]
            if len(item.values) > _JOIN_AT_MOST or plain[:1] not in "{[\\'\"\u2018\u201c":
                break
            gap = " " * max(1, word.start - end)
            raw, plain, end, split = raw + gap + word.raw, plain + gap + word.text, word.end, True
            item.values.append(word.text)
            self.at += 1
        item.values = [raw if split else plain]
        item.value, how = _structure([raw, plain] if split else [plain, raw], item.name)
        if item.value is None:
            return
        if isinstance(item.value, dict | list):
            item.values = [json.dumps(item.value, ensure_ascii=False)]
        if split or how:
            what = how or "JSON that was cut at its spaces"
            item.notes.append(f"{what} was read as {json.dumps(item.value, ensure_ascii=False)}")

    def _dotted(self, item: Item) -> Item:
        """`--speculative-config.method eagle` is a part of the whole setting."""
        base, dot, path = item.written.lstrip("-").partition(".")
        if dot and base and item.value is None:
            value: Any = _scalar(item.first)
            keys = path.rstrip("+").split(".")
            if path.endswith("+"):
                value = item.first.split(",")
            for key in reversed(keys):
                value = {key: value}
            item.value = value
        return item


def _structure(candidates: Sequence[str], name: str) -> tuple[Any, str]:
    for text in candidates:
        try:
            return mend(text)
        except ValueError:
            continue
    try:
        return pairs(candidates[0]), ""
    except ValueError:
        return None, ""


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def _plain(word: Word) -> str:
    text = word.text.strip()
    return text.translate(_DASHES) if text[:1] in "\u2013\u2014\u2212" and text else text


def _is_flag(text: str) -> bool:
    if text.startswith("--"):
        return len(text) > 2
    return bool(re.match(r"-[a-zA-Z]", text)) and not _is_number(text)


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"-?\d+(\.\d+)?", text))


def _switch_with_value(item: Item) -> Item:
    item.switch = True
    value = item.first.lower()
    if value in ("false", "0", "no"):
        item.negative = not item.negative
    side = "off" if value in ("false", "0", "no") else "on"
    item.notes.append(f"a switch takes no value, and `{item.first}` was given: read as {side}")
    return item


def merge(items: Sequence[Item]) -> list[Item]:
    """The items with each name once: parts of a structure together, of repeated flags the last.

    A flag given again with the same value is noted in `twice`; with another value the first one is said to lose.
    """
    kept: dict[str, Item] = {}
    for number, item in enumerate(items):
        key = item.name if item.known and item.name else f"?{number}"
        before = kept.get(key)
        if before is None:
            kept[key] = item
        elif isinstance(before.value, dict) and isinstance(item.value, dict) and "." in before.written + item.written:
            before.value = _deep(before.value, item.value)
            before.written = before.written.partition(".")[0]
            before.values = [json.dumps(before.value, ensure_ascii=False)]
            before.notes += item.notes
        else:
            kept[key] = _again(before, item)
    return list(kept.values())


def _again(before: Item, item: Item) -> Item:
    item.twice = before.twice + 1
    same = (before.values, before.negative) == (item.values, item.negative)
    if not same:
        place = f" of {before.source}" if before.source and before.source != item.source else ""
        item.notes.append(f"`{before.text}`{place} is overridden by it")
    elif item.source == before.source:
        item.notes.append("given twice, said once")
    return item


def _deep(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        inner = merged.get(key)
        merged[key] = _deep(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def read_config(settings: Mapping[str, Any], source: str) -> list[Item]:
    """The settings of vLLM's `--config` file, read as vLLM does: a switch that is `false` counts as not there."""
    items = []
    for key, value in settings.items():
        item, _ = resolve("--" + str(key))
        item.written, item.source = str(key), source
        if isinstance(value, bool):
            item.switch = True
            if not value:
                item.notes.append("`false` in a file means nothing to vLLM: it takes a `no-` key to turn a switch off")
                item.name = f"{item.name}=false"
                item.known = True
        elif isinstance(value, dict) or item.name in STRUCTURED:
            item.value = value if isinstance(value, dict | list) else _structure([str(value)], item.name)[0]
            item.values = [json.dumps(item.value) if item.value is not None else str(value)]
        else:
            item.values = [str(one) for one in value] if isinstance(value, list) else [str(value)]
        items.append(item)
    return items
