"""The operator's configuration: which model, where, at what price, within which budget; MCP servers.

    config = load_config()          # ~/.config/turnout/config.toml, or below XDG_CONFIG_HOME; then the environment

    [model]
    name = "claude-opus-5-5"        # or TURNOUT_MODEL
    base_url = "http://gpu1:30000"  # any server that speaks the Messages API; or ANTHROPIC_BASE_URL
    provider = "anthropic"          # or "bedrock", "vertex": the SDK's own clients with their own credentials
    [model.prices]                  # per million tokens, in whatever currency the budget is in
    input = 4.0
    [budget]
    money = 20.0
    [mcp.docs]
    command = ["docs-server", "--stdio"]

Without a name, a base_url or a key there is no model, and everything but prose works. docs/agent.md is the operator's
page. Reads files: call it before the event loop runs, or in a thread.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from state.errors import UsageError
from tools.urls import http_url

DEFAULT_MODEL = "claude-opus-5-5"
SETUP_HINT = (
    "export ANTHROPIC_API_KEY=...        # Anthropic's own API, or",
    "export ANTHROPIC_BASE_URL=http://HOST:PORT TURNOUT_MODEL=NAME   # a server that speaks the Messages API",
)


_VARIABLES = {"name": "TURNOUT_MODEL", "base_url": "ANTHROPIC_BASE_URL", "api_key": "ANTHROPIC_API_KEY"}


def _asked(url: str) -> str:
    """Told with its address, which pydantic leaves out."""
    try:
        return http_url(url)
    except ValueError as error:
        raise ValueError(f"`{url}` is no URL: {error}") from error


Url = Annotated[str, AfterValidator(_asked)]


class Prices(BaseModel):
    """Per million tokens. `cache_write` is that of the five-minute cache, the only one that is used."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]
    cache_read: Annotated[float, Field(ge=0)] = 0.0
    cache_write: Annotated[float, Field(ge=0)] = 0.0


# US dollars; platform.claude.com, pages of the models, read in November 2026.
KNOWN_PRICES: Mapping[str, Prices] = {
    "claude-opus-5-5": Prices(input=4, output=20, cache_read=0.2, cache_write=5),
    "claude-sonnet-5-5": Prices(input=2, output=10, cache_read=0.2, cache_write=2.5),
}


class ModelConfig(BaseModel):
    """How to reach a model and how to speak with it. `prices` `None`: what calls cost is not known."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str = DEFAULT_MODEL
    provider: Literal["anthropic", "bedrock", "vertex"] = "anthropic"
    base_url: Url | None = None
    api_key: str | None = Field(default=None, repr=False)
    region: str | None = None
    project: str | None = None
    max_tokens: Annotated[int, Field(gt=0)] = 16_384
    window: Annotated[int, Field(gt=1000)] = 200_000
    """Tokens of context to use: older tool results are cleared and the conversation compacted before it is full."""
    thinking: bool | None = None
    """Adaptive thinking; by default for models whose name begins with `claude-`."""
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    cache: bool | None = None
    """Mark what stays the same for the prompt cache; by default for models whose name begins with `claude-`."""
    server_tools: bool | None = None
    """The endpoint's own `web_search` and `web_fetch`; by default only at Anthropic's own address."""
    prices: Prices | None = None
    silence_s: Annotated[float, Field(gt=0)] = 300.0
    """Without a byte from the endpoint for so long, an attempt has failed; servers ping while a model thinks."""
    patience_s: Annotated[float, Field(gt=0)] = 1200.0
    """How long a call is tried again while the endpoint is overloaded or down."""

    @property
    def is_claude(self) -> bool:
        return "claude-" in self.name

    @property
    def thinks(self) -> bool:
        return self.is_claude if self.thinking is None else self.thinking

    @property
    def caches(self) -> bool:
        return self.is_claude if self.cache is None else self.cache

    @property
    def searches(self) -> bool:
        own = self.provider == "anthropic" and self.base_url is None and self.is_claude
        return own if self.server_tools is None else self.server_tools

    @property
    def price(self) -> Prices | None:
        return self.prices or KNOWN_PRICES.get(self.name)


class Subagents(BaseModel):
    """`model` for them, by default the planner's; `limit` at once; what one may use before it has to report."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    model: str | None = None
    limit: Annotated[int, Field(gt=0, le=200)] = 20
    turns: Annotated[int, Field(gt=0)] = 40
    tokens: Annotated[int, Field(gt=0)] | None = None
    seconds: Annotated[float, Field(gt=0)] = 3600.0


class Budget(BaseModel):
    """Of one session with its subagents; `None` is no limit. `tokens` count all that were sent and received."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    money: Annotated[float, Field(gt=0)] | None = None
    tokens: Annotated[int, Field(gt=0)] | None = None
    hours: Annotated[float, Field(gt=0)] | None = None


class McpServer(BaseModel):
    """A server of tools for the model: a `command` on stdio, or a `url`. `read_only` lets subagents use it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    command: list[str] | None = None
    url: Url | None = None
    env: dict[str, str] = {}
    read_only: bool = False
    timeout_s: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("needs exactly one of `command` and `url`")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    model: ModelConfig | None = None
    subagents: Subagents = Subagents()
    budget: Budget = Budget()
    mcp: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,32}$")], McpServer] = {}


@dataclass(frozen=True, slots=True)
class Config:
    """What `load_config` found. `model` is `None` when nobody said which."""

    model: ModelConfig | None = None
    subagents: Subagents = field(default_factory=Subagents)
    budget: Budget = field(default_factory=Budget)
    mcp: Mapping[str, McpServer] = field(default_factory=dict)

    @property
    def setup_hint(self) -> tuple[str, str]:
        """The two lines that set a model up."""
        return SETUP_HINT

    def subagent_model(self) -> ModelConfig | None:
        """The model of subagents."""
        if self.model is None or self.subagents.model is None:
            return self.model
        return self.model.model_copy(update={"name": self.subagents.model, "prices": None})


def config_path() -> Path:
    """`config.toml` in the user's configuration directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "turnout" / "config.toml"


def load_config(path: Path | None = None, env: Mapping[str, str] | None = None) -> Config:
    """What file and environment say; the environment wins. Raises `UsageError` with the file and the key."""
    path, env = path or config_path(), os.environ if env is None else env
    data = _read(path)
    model = dict(data.get("model") or {})
    for key, variable in _VARIABLES.items():
        if env.get(variable):
            model[key] = env[variable]
    if model or env.get("ANTHROPIC_AUTH_TOKEN"):
        data = {**data, "model": model}
    try:
        file = _File.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        variable = _VARIABLES.get(where.removeprefix("model."), "")
        place = f"`{variable}`" if env.get(variable) else f"`{path}`: `{where}`"
        raise UsageError(
            f"{place}: {first['msg'].removeprefix('Value error, ')}",
            hint="docs/agent.md lists what the configuration may hold",
        ) from error
    return Config(file.model, file.subagents, file.budget, file.mcp)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read the configuration `{path}`: {error}") from error
