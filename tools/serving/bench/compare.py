"""Two results of the bench: what speculation gains over none, or why the two cannot be compared.

    multiplier         tokens a second of a stream with speculation / without, prompt by prompt the same ones
    multiplier_total   the same of all streams together; what is left over when the last answers run alone is in it
    step_cost          what one speculative round costs in plain decoding steps: acceptance length / the multiplier of
                       decoding alone. Below 1.0 x multiplier the drafter is not worth its cost, however much it accepts

A comparison is refused, with every reason, when something else than speculation differs that would show in the figures.
"""

from __future__ import annotations

from typing import Any

from .figures import bootstrap

# Speculation itself sets these, so they may differ.
_MAY_DIFFER = (
    "max_running_requests", "random_seed", "cuda_graph_max_bs", "chunked_prefill_size", "mem_fraction_static",
    "max_total_tokens", "page_size", "served_model_name", "chat_template",
)  # fmt: skip
_SETTINGS = ("max_tokens", "top_p", "ignore_eos")


def against(result: dict[str, Any], plain: dict[str, Any]) -> None:
    """Hold each pass of `result` against the one without speculation; adds `versus` to each."""
    reasons = engine_reasons(result, plain)
    there = {_key(one): one for one in plain["passes"]}
    for one in result["passes"]:
        other = there.get(_key(one))
        if other is None:
            why = [*reasons, "the baseline has no such pass"]
        else:
            why = reasons + pass_reasons(result, plain, one, other)
        one["versus"] = {"not_comparable": why} if why or not other else gain(one, other, result["settings"]["seed"])


def _key(one: dict[str, Any]) -> Any:
    return one["set"], one["concurrency"], one["temperature"]


def engine_reasons(result: dict[str, Any], plain: dict[str, Any]) -> list[str]:
    """Why no pass of the two can be compared."""
    mine, theirs = result["engine"], plain["engine"]
    found = []
    if theirs["speculation"]:
        found.append("the baseline speculates too")
    for name, what in (("name", "engine"), ("version", "version"), ("model", "model")):
        if mine[name] != theirs[name]:
            found.append(f"{what}: `{mine[name]}` here, `{theirs[name]}` in the baseline")
    if result.get("gpus") != plain.get("gpus"):
        found.append("GPUs: `{}` here, `{}` in the baseline".format(result.get("gpus"), plain.get("gpus")))
    for name in sorted(set(mine["arguments"]) | set(theirs["arguments"])):
        a, b = mine["arguments"].get(name), theirs["arguments"].get(name)
        if a != b and not name.startswith("speculative") and name not in _MAY_DIFFER:
            found.append(f"{name}: `{a}` here, `{b}` in the baseline")
    for name in _SETTINGS:
        a, b = result["settings"][name], plain["settings"][name]
        if a != b:
            found.append(f"{name}: `{a}` here, `{b}` in the baseline")
    return found


def pass_reasons(
    result: dict[str, Any], plain: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> list[str]:
    """Why these two passes cannot be compared although their servers can."""
    found = []
    if result["sets"][one["set"]]["sha256"] != plain["sets"][one["set"]]["sha256"]:
        found.append("other prompts, or another chat template: the token ids differ")
    for whose, engine in (("here", result["engine"]), ("in the baseline", plain["engine"])):
        if engine.get("max_running") and engine["max_running"] < one["concurrency"]:
            found.append(f"at most {engine['max_running']} requests run at a time {whose}")
    if one["temperature"] == 0 and not found and abs(one["tokens"] - other["tokens"]) > 0.2 * other["tokens"]:
        found.append(
            f"greedy answers of {one['tokens']} tokens here and {other['tokens']} in the baseline: not the same text"
        )
    return found


def gain(one: dict[str, Any], other: dict[str, Any], seed: int) -> dict[str, Any]:
    """The multipliers of one pass over another."""
    a, b = one["per_prompt"], other["per_prompt"]

    def ratio(at: Any) -> float:
        return _over(sum(a["tokens"][i] for i in at), sum(a["seconds"][i] for i in at)) / _over(
            sum(b["tokens"][i] for i in at), sum(b["seconds"][i] for i in at)
        )

    decoding = one["decode_tokens_per_s"] / other["decode_tokens_per_s"] if other["decode_tokens_per_s"] else 0.0
    length = (one["acceptance"] or {}).get("length")
    return {
        "multiplier": round(ratio(range(one["prompts"])), 4),
        "interval": bootstrap(ratio, one["prompts"], seed),
        "multiplier_total": round(_over(one["tokens_per_s"], other["tokens_per_s"]), 4),
        "multiplier_decode": round(decoding, 4),
        "step_cost": round(length / decoding, 4) if length and decoding else None,
        "plain_tokens_per_s": other["tokens_per_s"],
    }


def headline(result: dict[str, Any]) -> dict[str, Any]:
    """One line of figures for later steps: all sets together, at the lowest temperature and concurrency measured."""
    passes = result["passes"]
    lowest = min((one["temperature"], one["concurrency"]) for one in passes)
    chosen = [one for one in passes if (one["temperature"], one["concurrency"]) == lowest]
    accepted = [one["acceptance"] for one in chosen if one["acceptance"]]
    rounds = sum(a["rounds"] for a in accepted)
    tokens, wall = sum(one["tokens"] for one in chosen), sum(one["wall_s"] for one in chosen)
    rate = _over(tokens, wall)
    versus = [one.get("versus") for one in chosen]
    plain = _plain_rate(chosen) if versus and all(v and "multiplier" in v for v in versus) else None
    return {
        "temperature": lowest[0],
        "concurrency": lowest[1],
        "tokens_per_s": round(rate, 2),
        "acceptance_length": round(1 + sum(a["accepted"] for a in accepted) / rounds, 4) if rounds else None,
        "acceptance_rate": round(_over(sum(a["accepted"] for a in accepted), sum(a["proposed"] for a in accepted)), 4)
        if rounds
        else None,
        "multiplier": round(rate / plain, 4) if plain else None,
    }


def _plain_rate(chosen: list[dict[str, Any]]) -> float | None:
    """Tokens a second of the baseline on the same mixture of sets."""
    seconds = sum(_over(one["tokens"], one["versus"]["plain_tokens_per_s"]) for one in chosen)
    return _over(sum(one["tokens"] for one in chosen), seconds)


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
