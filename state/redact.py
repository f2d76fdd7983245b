"""Taking out of a session what others must not see: secrets always, host names and paths on request.

    redact = Redactor(hosts=["gpu1"], paths=True)
    shared = redact(value)                        # any JSON value, keys included

Secrets are found by the rules of detect-secrets (https://github.com/Yelp/detect-secrets), by a few for the tokens of
this trade, and by the names of the fields they stand in. What is taken out is replaced by a name that is the same for
the same thing, so that a reader still sees that two places meant one host. Guessing by entropy is not done: hashes and
ids of commits, payloads and models would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

_OWN = {
    "anthropic key": r"sk-ant-[A-Za-z0-9_-]{16,}",
    "hugging face token": r"\bhf_[A-Za-z0-9]{20,}",
    "openai key": r"\bsk-(?:proj-|svcacct-|None-)?[A-Za-z0-9_-]{24,}",
    "google key": r"\bAIza[A-Za-z0-9_-]{35}",
    "bearer token": r"(?i)\b(?:bearer|authorization:\s*(?:basic|token))\s+([A-Za-z0-9._~+/=-]{12,})",
    "private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----[\s\S]*?(?:-----END (?:[A-Z0-9]+ )*PRIVATE KEY-----|\Z)",
    "password": r"(?i)(?:password|passwd|passphrase|secret|api[_-]?key|access[_-]?key|auth[_-]?token|(?<=_)token)"
    r"[\"']?\s*(?:=|:)\s*[\"']?([^\s\"',;&|)}\]]{6,})",
}
_PLUGINS = (
    "artifactory.ArtifactoryDetector", "aws.AWSKeyDetector", "azure_storage_key.AzureStorageKeyDetector",
    "basic_auth.BasicAuthDetector", "cloudant.CloudantDetector", "discord.DiscordBotTokenDetector",
    "github_token.GitHubTokenDetector", "gitlab_token.GitLabTokenDetector", "ibm_cloud_iam.IbmCloudIamDetector",
    "jwt.JwtTokenDetector", "mailchimp.MailchimpDetector", "npm.NpmDetector", "openai.OpenAIDetector",
    "pypi_token.PypiTokenDetector", "sendgrid.SendGridDetector", "slack.SlackDetector", "softlayer.SoftlayerDetector",
    "square_oauth.SquareOAuthDetector", "stripe.StripeDetector", "telegram_token.TelegramBotTokenDetector",
    "twilio.TwilioKeyDetector",
)  # fmt: skip
_SECRET_FIELD = re.compile(
    r"(?i)^(.*_)?(password|passwd|passphrase|secret|secret_key|api_?key|access_?key|private_?key|auth_?token|token|credentials?)$"
)
_ADDRESS = re.compile(r"(?<![\d.])(?!127\.|0\.0\.0\.0|255\.)(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_HOME = re.compile(r"(/home/|/Users/|\\Users\\)([A-Za-z0-9._-]+)")
_PATH = re.compile(r"(?<![\w/.:~-])(~?(?:/[\w.@+-]+)+)/([\w.@+-]+)")
_PUBLIC = ("/dev", "/proc", "/sys", "/usr", "/bin", "/sbin", "/etc", "/tmp", "/var/log", "/lib", "/opt/conda")
MIN_GROUP = 4
_SHELL_VALUES = ("$", "<", "{", "[redacted", "%", "*")


class Redactor:
    """Replaces what must not be seen. Holds what it has replaced, so that one thing keeps one name."""

    def __init__(self, *, hosts: Iterable[str] | None = None, paths: bool = False) -> None:
        names = sorted({h for h in hosts or () if h not in ("", "local", "localhost")}, key=len, reverse=True)
        self._hosts = re.compile("|".join(rf"(?<![\w-]){re.escape(n)}(?![\w-])" for n in names)) if names else None
        self._addresses = hosts is not None
        self._paths = paths
        self._names: dict[tuple[str, str], str] = {}
        self.count = 0

    def __call__(self, value: Any) -> Any:
        """The value with everything taken out of it."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {self._text(str(key)): self._field(str(key), inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self(inner) for inner in value]
        return value

    def _field(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and len(value) >= 6 and _SECRET_FIELD.match(name):
            return value if value.startswith(_SHELL_VALUES) else self._name("secret", value)
        return self(value)

    def _text(self, text: str) -> str:
        if len(text) >= 8:
            for what, secret in _secrets(text):
                if secret in text and not secret.startswith(_SHELL_VALUES):
                    text = text.replace(secret, self._name(what, secret))
        if self._hosts is not None:
            text = self._hosts.sub(lambda m: self._name("host", m[0]), text)
        if self._addresses:
            text = _ADDRESS.sub(lambda m: self._name("address", m[0]), text)
        if self._paths:
            text = _HOME.sub(lambda m: f"{m[1]}{self._name('user', m[2])}", text)
            text = _PATH.sub(self._path, text)
        return text

    def _path(self, found: re.Match[str]) -> str:
        folder, name = found[1], found[2]
        if folder.startswith(_PUBLIC) or folder in ("/home", "/Users"):
            return found[0]
        return f"{self._name('folder', folder)}/{name}"

    def _name(self, what: str, value: str) -> str:
        key = (what, value)
        if key not in self._names:
            number = sum(1 for kind, _ in self._names if kind == what) + 1
            bare = what in ("host", "folder", "user", "address")
            self._names[key] = f"{what}-{number}" if bare else f"[redacted {what} {number}]"
            if what == "folder":
                self._names[key] = "/" + self._names[key]
        self.count += 1
        return self._names[key]


def _secrets(text: str) -> list[tuple[str, str]]:
    """The secrets in a text with what each is, longest first.

    A pattern's group is the secret within its surroundings, unless it is only the beginning of a token.
    """
    found: dict[str, str] = {}
    for what, pattern in _own():
        for match in pattern.finditer(text):
            found.setdefault(match[1] if match.re.groups and match[1] else match[0], what)
    for what, patterns, holds in _plugins():
        for pattern in patterns:
            for match in pattern.finditer(text):
                secret = max((group for group in match.groups() if group), key=len, default="")
                secret = secret if len(secret) >= MIN_GROUP else match[0]
                if holds(secret):
                    found.setdefault(secret, what)
    return sorted(((what, secret) for secret, what in found.items()), key=lambda pair: -len(pair[1]))


@cache
def _own() -> list[tuple[str, re.Pattern[str]]]:
    return [(what, re.compile(pattern)) for what, pattern in _OWN.items()]


@cache
def _plugins() -> list[tuple[str, list[re.Pattern[str]], Callable[[str], bool]]]:
    """The rules of detect-secrets: what each finds, its patterns, and a test of what it found."""
    from importlib import import_module

    rules: list[tuple[str, list[re.Pattern[str]], Callable[[str], bool]]] = []
    for path in _PLUGINS:
        module, name = path.split(".")
        plugin = getattr(import_module(f"detect_secrets.plugins.{module}"), name)()
        holds = getattr(plugin, "is_formally_valid", lambda secret: True)
        rules.append((str(plugin.secret_type).lower(), list(plugin.denylist), holds))
    return rules
