"""What is taken out of a session before it is shared: secrets always, host names and paths on request."""

from __future__ import annotations

import json

import pytest

from state.redact import Redactor

SECRETS = {
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "github": "ghp_" + "a1B2c3D4e5F6" * 3,
    "hugging face": "hf_" + "AbCdEfGhIj" * 3,
    "anthropic": "sk-ant-api03-" + "Zz9Yy8Xx7" * 4,
    "slack": "xoxb-123456789012-1234567890123-" + "aBcDeFgHiJkLmNoPqRsTuVwX",
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjE\nAAAA\n-----END OPENSSH PRIVATE KEY-----",
    "basic auth": "s3cr3tpw",
    "bearer": "abcdef0123456789abcdef",
    "password": "hunter2hunter2",
}
CARRIERS = {
    "basic auth": "curl https://op:{}@registry.example/v2",
    "bearer": "curl -H 'Authorization: Bearer {}'",
    "password": "export DB_PASSWORD='{}'",
}


@pytest.mark.parametrize("kind", SECRETS)
def test_a_secret_is_taken_out_wherever_it_stands(kind: str) -> None:
    """In a text, among others, in a list, as a key: the secret is gone and one name stands for it everywhere."""
    secret = SECRETS[kind]
    text = CARRIERS.get(kind, "use {} please").format(secret)
    redact = Redactor()
    told = redact({"a": text, "b": ["x", f"{text}\n{text}"], text: 1})
    assert secret not in json.dumps(told).replace("\\n", "\n")
    assert told["a"].count("[redacted") == 1
    assert "use " in told["a"] or "curl" in told["a"] or "DB_PASSWORD" in told["a"]
    assert redact(text) == told["a"]


def test_a_field_named_like_a_secret_is_taken_out() -> None:
    """`{"HF_TOKEN": ...}` is a secret by its name; counts of tokens, variables and hashes are not."""
    value = {
        "env": {"HF_TOKEN": "plainvalue", "api_key": "0123456789"}, "max_tokens": 4096, "token": "$HF_TOKEN",
        "sha": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "usage": {"input": 3},
    }  # fmt: skip
    told = Redactor()(value)
    assert "plainvalue" not in json.dumps(told)
    assert "0123456789" not in json.dumps(told["env"])
    assert {k: told[k] for k in ("max_tokens", "token", "sha", "usage")} == {
        k: value[k] for k in ("max_tokens", "token", "sha", "usage")
    }


def test_hosts_and_paths_are_taken_out_on_request() -> None:
    """Names and addresses of machines and folders get names that are the same throughout; `local` and `/dev` stay."""
    value = {"host": "gpu1", "run": "ssh op@gpu1 cat /srv/acme/models/kimi/config.json > /dev/null", "at": "10.0.0.7"}
    assert Redactor()(value) == value
    told = Redactor(hosts=["gpu1", "local"], paths=True)(value)
    assert told == {
        "host": "host-1", "run": "ssh op@host-1 cat /folder-1/config.json > /dev/null", "at": "address-1",
    }  # fmt: skip
    assert Redactor(hosts=["local"])("127.0.0.1 and local") == "127.0.0.1 and local"
    assert Redactor(paths=True)("/home/ada") == "/home/user-1"
