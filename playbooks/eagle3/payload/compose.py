"""Let the target write prompts itself: the chat template's user turn is left open and sampled until it closes it.

An instruction-tuned model that is given the beginning of a user turn says what users say (Magpie, arXiv 2406.08464).
Such prompts cost no data set and are as broad as what the model was tuned on; `compose.openings` begin some of the
turns, to have more of a kind (code, say). Kept are turns that were closed, are long
enough, do not run in circles, are written in the wanted letters, and are no duplicates, not even nearly. `generate`
takes them in beside the other prompts.

    composed.jsonl   one prompt a line: id, split `train`, prompt

    python -m eagle3.compose --preset h200-smollm2 --endpoint http://127.0.0.1:30000
"""

from __future__ import annotations

import hashlib
import json
import time
import unicodedata
from collections import Counter
from typing import Any

from .config import Compose, Config
from .duplicates import Seen, words_of
from .endpoint import Request
from .errors import StepError
from .generate import COMPOSED, Meter, open_answerer, read_rows
from .runtime import Progress, Result, Workdir, read_json, run_step, say, write_text
from .target import load_tokenizer, stop_tokens

MARK = "\u2042 user turn \u2042"
ASKED_FOR_EACH = 6  # requests for one kept prompt, at most


def compose(config: Config, work: Workdir) -> Result:
    """Let the target write prompts."""
    settings, path = config.compose, work.root / COMPOSED
    key = _key(config, read_json(work.target / "config.json"))
    rows = [row for row in read_rows(path) if row.get("key") == key][: settings.prompts]
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    seen = Seen(settings.similarity)
    for row in rows:
        seen.add(row["prompt"])
    kept_before, dropped = len(rows), Counter[str]()
    if len(rows) < settings.prompts:
        dropped = _write(config, work, key, rows, seen)
    say(f"{len(rows)} prompts; dropped: {dict(dropped)}")
    return {"prompts": len(rows), "kept_from_before": kept_before, "dropped": dict(dropped)}


def open_turn(tokenizer: Any, opening: str = "") -> list[int]:
    """The token ids of a conversation in which the user is about to speak, or has begun to with `opening`.

    Raises StepError when the template does not write the user's words as they are.
    """
    if not tokenizer.chat_template:
        raise StepError("the target's tokenizer has no chat template", hint="choose an instruction-tuned target")
    text = tokenizer.apply_chat_template([{"role": "user", "content": MARK}], tokenize=False)
    before, mark, _ = text.partition(MARK)
    if not mark:
        raise StepError("the chat template changes what the user says", hint="give prompts as a file instead")
    ids: list[int] = tokenizer(before + opening, add_special_tokens=False)["input_ids"]
    return ids


def flaw(text: str, settings: Compose) -> str | None:
    """Why `text` is no good prompt, in a word; `None` when it is one."""
    words = words_of(text)
    if len(words) < settings.min_words:
        return "short"
    fours = Counter(tuple(words[n : n + 4]) for n in range(len(words) - 3))
    if len(words) > 12 and (max(fours.values()) > 3 or len(set(words)) < 0.25 * len(words)):
        return "repetitive"
    letters = [c for c in text if c.isalpha()]
    wanted = settings.letters.upper()
    if wanted != "ANY" and sum(unicodedata.name(c, "").startswith(wanted) for c in letters) < 0.97 * len(letters):
        return "letters"
    return None


def _write(config: Config, work: Workdir, key: str, rows: list[dict[str, Any]], seen: Seen) -> Counter[str]:
    """Add prompts to `rows` and to the file until there are enough; count what is dropped, and why."""
    settings = config.compose
    tokenizer = load_tokenizer(work.target)
    stops = stop_tokens(work.target, tokenizer)
    openings = settings.openings or ("",)
    turns = [open_turn(tokenizer, opening) for opening in openings]
    until = time.monotonic() + settings.max_seconds if settings.max_seconds else float("inf")
    requests = [
        Request(turns[n % len(turns)], settings.max_new_tokens, stops, settings.temperature, settings.top_p)
        for n in range(ASKED_FOR_EACH * (settings.prompts - len(rows)))
    ]
    progress, meter, dropped = Progress(settings.prompts, "prompts"), Meter(), Counter[str]()
    answers = open_answerer(config, work).answer(requests, until=until)
    with (work.root / COMPOSED).open("a", encoding="utf-8") as file:
        for number, answer in answers:
            meter.add(len(answer.ids))
            text = openings[number % len(openings)] + tokenizer.decode([t for t in answer.ids if t not in stops])
            text = text.strip()
            reason = flaw(text, settings) if answer.stopped else "unclosed"
            if reason is None and not seen.add(text):
                reason = "duplicate"
            if reason:
                dropped[reason] += 1
                continue
            row = {"id": f"composed-{len(rows) + 1}", "split": "train", "prompt": text, "key": key}
            rows.append(row)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            progress.update(len(rows))
            if meter.due():
                say(f"{len(rows)} prompts of {meter.text(len(requests))}; the last: {text[:60]!r}")
            if len(rows) == settings.prompts:
                break
    answers.close()
    return dropped


def _key(config: Config, checkpoint: Any) -> str:
    settings = config.compose
    parts = [config.target, checkpoint, settings.temperature, settings.top_p, settings.max_new_tokens]
    parts += [list(settings.openings), settings.min_words, settings.letters, settings.similarity]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    raise SystemExit(run_step("compose", compose, shorthands={"--endpoint": "generate.endpoint[]"}))
