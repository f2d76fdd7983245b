"""May this command run on that host? Rules over the host and the parsed words, first match wins.

    decision = decide(default_policy(), "gpu1", "ps aux | grep vllm")
    decision.verdict, decision.why, decision.rule          # 'allow', 'it only reads', 'reads'

A command is allowed when each simple command within it is: behind pipes and `;`, in substitutions, inside `bash -c`,
`sudo`, `xargs`, `find -exec` and `ssh host …` (judged for that host). One that is refused refuses all; what cannot be
read for certain is asked. Text never changes a policy: neither a command's own words nor what a host or a page said are
looked at for rules. The rules that ship are `tools/permissions.toml`; an operator's lasting decisions are kept by
`tools/permissions_kept.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from tools.permissions_kept import kept, rules_path
from tools.permissions_rules import Rule, fits
from tools.permissions_words import Call, Shell, Word, read
from tools.permissions_wrappers import unwrap

Verdict = Literal["allow", "ask", "deny"]
Audience = Literal["operator", "subagent"]


@dataclass(frozen=True, slots=True)
class Judged:
    """One simple command with its verdict; `host` is where it would run."""

    text: str
    host: str
    verdict: Verdict
    why: str
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a command. `calls` has it for each part; `lasting` are rules that would allow the asked parts.

    `lasting` is empty when a part is not known before it runs: that can be allowed once, and never for good.
    """

    verdict: Verdict
    why: str
    rule: str | None = None
    calls: tuple[Judged, ...] = ()
    lasting: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules in order. `default` is for what none fits; `variables` may be set in front of an allowed command."""

    rules: tuple[Rule, ...]
    default: Verdict = "ask"
    variables: tuple[str, ...] = ()
    attended: bool = True

    @classmethod
    def shipped(cls, audience: Audience = "operator") -> Policy:
        """The policy that ships. A subagent's lets it read and nothing else, and never asks."""
        rules, variables = _shipped()
        return cls(rules, "ask", variables) if audience == "operator" else cls(rules, "deny", variables, attended=False)

    def with_kept(self, kept: Iterable[Rule]) -> Policy:
        """With an operator's lasting decisions, newest first. What ships as never allowed stays so."""
        denied = tuple(rule for rule in self.rules if rule.verdict == "deny")
        others = tuple(rule for rule in self.rules if rule.verdict != "deny")
        return replace(self, rules=(*denied, *kept, *others))

    def unattended(self) -> Policy:
        """The same when nobody is there to ask: to ask is to refuse."""
        return replace(self, attended=False)


@cache
def _shipped() -> tuple[tuple[Rule, ...], tuple[str, ...]]:
    data = tomllib.loads(resources.files("tools").joinpath("permissions.toml").read_text(encoding="utf-8"))
    return tuple(Rule.of(entry) for entry in data["rule"]), tuple(data["variables"])


def default_policy() -> Policy:
    """What ships, with what the operator allowed for good. Reads a file: off the event loop. Raises `UsageError`."""
    return Policy.shipped("operator").with_kept(kept(rules_path()))


def read_only_policy() -> Policy:
    """What subagents work under: reading is allowed and everything else refused."""
    return Policy.shipped("subagent")


def decide(policy: Policy, host: str, command: str) -> Decision:
    """The verdict on a shell command for `host`. Reads nothing and raises nothing."""
    shell = read(command)
    return _decide(policy, host, [unwrap(call) for call in shell.calls], shell.doubts)


def decide_argv(policy: Policy, host: str, argv: Sequence[str]) -> Decision:
    """The same for words that no shell will see, such as `("turnout:write", "/etc/motd")`."""
    call = Call(tuple(Word(word) for word in argv), " ".join(argv))
    return _decide(policy, host, [unwrap(call)], [])


def decide_path(policy: Policy, host: str, path: str, access: Literal["read", "write"]) -> Decision:
    """The same for a file that a tool of Turnout reads or writes."""
    return decide_argv(policy, host, ("cat" if access == "read" else "turnout:write", path))


def _decide(policy: Policy, host: str, found: Sequence[Shell], doubts: Sequence[str]) -> Decision:
    told = [*doubts, *(doubt for each in found for doubt in each.doubts)]
    calls = [call for each in found for call in each.calls]
    judged = [_judge(policy, call.host or host, call) for call in calls]
    asked = [(call, each) for call, each in zip(calls, judged, strict=True) if each.verdict != "allow"]
    worst = next((each for each in judged if each.verdict == "deny"), None)
    if worst is None and told:
        worst = Judged("", host, policy.default, f"it cannot be read for certain: {told[0]}", "unclear")
    worst = worst or (asked[0][1] if asked else None)
    if worst is None:
        first = judged[0]
        return Decision("allow", first.why, first.rule, tuple(judged))
    verdict, why = worst.verdict, worst.why
    if worst.text and len(judged) > 1:
        why = f"`{_short(worst.text)}`: {why}"
    if verdict == "ask" and not policy.attended:
        verdict, why = "deny", f"{why}, and nobody is there to ask"
    lasting = () if told or verdict != "ask" else _lasting(host, [call for call, _ in asked])
    return Decision(verdict, why, worst.rule, tuple(judged), lasting)


def _judge(policy: Policy, host: str, call: Call) -> Judged:
    for rule in policy.rules:
        fit = fits(rule, host, call, policy.variables)
        if fit == "yes":
            return Judged(call.text, host, rule.verdict, rule.why, rule.name)
        if fit == "maybe" and rule.verdict != "allow":
            why = f"{rule.why}, perhaps: not all of it is known before it runs" if rule.verdict == "deny" else rule.why
            return Judged(call.text, host, policy.default if rule.verdict == "deny" else rule.verdict, why, rule.name)
    return Judged(call.text, host, policy.default, _no_rule(call), None)


def _no_rule(call: Call) -> str:
    if not call.name:
        return "the program is only known when it runs"
    if call.root:
        return "it runs as another user"
    return f"no rule is about `{call.name}`"


def _lasting(host: str, calls: Sequence[Call]) -> tuple[Rule, ...]:
    """Rules that allow exactly these calls on exactly this host; none if a call is not known in full."""
    if not all(word.known for call in calls for word in call.argv):
        return ()
    return tuple(Rule.exactly(call.host or host, call) for call in calls)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
