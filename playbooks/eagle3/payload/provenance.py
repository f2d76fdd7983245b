"""Which tokenizer and which chat template the answers were made with: written beside them, checked by who reads them.

A drafter that learnt `<think>` blocks drafts badly where thinking is off, and token ids of another tokenizer teach
nothing at all; neither shows in the loss. So `generate` writes `answers.json`, and the later steps refuse answers that
were made in another way than the target's folder and the settings now say.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from .config import Config
from .errors import StepError
from .runtime import Workdir, read_json, write_json

FILE = "answers.json"


def template_arguments(config: Config) -> dict[str, Any]:
    """The arguments of the chat template; a value that is no JSON is a text. Raises StepError for one without `=`."""
    found = {}
    for text in config.data.template:
        name, equals, value = text.partition("=")
        if not equals:
            raise StepError(f"`data.template` has `{text}`", hint="write it as `enable_thinking=false`")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def describe(config: Config, tokenizer: Any) -> dict[str, Any]:
    """What decides how a conversation becomes token ids."""
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "target": config.target,
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest()[:16],
        "chat_template": tokenizer.chat_template,
        "template_arguments": template_arguments(config),
    }


def record(config: Config, work: Workdir, tokenizer: Any) -> dict[str, Any]:
    """Write what the answers are made with, and return it."""
    found = describe(config, tokenizer)
    write_json(work.root / FILE, found)
    return found


def check(config: Config, work: Workdir, tokenizer: Any) -> None:
    """Raises StepError when the answers were made with another tokenizer, template or way of thinking."""
    path = work.root / FILE
    if not path.is_file():
        return  # answers from elsewhere: nothing is said of them
    made, now = read_json(path), describe(config, tokenizer)
    names = {"tokenizer": "tokenizer", "chat_template": "chat template", "template_arguments": "template arguments"}
    wrong = [name for key, name in names.items() if made.get(key) != now[key]]
    if wrong:
        raise StepError(
            f"`{work.answers}` was made for `{made.get('target')}` with another {' and another '.join(wrong)}",
            hint="run `python -m eagle3.generate` again, or set `target` and `data.template` as they were",
        )
