"""The built wheel: exactly our four packages, with their data, and it runs from where it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {"agent", "tools", "playbooks", "state"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the files that git knows, so that nothing lying about gets in."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["cp", "--parents", *files.decode().rstrip("\0").split("\0"), source], cwd=ROOT, check=True)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--wheel-dir", out, source], check=True, capture_output=True)
    (found,) = out.glob("*.whl")
    return found


@pytest.mark.slow
def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    """No tests, no benchmarks, no foreign name; every module and every playbook is in."""
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == PACKAGES
    known = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {n for n in known.stdout.split() if n.endswith((".py", ".yaml", ".toml", ".jsonl"))}
    assert wanted - names == set()


@pytest.mark.slow
def test_an_installed_wheel_runs_its_playbooks_from_elsewhere(wheel: Path, tmp_path: Path) -> None:
    """No checkout is needed: commands, migrations, the remote half and the shipped playbooks come out of the wheel."""
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    (tmp_path / "p.yaml").write_text("name: p\nsteps:\n  - {id: a, job: {host: local, run: 'echo hi'}}\n")
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}

    def turnout(*argv: str) -> str:
        command = [sys.executable, "-m", "agent", *argv]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "eagle3" in turnout("playbook", "list")
    assert str(site) in turnout("playbook", "list", "--json")
    assert json.loads(turnout("run", "p.yaml", "--json").splitlines()[-1])["status"] == "completed"
    turnout("run", "eagle3", "--dry-run")


@pytest.mark.parametrize("name", sorted(PACKAGES))
def test_each_package_is_the_one_of_this_checkout(name: str) -> None:
    """A foreign `tools` or `state` on the path would be found by this."""
    module = __import__(name)
    assert Path(str(module.__file__)).parent == ROOT / name
