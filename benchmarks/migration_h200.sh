#!/usr/bin/env bash
# The story on one GPU: a real vLLM 0.23.0 with an EAGLE-3 drafter serves under load, and `turnout run vllm-to-sglang`
# takes it to SGLang 0.5.14: base, a random drafter in the place of a public one, a trained drafter; blue/green on the
# one card, the gap measured by clients that ask all the time.
#
#   benchmarks/migration_h200.sh pack             here: Turnout's own dependencies as .gpu/turnout.part00
#   benchmarks/migration_h200.sh start            there: vLLM up, clients asking               up to 5 minutes
#   benchmarks/migration_h200.sh move             there: the whole move, and the report        about 7 minutes
#   benchmarks/migration_h200.sh back             there: the way back, under load              about 3 minutes
#   benchmarks/migration_h200.sh all              start and move in one command under ten minutes: vLLM without graphs
#
# `start` and `move` may be separate commands where processes outlive a command; `move` again goes on with a session
# that was cut off. What is to be kept goes to $OUT.
#
#   SITE, VSITE, TSITE   folders with SGLang, with vLLM's overlay, with Turnout's dependencies
#   TARGET   a checkpoint's folder           DRAFTER   the trained drafter's folder; both as eagle3_h200.sh leaves them
#            with WORK=/tmp/eagle3
#   DATA     prompts: eagle_mt_bench.jsonl and others, named in SETS       PREDICTION   what evaluate wrote, if there
set -uo pipefail
cd "$(dirname "$0")/.."
SITE=${SITE:-/tmp/p/site} VSITE=${VSITE:-/tmp/p/vsite} TSITE=${TSITE:-/tmp/p/tsite}
WORK=$(realpath -m "${WORK:-/tmp/migration}")
TARGET=$(realpath -m "${TARGET:-/tmp/eagle3/target}")
DRAFTER=$(realpath -m "${DRAFTER:-/tmp/eagle3/drafter/export}")
DATA=$(realpath -m "${DATA:-.gpu/data}")
SETS=${SETS:-mt=$DATA/eagle_mt_bench.jsonl,gsm8k=$DATA/gsm8k_test.jsonl}
OUT=${OUT:-$WORK/kept}
LIMIT=${LIMIT:-8}
ATTEMPT=${ATTEMPT:-yes}
PORT=8000
began=$SECONDS
export TURNOUT_DB=$WORK/turnout.db TURNOUT_ROOT=$WORK/root XDG_STATE_HOME=$WORK/state HF_HUB_OFFLINE=1 PYTHONUNBUFFERED=1

note() { printf '[%4d s] %s\n' $((SECONDS - began)) "$*"; }

turnout() { PYTHONPATH=$TSITE python3 -m agent "$@"; }

pack() { # the dependencies of pyproject.toml for Python 3.12 on Linux, one archive
    local folder
    folder=$(mktemp -d)
    command -v uv >/dev/null || python3 -m pip install -q uv
    python3 -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))' \
        >"$folder/wanted"
    uv pip install -q --target "$folder/tsite" --python-version 3.12 --python-platform x86_64-manylinux_2_34 \
        --only-binary :all: -c constraints.txt -r "$folder/wanted"
    find "$folder" -name __pycache__ -prune -exec rm -rf {} +
    mkdir -p .gpu
    tar czf "$folder/turnout.tgz" -C "$folder" tsite
    split -b 48M -d "$folder/turnout.tgz" .gpu/turnout.part
    rm -rf "$folder"
    ls -l .gpu/turnout.part*
}

lay_out() { # an interpreter with SGLang, a drafter of random weights in the shape of the trained one
    mkdir -p "$WORK" "$OUT"
    printf '#!/bin/sh\nexport PYTHONPATH=%s HF_HUB_OFFLINE=1\nexec python3 "$@"\n' "$SITE" >"$WORK/sglang-python"
    chmod +x "$WORK/sglang-python"
    [ -d "$WORK/random" ] || PYTHONPATH=$SITE python3 - "$DRAFTER" "$WORK/random" <<'PY'
import shutil, sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

source, target = map(Path, sys.argv[1:])
target.mkdir(parents=True)
shutil.copyfile(source / "config.json", target / "config.json")
torch.manual_seed(0)
tensors = load_file(source / "model.safetensors")
for name, tensor in tensors.items():
    if tensor.is_floating_point() and "norm" not in name:
        tensors[name] = (torch.randn(tensor.shape) * 0.02).to(tensor.dtype)
save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
PY
}

answers() { python3 -c "import urllib.request as u; u.urlopen('http://127.0.0.1:$PORT/health', timeout=2)" 2>/dev/null; }

start() { # start [ARGUMENTS...]: vLLM with the trained drafter, and four clients that ask all the time
    lay_out
    local told
    told=$(printf '{"method": "eagle3", "model": "%s", "num_speculative_tokens": 3}' "$DRAFTER")
    PYTHONPATH=$VSITE:$SITE VLLM_USE_FLASHINFER_SAMPLER=0 setsid nohup python3 -m vllm.entrypoints.openai.api_server \
        --model "$TARGET" --served-model-name target --port $PORT --max-model-len 4096 --gpu-memory-utilization 0.3 \
        --max-num-seqs 16 --speculative-config "$told" "$@" >"$WORK/vllm.log" 2>&1 </dev/null &
    local pid=$!
    until answers; do
        kill -0 $pid 2>/dev/null || { note "vLLM ended"; tail -40 "$WORK/vllm.log"; return 1; }
        [ $((SECONDS - began)) -lt "${START_SECONDS:-330}" ] ||
            { note "vLLM does not come up"; tail -40 "$WORK/vllm.log"; kill -- -$pid; return 1; }
        sleep 1
    done
    note "vLLM serves"
    mkdir -p "$WORK/code" && rm -rf "$WORK/code/vllm_to_sglang"
    cp -r playbooks/vllm_to_sglang/payload "$WORK/code/vllm_to_sglang"
    PYTHONPATH=$WORK/code setsid nohup python3 -m vllm_to_sglang.gap --url "http://127.0.0.1:$PORT" --model target \
        --out "$OUT/load.json" --clients 4 --tokens 64 --pause 0 >"$WORK/load.log" 2>&1 </dev/null &
    echo $! >"$WORK/load.pid"
}

move() { # the playbook, or what is left of it
    local more=()
    [ -n "${PREDICTION:-}" ] && more+=(--set "prediction=$PREDICTION")
    # A vLLM without graphs starts sooner; SGLang is to have its own.
    [ "$ATTEMPT" = no ] && more+=(--set last_try=no --set drop=--cuda-graph-backend-decode,--cuda-graph-backend-prefill)
    if [ -f "$WORK/begun" ]; then
        turnout resume --yes | tee -a "$OUT/run.log"
    else
        touch "$WORK/begun"
        turnout run vllm-to-sglang --yes --set "sets=$SETS" --set "drafter=$DRAFTER" --set "public_drafter=$WORK/random" \
            --set "sglang_python=$WORK/sglang-python" --set limit="$LIMIT" --set max_tokens=128 --set watch=10 \
            --set watch_every=2 --set attempt_extra=--enforce-eager --set attempt_fraction=0.15 \
            --set 'extra=["--attention-backend", "triton", "--sampling-backend", "pytorch", "--grammar-backend", "none", "--dtype", "bfloat16"]' \
            "${more[@]}" | tee "$OUT/run.log"
    fi
    keep
}

keep() { # what a reader of the figures wants
    cp -r "$WORK"/state/turnout/reports/*/ "$OUT/" 2>/dev/null
    cp "$WORK/vllm.log" "$OUT/" 2>/dev/null
    turnout todo >"$OUT/todo.txt" 2>&1
    for job in final serve@base serve@public serve@own attempt; do
        turnout logs "$job" --tail 200 >"$OUT/$job.log" 2>/dev/null
    done
    nvidia-smi >"$OUT/nvidia-smi.txt" 2>&1
    note "clients: $(cat "$OUT/load.json" 2>/dev/null)"
    sed -n '/## Throughput/,/## Findings/p' "$OUT"/*/report.md "$OUT/report.md" 2>/dev/null
}

back() { # the way back, as an operator would go it
    sh "$WORK/root/migrations/$PORT/back" 2>&1 | tee "$OUT/back.log"
    note "clients: $(cat "$OUT/load.json")"
}

case ${1:?usage: migration_h200.sh pack|start|move|back|all} in
    pack) pack ;;
    start) start ;;
    move) move ;;
    back) back ;;
    all) start --enforce-eager && ATTEMPT=no && move ;;
    *) echo "no phase is named $1" >&2; exit 2 ;;
esac
note "$1 done"
