"""A host that serves: a stand-in vLLM on this machine, and an interpreter with a stand-in SGLang, for whole runs.

with Site(tmp_path) as site:
    outcome = site.move("--yes")          # `turnout run vllm-to-sglang` in a process of its own
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.hosting import free_port
from tests.standin_process import lay_out

ROOT = Path(__file__).parent.parent


class Site:
    """Folders, ports and processes of one test; at the end all of them are gone."""

    key = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.new_port, self.attempt_port = free_port(), free_port(), free_port()
        self.root = folder / "root"
        self.model = folder / "model"
        self.modules = lay_out(folder / "modules")
        (folder / "model").mkdir()
        (folder / "model" / "model.safetensors").write_bytes(bytes(2 << 20))
        (folder / "own").mkdir()
        lines = [json.dumps({"prompt": f"Say number {n}"}) for n in range(4)]
        (folder / "prompts.jsonl").write_text("\n".join(lines))
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for process in [*self.processes, *self.standins(), *self.jobs()]:
            try:
                process.kill()
                process.wait(10)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue

    def python(self, **faults: str) -> str:
        """An interpreter that has SGLang, with faults for what it serves."""
        path = self.folder / "python3"
        settings = "".join(f"export {name}={value}\n" for name, value in faults.items())
        path.write_text(f'#!/bin/sh\n{settings}export PYTHONPATH={self.modules}\nexec {sys.executable} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def vllm(self, *more: str, speculates: bool = True, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Start the stand-in vLLM and wait until it serves."""
        told = json.dumps({"method": "eagle3", "model": str(self.folder / "own"), "num_speculative_tokens": 3})
        words = command or [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(self.model), "--served-model-name", "k2", "--port", str(self.port),
            *(["--speculative-config", told] if speculates else []),
            *(["--api-key", self.key] if self.key else []), *more,
        ]  # fmt: skip
        environment = {**os.environ, "STANDIN_SECONDS": "0.01", "PYTHONPATH": str(self.modules)}
        with open(self.folder / "vllm.log", "ab") as log:
            process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.processes.append(process)
        self.wait(self.serves)
        return process

    @staticmethod
    def wait(holds: Any, limit_s: float = 30.0) -> None:
        """Look until it holds."""
        end = time.monotonic() + limit_s
        while not holds():
            assert time.monotonic() < end, "it does not come"
            time.sleep(0.05)

    def serves(self, port: int = 0) -> str | None:
        """The version of the server that answers on a port; nothing when there is none."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=5)
            connection.request("GET", "/version")
            reply = connection.getresponse()
            text = reply.read()
            connection.close()
        except (OSError, http.client.HTTPException):
            return None
        return "vllm" if reply.status == 200 and b"version" in text else "sglang"

    def arguments(self, *more: str, faults: dict[str, str] | None = None, **sets: Any) -> list[str]:
        """The command line of a move, small and quick; `sets` change parameters."""
        given = {
            "sets": f"mine={self.folder / 'prompts.jsonl'}", "sglang_python": self.python(**(faults or {})),
            "new_port": self.new_port, "attempt_port": self.attempt_port, "watch": 1, "watch_every": 0.3,
            "settle": 0.5, "last_try": "no", "limit": 4, "max_tokens": 16, "port": self.port, **sets,
        }  # fmt: skip
        words = [f"--set={name}={value}" for name, value in given.items() if value != ""]
        return ["run", "vllm-to-sglang", *words, *more]

    def move(self, *more: str, faults: dict[str, str] | None = None, **sets: Any) -> dict[str, Any]:
        """Run it to its end; the last line of `--json`, with the exit code as `code`."""
        return self.turnout(*self.arguments(*more, faults=faults, **sets), "--json")

    def turnout(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "agent", *words], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        last = json.loads((done.stdout or "{}\n").splitlines()[-1])
        assert "status" in last, (last, done.stderr)
        return {**last, "code": done.returncode}

    def back(self, **env: str) -> str:
        """Go the way back, as an operator would."""
        script = self.root / "migrations" / str(self.port) / "back"
        done = subprocess.run(["sh", str(script)], capture_output=True, text=True, env={**os.environ, **env})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def standins(self) -> list[psutil.Process]:
        """Living stand-ins of this test."""
        return [p for p in psutil.process_iter() if self._is_mine(p, "launch_server") or self._is_mine(p, "api_server")]

    def jobs(self) -> list[psutil.Process]:
        """What else of this test runs: routers and clients."""
        return [p for p in psutil.process_iter() if self._is_mine(p, "vllm_to_sglang")]

    def _is_mine(self, process: psutil.Process, word: str) -> bool:
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:
            return False
        mine = (str(self.folder), str(self.port), str(self.new_port))
        return word in line and any(own in line for own in mine)


class Load:
    """Users: each request a connection of its own, as fast as answers come. `failures` should stay empty."""

    def __init__(self, port: int, clients: int = 4) -> None:
        self.port = port
        self.failures: list[str] = []
        self.served = 0
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(10)

    def _ask(self) -> None:
        body = json.dumps({"model": "k2", "prompt": "Hello", "max_tokens": 4})
        while not self._over.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            try:
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                reply = connection.getresponse()
                text = reply.read()
                if reply.status == 200 and b"choices" in text:
                    self.served += 1
                else:
                    self.failures.append(f"{reply.status} {text[:100]!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
            finally:
                connection.close()
