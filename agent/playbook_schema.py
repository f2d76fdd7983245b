"""The shape of `playbook.yaml`: which keys there are and what each may hold.

Shorthands (`after: build`, `ask: "Go on?"`, `tool: gpu_probe`) are spelt out before validation, so that each model
has one form. What needs more than one step to judge (ids, edges, templates) is in `playbook_graph`; what the keys mean
to an author is in docs/playbooks.md. Templates are kept as text.

    playbook, problems = parse(document)
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from agent.playbook_errors import from_pydantic, listed
from agent.playbook_yaml import Document
from agent.templates import has_template
from state.errors import PlaybookError, UsageError
from state.specs import FailureKind, Join, Kind, On, Priority
from tools.jobs import sbatch_options
from tools.urls import http_url

DEFAULT_GRACE_S = 10.0
MAX_TIMEOUT_S = 365 * 86_400.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]*"


def seconds(value: object) -> float:
    """`"1h30m"`, `"90s"` or a number of seconds as seconds. Raises `ValueError` for anything else."""
    if isinstance(value, str) and _DURATION.fullmatch(value.replace(" ", "")):
        value = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_TIMEOUT_S:
        raise ValueError(f'`{value}` is no duration: write "90s", "30m", "6h", "1h30m" or a number of seconds')
    return float(value)


def _duration(value: object) -> object:
    return value if isinstance(value, str) and has_template(value) else seconds(value)


def _gpus(value: object) -> object:
    if isinstance(value, str) and (value == "all" or has_template(value)):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1024:
        raise ValueError(f"`{value}` is no number of GPUs: write a whole number, `all` or a template")
    return value


def _sbatch(value: object) -> object:
    if isinstance(value, str) and not has_template(value):
        try:
            sbatch_options(value)
        except UsageError as error:
            raise ValueError(error.message) from error
    return value


def _variable(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"`{value}` is no text: quote it")
    return str(value)


Duration = Annotated[float | str, BeforeValidator(_duration)]
Gpus = Annotated[int | str, BeforeValidator(_gpus)]
Sbatch = Annotated[str, BeforeValidator(_sbatch)]
Variable = Annotated[str, BeforeValidator(_variable)]
Text = Annotated[str, Field(min_length=1)]
Id = Annotated[str, Field(max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


class Ready(_Model):
    """When a service counts as up: exactly one of the three."""

    log: Text | None = None
    http: Text | None = None
    file: Text | None = None

    @model_validator(mode="after")
    def _one_sign(self) -> Ready:
        if len([sign for sign in (self.log, self.http, self.file) if sign]) != 1:
            raise ValueError("must have exactly one of `log`, `http` and `file`")
        if self.http and not has_template(self.http):
            try:
                http_url(self.http)
            except ValueError as error:
                raise ValueError(f"`http: {self.http}` is no URL: {error}") from error
        if self.log and not has_template(self.log):
            try:
                re.compile(self.log.encode())  # bytes, as the host will search its log
            except (re.error, OverflowError, RecursionError) as error:
                raise ValueError(f"`log: {self.log}` is no regular expression: {error}") from error
        return self


class Job(_Model):
    host: Text
    run: Text
    gpus: Gpus = 0
    timeout: Duration | None = None
    grace: Duration = DEFAULT_GRACE_S
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Variable] = {}
    cwd: Text | None = None
    sbatch: Sbatch | None = None
    ready: Ready | None = None
    keep: bool = False


class Tool(_Model):
    name: Text
    args: dict[str, Any] = {}


class Fallback(_Model):
    """What a research step does without a model. Written flat: the keys of a tool or those of a job."""

    tool: Tool | None = None
    job: Job | None = None


class Research(_Model):
    prompt: Text
    fallback: Fallback | None = None

    @field_validator("fallback", mode="before")
    @classmethod
    def _tool_or_job(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        if isinstance(value.get("tool"), str):
            rest = {key: item for key, item in value.items() if key != "tool"}
            return {"tool": {"name": value["tool"], **rest}}
        return value if "job" in value or "tool" in value else {"job": value}


class Ask(_Model):
    question: Text
    default: Literal["yes", "no"] = "no"


class After(_Model):
    todo: Text
    on: On = "success"


class RetryRule(_Model):
    times: Annotated[int, Field(ge=0, le=100)]
    on: list[FailureKind] = ["lost"]


class ForEach(_Model):
    item: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    over: Annotated[str | list[Any], Field(alias="in")]
    optional: bool = False

    @field_validator("over", mode="before")
    @classmethod
    def _list_or_template(cls, value: object) -> object:
        if isinstance(value, list) or (isinstance(value, str) and has_template(value)):
            return value
        raise ValueError('must be a list or a template of one, such as "{{ hosts }}"')


class Step(_Model):
    """One step; exactly one of the keys that `KINDS` names says what it does."""

    id: Id
    title: Text | None = None
    priority: Priority = "medium"
    join: Join = "all"
    after: list[After] = []
    retry: RetryRule | None = None
    for_each: ForEach | None = None
    job: Job | None = None
    tool: Tool | None = None
    args: dict[str, Any] | None = None
    research: Research | None = None
    gate: Text | None = None
    ask: Ask | None = None
    race: Annotated[list[Text], Field(min_length=1)] | None = None
    losers: Literal["cancel", "keep"] = "cancel"
    stop: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if isinstance(data.get("tool"), str):
            data["tool"] = {"name": data["tool"]}
        if isinstance(data.get("ask"), str):
            data["ask"] = {"question": data["ask"]}
        if "after" in data:
            edges = data["after"] if isinstance(data["after"], list) else [data["after"]]
            data["after"] = [{"todo": edge} if isinstance(edge, str) else edge for edge in edges]
        return data

    @model_validator(mode="after")
    def _fits_together(self) -> Step:
        kinds = [kind for kind in KINDS if kind in self.model_fields_set]
        if len(kinds) != 1:
            seen = " and ".join(f"`{kind}`" for kind in kinds) or "none"
            raise ValueError(f"must have exactly one of {listed(KINDS)}; it has {seen}")
        if getattr(self, kinds[0]) is None:
            raise ValueError(f"has an empty `{kinds[0]}`")
        if self.args is not None and (self.tool is None or self.tool.args):
            raise ValueError("has `args` that belong to no `tool`, or has them twice")
        if "losers" in self.model_fields_set and self.race is None:
            raise ValueError("has `losers` but is no `race`")
        if self.race is not None and {"after", "join"} & self.model_fields_set:
            raise ValueError("is a `race` and waits for its members: give `after` and `join` to the members")
        return self

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)


KINDS: tuple[Kind, ...] = ("job", "tool", "research", "gate", "ask", "race", "stop")


class Param(_Model):
    default: Any = None
    enum: Annotated[list[Any], Field(min_length=1)] | None = None
    type: Literal["str", "int", "float", "bool", "list", "url"] | None = None
    required: bool = False
    help: str | None = None


class LocalHost(_Model):
    """A further host on this machine with a folder of its own, for trying things out."""

    kind: Literal["local"]
    gpus: Annotated[int, Field(ge=0, le=64)] = 0


class Playbook(_Model):
    name: Annotated[str, Field(max_length=64, pattern=f"^{_NAME}$")]
    title: Text | None = None
    description: str | None = None
    params: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], Param] = {}
    steps: Annotated[list[Step], Field(min_length=1, max_length=1000)]
    hosts: dict[Annotated[str, Field(max_length=64, pattern=f"^{_NAME}$")], LocalHost] = {}
    payload: Text | None = None
    package: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    report: Text | None = None
    estimate: Text | None = None

    @field_validator("params", mode="before")
    @classmethod
    def _bare_defaults(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: param if isinstance(param, dict) else {"default": param} for name, param in value.items()}


def parse(document: Document) -> tuple[Playbook | None, list[PlaybookError]]:
    """The playbook in `document`, or everything in it that does not have the right shape."""
    try:
        return Playbook.model_validate(document.data), []
    except ValidationError as error:
        return None, from_pydantic(error, document, Playbook)
