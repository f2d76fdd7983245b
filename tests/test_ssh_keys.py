"""Who is let in, and to whom we talk: host keys are verified always, on every hop, whatever the configuration says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from state.errors import HostError, HostKeyError, Unreachable
from tests.hosting import OpenSSH, free_port
from tools.hostkeys import Endpoint
from tools.ssh import Host, HostSpec, host_key

pytest_plugins = ("tests.servers",)
pytestmark = [pytest.mark.anyio, pytest.mark.sshd]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory of this test's own, with an empty `.ssh`."""
    (tmp_path / "home" / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


async def works(spec: HostSpec) -> bool:
    async with Host(spec, patience_s=5) as host:
        return (await host.run("echo yes")).stdout == b"yes\n"


def fingerprint(server: OpenSSH) -> str:
    return asyncssh.read_public_key(server.folder / "host.pub").get_fingerprint()


async def test_a_pinned_key_or_fingerprint_lets_us_in(sshd: OpenSSH, tmp_path: Path) -> None:
    """The whole key and its SHA-256 fingerprint are both good pins."""
    spec = sshd.spec(tmp_path / "root")
    assert await works(spec)
    assert await works(replace(spec, host_key=fingerprint(sshd)))


async def test_a_changed_key_is_refused_and_named(sshd: OpenSSH, tmp_path: Path) -> None:
    """A host that shows another key than the pinned one gets no password, no key and no command."""
    spec = sshd.spec(tmp_path / "root")
    pins = (spec.host_key, fingerprint(sshd))
    sshd.stop()
    sshd.new_host_key()
    sshd.start()
    for pin in pins:
        with pytest.raises(HostKeyError, match="has changed") as caught:
            async with Host(replace(spec, host_key=pin)):
                pass
        assert fingerprint(sshd) in caught.value.message
        assert caught.value.hint is not None
        assert "turnout hosts trust lo" in caught.value.hint


async def test_an_unknown_key_is_shown_not_trusted(sshd: OpenSSH, tmp_path: Path, home: Path) -> None:
    """A key seen for the first time is an error with the fingerprint to compare and the command to type."""
    spec = replace(sshd.spec(tmp_path / "root"), host_key="")
    with pytest.raises(HostKeyError, match="is not known") as caught:
        async with Host(spec):
            pass
    assert fingerprint(sshd) in caught.value.message
    assert (await host_key(spec)).get_fingerprint() == fingerprint(sshd)


async def test_known_hosts_decide_when_nothing_is_pinned(sshd: OpenSSH, tmp_path: Path, home: Path) -> None:
    """The operator's own known_hosts file is read, also by a name from ~/.ssh/config."""
    key = (sshd.folder / "host.pub").read_text()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {key}")
    spec = replace(sshd.spec(tmp_path / "root"), host_key="")
    assert await works(spec)
    (home / ".ssh" / "config").write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {sshd.port}\n  User {spec.user}\n  IdentityFile {spec.identity}\n"
    )
    assert await works(HostSpec(name="gpu", root=spec.root))


@pytest.mark.parametrize(
    "setting", ["UserKnownHostsFile none", "UserKnownHostsFile /dev/null", "StrictHostKeyChecking no"]
)
async def test_no_configuration_turns_verification_off(sshd: OpenSSH, tmp_path: Path, home: Path, setting: str) -> None:
    """Settings with which ssh would trust anybody make the key unknown, not trusted."""
    (home / ".ssh" / "config").write_text(f"Host *\n  {setting}\n")
    with pytest.raises(HostKeyError, match="is not known"):
        async with Host(replace(sshd.spec(tmp_path / "root"), host_key="")):
            pass


async def test_a_server_with_keys_of_another_kind_only_is_a_changed_host(sshd: OpenSSH, tmp_path: Path) -> None:
    """When the pinned kind of key is not offered at all, that is told as a changed key too."""
    pinned = asyncssh.generate_private_key("ecdsa-sha2-nistp256").export_public_key().decode()
    with pytest.raises(HostKeyError, match="has changed"):
        async with Host(replace(sshd.spec(tmp_path / "root"), host_key=pinned.strip())):
            pass


async def test_every_hop_is_verified(make_sshd: Callable[..., OpenSSH], tmp_path: Path, home: Path) -> None:
    """Through a jump host we get only if the key of the jump host itself is known, and the target's as well."""
    jump, target = make_sshd(), make_sshd()
    spec = target.spec(tmp_path / "root")
    (home / ".ssh" / "config").write_text(
        f"Host gpu\n  HostName 127.0.0.1\n  Port {target.port}\n  ProxyJump door\n"
        f"Host door\n  HostName 127.0.0.1\n  Port {jump.port}\n"
        f"Host *\n  User {spec.user}\n  IdentityFile {spec.identity}\n  IdentityFile {jump.folder}/client\n"
    )
    known = home / ".ssh" / "known_hosts"
    far = f"[127.0.0.1]:{target.port} {(target.folder / 'host.pub').read_text()}"
    near = f"[127.0.0.1]:{jump.port} {(jump.folder / 'host.pub').read_text()}"
    gpu = HostSpec(name="gpu", root=spec.root)
    for lines in (far, near):
        known.write_text(lines)
        with pytest.raises(HostKeyError, match="is not known"):
            await works(gpu)
    known.write_text(far + near)
    assert await works(gpu)
    jump.stop()
    with pytest.raises(Unreachable):
        await works(gpu)


async def test_a_refused_login_says_so_at_once(sshd: OpenSSH, tmp_path: Path, home: Path) -> None:
    """A key that the server does not accept is no matter of patience, and nobody is asked for a password."""
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "other")
    with pytest.raises(Unreachable, match="refuses the login"):
        async with Host(replace(sshd.spec(tmp_path / "root"), identity=str(tmp_path / "other")), patience_s=1000):
            pass


async def test_a_closed_port_says_so_at_once(tmp_path: Path) -> None:
    """A host that refuses the connection is reported without waiting, with what was seen."""
    pin = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    spec = HostSpec("lo", "127.0.0.1", free_port(), "nobody", pin, root=str(tmp_path))
    with pytest.raises(Unreachable, match="refused"):
        async with Host(spec, patience_s=1000):
            pass


async def test_nobody_else_gets_into_the_embedded_server(tmp_path: Path) -> None:
    """The embedded server accepts the one key that was made for it in memory, and no other."""
    async with Host(HostSpec(name="local", root=str(tmp_path / "root"))) as host:
        assert host._links is not None
        endpoint = host._links._endpoint
        for keys in ([asyncssh.generate_private_key("ssh-ed25519")], []):
            with pytest.raises(asyncssh.PermissionDenied):
                await asyncssh.connect(
                    endpoint.address, endpoint.port, username="local", client_keys=keys, known_hosts=None, config=None
                )


@pytest.mark.parametrize(
    ("text", "address", "port", "user"),
    [
        ("door", "door", 0, ""),
        ("me@door", "door", 0, "me"),
        ("me@door:2222", "door", 2222, "me"),
        ("[::1]:22", "::1", 22, ""),
        ("fe80::1", "fe80::1", 0, ""),
    ],
)
async def test_a_hop_is_read_as_ssh_reads_it(text: str, address: str, port: int, user: str) -> None:
    """`[user@]host[:port]`, IPv6 in brackets or bare."""
    hop = Endpoint.hop(text)
    assert (hop.address, hop.port, hop.user) == (address, port, user)


@pytest.mark.parametrize(
    ("spec", "files"),
    [
        (HostSpec(name="h", address="127.0.0.1", host_key="ssh-ed25519 rubbish"), {}),
        (HostSpec(name="h", address="127.0.0.1", port=70000), {}),
        (HostSpec(name="h", address="a..b"), {}),
        (HostSpec(name="h", address="127.0.0.1"), {"known_hosts": "|1|xx|yy ssh-ed25519 AAAA\n"}),
        (HostSpec(name="h", address="127.0.0.1"), {"config": "Port many\n"}),
    ],
)
async def test_settings_that_nobody_can_read_are_said(home: Path, spec: HostSpec, files: dict[str, str]) -> None:
    """A broken pin, port, name, known_hosts or ssh_config is an error of the host, with where to look; no crash."""
    (home / ".ssh").mkdir(exist_ok=True)
    for name, text in files.items():
        (home / ".ssh" / name).write_text(text)
    with pytest.raises(HostError) as caught:
        async with Host(spec, patience_s=2) as host:
            await host.run("true")
    assert caught.value.hint
