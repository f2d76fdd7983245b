"""A Slurm of one's own for tests: a controller and one node on this machine, on free ports of the loopback.

The fixture `cluster` is in `tests/servers.py`. Needs Debian's `slurm-wlm` and root. Its two "GPUs" are devices
that every machine has. `KillWait` is short, so that what does not end on TERM is seen to be killed.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.hosting import free_port

_CONFIG = """
ClusterName=turnout
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
KillWait=3
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs=64 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """A running Slurm; its commands find it by `SLURM_CONF`."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self) -> None:
        host = socket.gethostname().split(".")[0]
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        values = {"host": host, "folder": self.folder, "controller": free_port(), "node": free_port()}
        self.config.write_text(_CONFIG.format(**values))
        devices = "".join(f"NodeName={host} Name=gpu File={file}\n" for file in ("/dev/null", "/dev/zero"))
        (self.folder / "gres.conf").write_text(devices)
        self.daemons = [self._daemon("slurmctld"), self._daemon("slurmd")]
        self._await_idle()

    def restart_controller(self) -> None:
        """Start it again after it was shut down."""
        self.daemons[0] = self._daemon("slurmctld")
        self._await_idle()

    def _await_idle(self) -> None:
        # There is nothing to wait on but its answer.
        for _ in range(600):
            if self.ask("sinfo", "--noheader", "--format", "%T").strip() in ("idle", "mixed"):
                return
            time.sleep(0.1)
        logs = [path.read_text()[-1000:] for path in sorted(self.folder.glob("slurm*.log"))]
        raise RuntimeError("Slurm has no idle node: " + "\n".join(logs))

    def _daemon(self, name: str) -> subprocess.Popen[bytes]:
        command = [f"/usr/sbin/{name}", "-D", "-f", str(self.config)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints."""
        env = {**os.environ, "SLURM_CONF": str(self.config)}
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False).stdout

    def stop(self) -> None:
        self.ask("scancel", "--user", "root")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
