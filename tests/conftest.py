"""For all tests: nothing leaves this machine or touches the user's files, and blocking the event loop fails."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import blockbuster
import pytest
from hypothesis import settings

# What a shell puts into the background is deaf to Ctrl-C, and so are its children: tests that press it would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("local", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_xdist_auto_num_workers() -> int:
    """Half as many workers again as processors: many tests wait for processes and hosts most of the time."""
    return max(2, (os.cpu_count() or 1) * 3 // 2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first: at the end one of several workers would run them alone."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(autouse=True)
def a_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Database, state directory, configuration and the local host's folder belong to the test; no model is set up."""
    monkeypatch.setenv("TURNOUT_DB", str(tmp_path / "turnout.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TURNOUT_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "TURNOUT_MODEL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def only_the_loopback() -> Iterator[None]:
    """A connection to any other machine is an error."""
    patch = pytest.MonkeyPatch()
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise AssertionError(f"a test tried to reach `{address}`")
        real(self, address)

    patch.setattr(socket.socket, "connect", connect)
    yield
    patch.undo()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(autouse=True)
def the_event_loop_is_never_blocked() -> Iterator[None]:
    """A database call, a file or a sleep on the event loop fails the test that caused it."""
    with blockbuster.blockbuster_ctx(["state", "agent", "tools"]):
        yield
