"""Commands and durable jobs over a real SSH server, against the libraries and tools that people use for it.

    python -m benchmarks.remote [--peers] [--rounds 3] [--count 1000]

Everything runs on one machine over the loopback: one OpenSSH server with its default limits, each contestant in a
process of its own, the contestants one after the other in each round, so that a busy minute hits all of them. `--peers`
makes an environment for parallel-ssh, Fabric and ansible-core below the temporary directory and installs them there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

from benchmarks.common import Aim, idle, median, openssh, save, spec_to_json, wait_until_quiet, workplace

PEERS = Path(tempfile.gettempdir()) / "turnout-peers"
PACKAGES = ("parallel-ssh", "fabric", "ansible-core")
OURS = ("turnout-quick", "asyncssh-1x8", "asyncssh-4x8", "turnout-host-jobs", "turnout-jobs")
ANSIBLE_COUNT = 50
"""Ansible is given fewer commands: at a few a second a thousand would say the same and take minutes."""
TOOLS = ("openssh-mux", "parallel-ssh", "fabric", "ansible-raw", "ansible-command")
Figures = dict[str, list[dict[str, Any]]]


def peers_python(install: bool) -> str:
    """The Python that drives the peers: of their own environment, which is made if asked for, else our own."""
    python = PEERS / "bin" / "python"
    if not install:
        return sys.executable
    if not python.exists():
        venv.create(PEERS, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    return str(python)


def peer_versions(python: str) -> dict[str, str]:
    """The versions of what was installed for the comparison."""
    ask = f"import json, importlib.metadata as m; print(json.dumps({{p: m.version(p) for p in {PACKAGES}}}))"
    told: dict[str, str] = json.loads(subprocess.run([python, "-c", ask], capture_output=True, check=True).stdout)
    return told


def run_one(name: str, python: str, host: Path, count: int) -> dict[str, Any]:
    """Run one contestant once; its figures, with how idle the machine was just before."""
    if name in OURS:
        command = [sys.executable, "-m", "benchmarks.contestants", name, str(host), str(count)]
    else:
        count = ANSIBLE_COUNT if name.startswith("ansible") else count
        command = [python, str(Path(__file__).with_name("peers.py")), name, str(host), str(count)]
    before = idle()
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    figures: dict[str, Any] = json.loads(told.splitlines()[-1])
    rate = round((count - figures["failures"]) / figures["seconds"], 1)
    return {"per_second": rate, "count": count, **figures, "idle_before": before}


def measure(names: list[str], python: str, rounds: int, count: int, folder: Path) -> Figures:
    """All rounds: the figures of each contestant, one entry a round."""
    found: Figures = {name: [] for name in names}
    with openssh(folder) as spec:
        host = folder / "host.json"
        host.write_text(spec_to_json(spec))
        for number in range(rounds):
            for name in names:
                found[name].append(run_one(name, python, host, count))
                print(f"round {number + 1}  {name:18} {found[name][-1]['per_second']:8.1f} /s", file=sys.stderr)
    return found


def ratio(found: Figures, name: str, others: list[str]) -> float:
    """The median over the rounds of this contestant's rate against the best of `others` in the same round."""
    rounds = range(len(found[name]))
    return median([found[name][n]["per_second"] / max(found[o][n]["per_second"] for o in others) for n in rounds])


def middle(runs: list[dict[str, Any]], figure: str) -> float | None:
    """The median of a figure that not every contestant can tell."""
    return median([run[figure] for run in runs]) if figure in runs[0] else None


def conclude(found: Figures) -> tuple[list[Aim], dict[str, Any]]:
    """The aims, and for each contestant its median rate, its failures, memory and ratio to ours of the same sort."""
    rates = {name: median([run["per_second"] for run in runs]) for name, runs in found.items()}
    raw, tools = ["asyncssh-1x8", "asyncssh-4x8"], [name for name in found if name in TOOLS]
    aims = [
        Aim("quick commands against the best of raw asyncssh", ratio(found, "turnout-quick", raw), ">=", 0.9, "x"),
        Aim("quick commands against the best tool", ratio(found, "turnout-quick", tools), ">=", 1.0, "x"),
        Aim("durable jobs", rates["turnout-jobs"], ">=", 100, "/s"),
    ]
    if "ansible-command" in found:
        against = ratio(found, "turnout-jobs", ["ansible-command"])
        aims.append(Aim("durable jobs against `ansible -m command`", against, ">=", 10, "x"))
    table = {
        name: {
            "per_second": rates[name],
            "failures": sum(run["failures"] for run in runs),
            **{figure: middle(runs, figure) for figure in ("peak_mb", "host_cpu_ms")},
            "quick_over_this": ratio(found, "turnout-quick", [name]),
            "jobs_over_this": ratio(found, "turnout-jobs", [name]),
        }
        for name, runs in found.items()
    }
    return aims, table


def main() -> None:
    """Measure, conclude, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", help=f"install the peers into {PEERS} and measure them too")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1000, help="commands and jobs a round")
    parser.add_argument("--patience", type=float, default=60, help="seconds to wait for a quiet machine")
    options = parser.parse_args()
    python = peers_python(options.peers)
    names = [*OURS, *(TOOLS if options.peers else TOOLS[:1])]
    wait_until_quiet(options.patience)
    with workplace() as folder:
        found = measure(names, python, options.rounds, options.count, folder)
        aims, table = conclude(found)
        peers = peer_versions(python) if options.peers else {}
        save("remote", folder, aims, table, rounds=found, peers=peers)


if __name__ == "__main__":
    main()
