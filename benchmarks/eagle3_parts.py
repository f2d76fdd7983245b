"""What benchmarks/eagle3_h200.sh cannot say in shell. Needs the payload (`eagle3`) on its path, and nothing of Turnout.

python benchmarks/eagle3_parts.py wait PORT SECONDS PID [PATH]      until a server answers; exit code 1: it does not
python benchmarks/eagle3_parts.py functions FILE COUNT              prompts: the beginnings of Python functions
python benchmarks/eagle3_parts.py warm WORK                         answers of noise, to compile the trainer on
python benchmarks/eagle3_parts.py noise WORK                        drafter/random: the drafter's shape, no training
python benchmarks/eagle3_parts.py deepen WORK LAYERS                deep/: the target under layers that do nothing
python benchmarks/eagle3_parts.py data|train WORK                   what these stages found
python benchmarks/eagle3_parts.py serve WORK NAME...                measurements beside the prediction
"""

from __future__ import annotations

import ast
import json
import os
import random
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def wait(port: str, seconds: str, pid: str, path: str = "health_generate") -> int:
    """0 once the server on `port` answers `path` with 200; 1 when its process is gone or the time over."""
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            os.kill(int(pid), 0)
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30).status == 200:
                return 0
        except ProcessLookupError:
            break
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.5)
    return 1


def functions(file: str, count: str) -> int:
    """Write up to `count` prompts: signature and docstring of functions that lie about on this machine.

    So are programmers' questions put to a model that completes code, and no machine with Python is without them.
    """
    places = [Path(sysconfig.get_paths()[name]) for name in ("stdlib", "purelib")]
    paths = [p for place in places for p in sorted(place.rglob("*.py")) if not {"test", "tests"} & set(p.parts)]
    random.Random(0).shuffle(paths)
    found: dict[str, None] = {}
    for path in paths:
        found |= dict.fromkeys(_beginnings(path))
        if len(found) >= int(count):
            break
    lines = [json.dumps({"id": f"function-{n}", "prompt": text}) for n, text in enumerate([*found][: int(count)])]
    Path(file).write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} functions")
    return 0


def _beginnings(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        told, arguments = ast.get_docstring(node), ast.unparse(node.args)
        if told and 40 <= len(told) <= 700 and not arguments.startswith("self") and len(arguments) < 120:
            indented = "\n".join(f"    {line}".rstrip() for line in told.splitlines()).strip()
            yield f'def {node.name}({arguments}):\n    """{indented}\n    """\n'


def warm(work: str) -> int:
    """Answers of random tokens as `generate` would leave them, in rows of many lengths."""
    from eagle3.config import load_config
    from eagle3.provenance import record
    from eagle3.runtime import Workdir
    from eagle3.target import load_tokenizer

    place, chance = Workdir(Path(work)), random.Random(0)
    record(load_config("h200-smollm2"), place, load_tokenizer(place.target))
    with place.answers.open("w", encoding="utf-8") as file:
        for n in range(1500):
            ids = [chance.randrange(16_000) for _ in range(chance.randint(40, 600))]
            row = {"id": str(n), "split": "train" if n % 100 else "eval", "key": str(n), "prompt": "", "answer": "",
                   "finish": "stop", "prompt_ids": ids[:20], "answer_ids": ids[20:]}  # fmt: skip
            file.write(json.dumps(row) + "\n")
    return 0


def noise(work: str) -> int:
    """The control: the trained drafter's files with random weights in them."""
    import torch
    from eagle3.export import load_drafter, save_drafter
    from eagle3.runtime import Workdir
    from eagle3.target import read_embedding

    place = Workdir(Path(work))
    drafter = load_drafter(place.drafter / "export", read_embedding(place.target))
    torch.manual_seed(0)
    for name, weight in drafter.named_parameters():
        if "norm" not in name:
            torch.nn.init.normal_(weight, std=0.02)
    save_drafter(drafter, place.drafter / "random", torch.bfloat16)
    return 0


def deepen(work: str, layers: str) -> int:
    """The target with layers put on top whose output projections are zero: the same words, at a large target's pace."""
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    target, deep = Path(work) / "target", Path(work) / "deep"
    deep.mkdir(exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    first, last = config["num_hidden_layers"], int(layers)
    for path in target.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, deep / path.name)
    tensors = {k: v for path in sorted(target.glob("*.safetensors")) for k, v in load_file(path).items()}
    top = f"model.layers.{first - 1}."
    for n in range(first, last):
        for name in [k for k in tensors if k.startswith(top)]:
            copy = torch.zeros_like if name.endswith(("o_proj.weight", "down_proj.weight")) else torch.clone
            tensors[name.replace(top, f"model.layers.{n}.")] = copy(tensors[name])
    save_file(tensors, deep / "model.safetensors", metadata={"format": "pt"})
    (deep / "config.json").write_text(json.dumps({**config, "num_hidden_layers": last}))
    return 0


def data(work: str) -> int:
    for name in ("compose", "generate"):
        path = Path(work) / "results" / f"{name}.json"
        if path.is_file():
            print(name, {k: v for k, v in json.loads(path.read_text()).items() if k != "chat_template"})
    return 0


def train(work: str) -> int:
    results = Path(work) / "results"
    keys = ("steps", "epochs", "tokens_seen", "tokens_per_second", "loss_last", "accuracy_last",
            "best_acceptance_length", "peak_gpu_bytes", "seconds")  # fmt: skip
    if (results / "train.json").is_file():
        found = json.loads((results / "train.json").read_text())
        print({k: found[k] for k in keys})
    for name, one in _sets(Path(work)).items():
        lengths = {k: a["length"] for k, a in one["chains"].items()}
        print(f"{name:<10} predicted {lengths} conditional {one['conditional']} agreement {one['greedy_agreement']}")
    return 0


def serve(work: str, *names: str) -> int:
    predicted = _sets(Path(work))
    print(f"{'server':<18}{'set':<10}{'at once':>8}{'tok/s':>8}{'x plain':>9}{'length':>8}{'predicted':>10}{'cost':>7}")
    for name in names:
        path = Path(work) / "bench" / f"{name}.json"
        chain = "" if "random" in name else name.rpartition("-")[2]
        for one in json.loads(path.read_text())["passes"] if path.is_file() else []:
            versus, accepted = one.get("versus") or {}, one.get("acceptance") or {}
            wanted = predicted.get(one["set"], {}).get("chains", {}).get(chain, {})
            shown = [versus.get("multiplier"), accepted.get("length"), wanted.get("length"), versus.get("step_cost")]
            cells = [f"{value:.2f}" if isinstance(value, (int, float)) else "-" for value in shown]
            print(f"{name:<18}{one['set']:<10}{one['concurrency']:>8}{one['tokens_per_s']:>8.0f}"
                  f"{cells[0]:>9}{cells[1]:>8}{cells[2]:>10}{cells[3]:>7}")  # fmt: skip
    return 0


def _sets(work: Path) -> dict[str, Any]:
    path = work / "results" / "evaluate.json"
    found: dict[str, Any] = json.loads(path.read_text())["sets"] if path.is_file() else {}
    return found


COMMANDS = {one.__name__: one for one in (wait, functions, warm, noise, deepen, data, train, serve)}

if __name__ == "__main__":
    sys.exit(COMMANDS[sys.argv[1]](*sys.argv[2:]))
