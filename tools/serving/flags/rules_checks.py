"""What SGLang's start would refuse although its parser takes it, read in 0.5.14's own checks, and what is done then."""

from __future__ import annotations

from tools.serving.flags.work import Work, finish, open_value, whole, without_colon


@finish(45)
def speculation_with(work: Work) -> None:
    """Speculation that does not go with something else is left out: answers stay right, and it is said first."""
    algorithm = "".join(work.flags.get("--speculative-algorithm", []))
    if algorithm in ("", "NGRAM"):
        return
    if "--enable-lora" in work.flags or "--lora-paths" in work.flags:
        _without_speculation(work, f"SGLang serves adapters with NGRAM speculation alone, not with {algorithm}")
    elif work.dp_attention and algorithm in ("STANDALONE", "DFLASH"):
        _without_speculation(work, f"{algorithm} does not go with DP attention in SGLang")


def _without_speculation(work: Work, reason: str) -> None:
    work.flags = {flag: values for flag, values in work.flags.items() if not flag.startswith("--speculative-")}
    work.settings.pop("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN", None)
    for entry in work.entries:
        if "--speculative-algorithm" in entry.result:
            entry.kind, entry.result, entry.cost = "none", "", 9
            entry.why = f"{reason}: speculation is left out, answers stay right, speed is lost. The choice is yours"


@finish(44)
def name_without_colon(work: Work) -> None:
    """The served name is the model's where none is given, and may have no colon."""
    model = work.model
    if "--served-model-name" in work.flags or ":" not in model or "://" in model or open_value(model):
        return
    said = work.emit("--served-model-name", without_colon(model))
    why = "SGLang refuses a colon in the served name, which is the model's by default: clients ask for this"
    work.say("--served-model-name (not given)", "changed", said, why, cost=5).given = False


@finish(46)
def chunks_of_pages(work: Work) -> None:
    """A prefill chunk is a whole number of pages."""
    chunk = whole("".join(work.flags.get("--chunked-prefill-size", [])))
    page = whole("".join(work.flags.get("--page-size", [])))
    if chunk is None or page is None or chunk <= 0 or page <= 0 or chunk % page == 0:
        return
    fitting = max(chunk // page, 1) * page
    work.emit("--chunked-prefill-size", str(fitting))
    for entry in work.entries:
        if entry.result.startswith("--chunked-prefill-size"):
            entry.kind, entry.result = "changed", f"--chunked-prefill-size {fitting}"
            entry.notes.append(f"a whole number of pages: {chunk} is none of {page}, {fitting} is {fitting // page}")


@finish(95)
def on_their_way_out(work: Work) -> None:
    """Flags that this SGLang takes and means to drop."""
    for flag in work.flags:
        option = work.table.find(flag)
        if option is not None and option.instead:
            why = f"SGLang {work.table.version} takes it and calls it deprecated, for {option.instead}"
            work.say(flag, "default", flag, why, cost=1)
