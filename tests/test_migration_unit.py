"""The move of a vLLM that systemd runs, on a host behind a real OpenSSH server, by a run that is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosting import OpenSSH
from tests.migration_site import ROOT, Load, Site

pytest_plugins = ("tests.servers",)
pytestmark = pytest.mark.sshd
SYSTEMCTL = Path(__file__).with_name("standin_systemctl.py")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as made:
        made.root = tmp_path / "remote"
        yield made


@pytest.fixture
def env(site: Site) -> dict[str, str]:
    """What a login on the host finds: a stand-in systemctl, and the folder of its units."""
    tools, units = site.folder / "bin", site.folder / "units"
    tools.mkdir()
    units.mkdir()
    (tools / "systemctl").write_text(f'#!/bin/sh\nexec {sys.executable} {SYSTEMCTL} "$@"\n')
    (tools / "systemctl").chmod(0o755)
    command = f"{sys.executable} -m vllm.entrypoints.openai.api_server --model {site.folder / 'model'}"
    (units / "vllm.service").write_text(
        "[Service]\n"
        f"ExecStart=env PYTHONPATH={site.modules} STANDIN_SECONDS=0.01 {command} "
        f"--served-model-name k2 --port {site.port}\nRestart=always\n"
    )
    return {"PATH": f"{tools}:{os.environ['PATH']}", "STANDIN_SYSTEMD": str(units)}


def test_a_unit_is_moved_by_a_run_that_is_killed_and_taken_back(
    site: Site, env: dict[str, str], make_sshd: Callable[..., OpenSSH]
) -> None:
    """The old unit is stopped by systemd and no longer enabled, the new ones are; the way back undoes both."""
    sshd = make_sshd(SetEnv=" ".join(f"{name}={value}" for name, value in env.items()))
    for verb in ("enable", "start"):
        subprocess.run(["systemctl", verb, "vllm.service"], env={**os.environ, **env}, check=True)
    site.wait(site.serves)
    added = ["hosts", "add", "gpu1", f"127.0.0.1:{sshd.port}", "--identity", str(sshd.folder / "client")]
    more = ["--root", str(site.root), "--python", sys.executable, "--yes"]
    subprocess.run([sys.executable, "-m", "agent", *added, *more], cwd=ROOT, check=True, stdin=subprocess.DEVNULL)
    words = site.arguments("--host", "gpu1", "--yes", "--json", unit="vllm.service")
    with Load(site.port) as users:
        run = subprocess.Popen(
            [sys.executable, "-m", "agent", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            said = json.loads(line)
            if said["kind"] == "job.submitted" and "serve_base" in said["id"]:
                break
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        run.stdout.close()
        told = site.turnout("resume", "--yes", "--json")
        assert told["status"] == "completed", told
        assert site.serves() == "sglang"
        units = Path(env["STANDIN_SYSTEMD"])
        new = {f"sglang-{site.port}.service.enabled", f"turnout-router-{site.port}.service.enabled"}
        assert {path.name for path in units.glob("*.enabled")} == new
        assert not (units / "vllm.service.pid").exists()
        assert '"units_removed": true' in site.back(**env)
        assert site.serves() == "vllm"
        assert {path.name for path in units.glob("*.enabled")} == {"vllm.service.enabled"}
    assert users.failures == []
    subprocess.run(["systemctl", "stop", "vllm.service"], env={**os.environ, **env}, check=True)
