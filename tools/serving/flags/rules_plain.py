"""What becomes of one setting: its own rule, a copy under SGLang's name, nothing to do, or a loss that is said."""

from __future__ import annotations

import json

from tools.serving.flags.items import Item, closest
from tools.serving.flags.names import COPIES, DEFAULTS, LOSSES, NEWER
from tools.serving.flags.work import RULES, Work, open_value


def apply(work: Work, item: Item) -> None:
    """Apply the rule of one setting; whatever has none is said to be lost."""
    if item.name.endswith("=false"):
        work.say(item, "same", "", "off, as in vLLM")
    elif not item.known:
        if not (work.form == "kserve" and kserve(work, item)):
            unknown(work, item)
    elif item.name in RULES:
        RULES[item.name](work, item)
    elif item.name in COPIES:
        _copy(work, item)
    elif item.name in DEFAULTS:
        work.say(item, "same", "", DEFAULTS[item.name])
    else:
        _lost(work, item)


def _copy(work: Work, item: Item) -> None:
    if item.negative:
        work.say(item, "same", "", "off in SGLang too")
    elif item.value is not None:
        work.copy(item, COPIES[item.name], json.dumps(item.value, ensure_ascii=False))
    else:
        work.copy(item, COPIES[item.name])


def _lost(work: Work, item: Item) -> None:
    why, cost = LOSSES.get(item.name, ("SGLang has nothing like it", 3))
    own = f"--{item.name}"
    if item.negative:
        work.say(item, "same", "", "off in SGLang too")
    elif (item.name not in LOSSES or item.name in NEWER) and work.takes(own, item.first or None):
        work.copy(item, own, why="a setting of the same name; compare what it means there")
    else:
        work.say(item, "none", "", why, cost=cost)


def unknown(work: Work, item: Item) -> None:
    """A flag of no vLLM. Where SGLang would take it, it must not slip through."""
    if not item.name:
        why = "a word that belongs to no flag; vLLM would refuse it"
        if open_value(item.written) or "$" in item.written:
            why = "what it holds is not known here: any flags of vLLM in it are missing, translate them too"
        work.say(item, "suspicious", "", why, cost=7)
        return
    own = work.table.find(f"--{item.name}")
    names = work.table.abbreviated(f"--{item.name}")
    dests = {option.dest for name in names if (option := work.table.find(name))}
    meant = closest(item.written)
    if own is None and len(dests) != 1:
        why = "no vLLM from 0.6.6 to 0.33.0 knows it: the original would not start"
        work.say(item, "none", "", f"{why}; did you mean {meant}?" if meant else why, cost=7)
        return
    meant = f"{meant} may be meant" if meant else "what was meant is not known"
    meant = "--lora-modules name=path was meant" if item.name.startswith("lora-path") else meant
    near = own.name if own else names[0]
    why = f"no vLLM flag; {meant}. SGLang would take it as {near}, so it is not passed on"
    work.say(item, "none", "", why, cost=9)
    start = f"`{item.written}` is no vLLM flag, so the original does not start"
    work.refused = f"{start}, and SGLang would read it as `{near}`: {meant}"


_KSERVE = {"model_name": "--served-model-name", "model-name": "--served-model-name", "model_id": "--model-path"}
_KSERVE |= {"model-id": "--model-path", "model_dir": "--model-path", "model-dir": "--model-path", "http_port": "--port"}
_KSERVE |= {"http-port": "--port"}


def kserve(work: Work, item: Item) -> bool:
    """Arguments of KServe's own server, which starts vLLM inside. Returns whether it was one."""
    if item.name in _KSERVE and item.values:
        work.copy(item, _KSERVE[item.name], kind="renamed")
        work.model = work.model or (item.first if "model-path" in _KSERVE[item.name] else "")
        return True
    if item.name == "backend":
        work.say(item, "same", "", "KServe's choice of an engine; SGLang is a container of its own")
        return True
    return False
