#!/usr/bin/env bash
# The whole EAGLE-3 playbook on one GPU with SGLang, in phases that each end by themselves well inside ten minutes:
#
#   benchmarks/eagle3_h200.sh micro|data|train|serve|all
#
#   micro   the trainer's mathematics on this device, its speed beside a naive one, a profile      about 4 minutes
#   data    SGLang up; prompts that the target writes itself; its answers; SGLang down             about 9 minutes
#   train   the drafter, its prediction on held-out answers and three prompt sets, export, report  about 9 minutes
#   serve   SGLang without speculation, with 3 and with 5 steps, measured on the same prompts      about 8 minutes
#
# Phases hand on to each other through $WORK, so they can be separate commands on one machine. What is to be kept goes
# to $OUT (the work directory's results/ when it is unset). Run it at the root of a checkout; it wants Python with torch
# and SGLang on its path.
#
#   TARGET   a .gguf file or a checkpoint       DATA   prompts: gsm8k_train, selfinstruct*, and for evaluation
#   WORK     where everything lies                     eagle_mt_bench, humaneval, gsm8k_test (all .jsonl)
set -uo pipefail
cd "$(dirname "$0")/.."
TARGET=${TARGET:-/tmp/p/smollm2.gguf}
DATA=$(realpath -m "${DATA:-.gpu/data}")
WORK=$(realpath -m "${WORK:-/tmp/eagle3}")
OUT=${OUT:-$WORK/kept}
COMPOSE_SECONDS=${COMPOSE_SECONDS:-90}
GENERATE_SECONDS=${GENERATE_SECONDS:-210}
TRAIN_SECONDS=${TRAIN_SECONDS:-400}
BENCH_PROMPTS=${BENCH_PROMPTS:-40}
SERVERS=${SERVERS:-2}
mkdir -p "$WORK/host" "$WORK/log" "$OUT"
rm -rf "$WORK/host/eagle3" && cp -r playbooks/eagle3/payload "$WORK/host/eagle3"
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$WORK/host" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
bench=$PWD/tools/serving
speed=$PWD/benchmarks/eagle3_speed.py
began=$SECONDS
pids=()
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

wait_for() { # wait_for PORT SECONDS: until the server generates; shows its log when it does not
    python3 - "$1" "$2" "${pids[-1]}" <<'PY' && note "server on port $1 is up" && return 0
import os, sys, time, urllib.error, urllib.request
port, limit, pid = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
end = time.monotonic() + limit
while time.monotonic() < end:
    try:
        os.kill(pid, 0)
        if urllib.request.urlopen(f"http://127.0.0.1:{port}/health_generate", timeout=30).status == 200:
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

keep() { # keep NAME FILE...: the files, packed, as $OUT/NAME.tar.gz
    local name=$1
    shift
    (cd "$WORK" && tar czf "$OUT/$name.tar.gz" --ignore-failed-read "$@" 2>/dev/null)
}

micro() {
    step fetch 120 || return 1
    timeout 400 python3 "$speed" --target "$WORK/target" --seconds "${MICRO_SECONDS:-8}" --out "$OUT/speed.json" \
        ${MICRO_SET:-} >"$WORK/log/micro.log" 2>&1 || tail -40 "$WORK/log/micro.log"
    grep -v '^::progress\|^step ' "$WORK/log/micro.log" | tail -c 11000 | tee "$OUT/speed.txt"
}

data() {
    step fetch 120 || return 1
    local common=(--mem-fraction-static 0.35 --cuda-graph-max-bs 256 --max-running-requests 256)
    local urls='"http://127.0.0.1:30000"' more n
    start_server 30000 "${common[@]}"
    wait_for 30000 260 || return 1
    for n in $(seq 1 $((SERVERS - 1))); do start_server $((30000 + n)) "${common[@]}"; done
    step compose $((COMPOSE_SECONDS + 60)) --set 'generate.endpoint=["http://127.0.0.1:30000"]' \
        --set "compose.max_seconds=$COMPOSE_SECONDS"
    for n in $(seq 1 $((SERVERS - 1))); do
        more=$((30000 + n))
        wait_for $more 60 && urls+=",\"http://127.0.0.1:$more\""
    done
    prompts
    step generate $((GENERATE_SECONDS + 90)) --set "generate.endpoint=[$urls]" --set "data.prompts=$PROMPTS" \
        --set "generate.max_seconds=$GENERATE_SECONDS"
    stop_servers
    grep -h 'answers,' "$WORK/log/compose.log" "$WORK/log/generate.log" | tail -3
    keep data composed.jsonl results log
    gzip -c "$WORK/answers.jsonl" | head -c 15900000 >"$OUT/answers.jsonl.gz"
    table_data
}

prompts() { # PROMPTS: the training files as a TOML list
    PROMPTS=$(python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \
        "$DATA/gsm8k_train.jsonl" "$DATA"/selfinstruct*.jsonl)
}

train() {
    local sets=(--prompts "mt-bench=$DATA/eagle_mt_bench.jsonl" --prompts "humaneval=$DATA/humaneval.jsonl"
        --prompts "gsm8k=$DATA/gsm8k_test.jsonl" --set "evaluate.limit=$BENCH_PROMPTS" --set generate.batch_size=256)
    step train $((TRAIN_SECONDS + 90)) --profile --set "train.max_seconds=$TRAIN_SECONDS" ${TRAIN_SET:-}
    grep -h 'acceptance length\|^phases' -A 5 "$WORK/log/train.log" | tail -12
    step export 60
    step evaluate 120 "${sets[@]}"
    cp "$WORK/results/evaluate.json" "$WORK/results/train.json" "$OUT/" 2>/dev/null
    keep train results log drafter/log.jsonl drafter/profile.txt
    keep drafter drafter/export
    table_train
}

serve() {
    local spec=(--speculative-algorithm EAGLE3 --speculative-draft-model-path "$WORK/drafter/export"
        --speculative-eagle-topk 1) name k
    for name in plain eagle3-3 eagle3-5; do
        k=${name#eagle3-}
        local more=()
        [[ $name != plain ]] && more=("${spec[@]}" --speculative-num-steps "$k" --speculative-num-draft-tokens $((k + 1)))
        note "serving: $name"
        start_server 30000 --mem-fraction-static 0.5 --cuda-graph-max-bs 8 "${more[@]}"
        wait_for 30000 200 && measure "$name"
        stop_servers
    done
    keep serve bench log
    cp "$WORK"/bench/*.json "$OUT/" 2>/dev/null
    table_serve
}

measure() { # measure NAME: the bench on the running server, against the plain one where there is a result of it
    local plain=() set
    [[ $1 != plain && -f $WORK/bench/plain.json ]] && plain=(--baseline "$WORK/bench/plain.json")
    local sets=()
    for set in mt-bench humaneval gsm8k; do sets+=(--set "$set=$WORK/sets/$set.jsonl"); done
    mkdir -p "$WORK/bench"
    (cd "$bench" && timeout 150 python3 -m bench --url http://127.0.0.1:30000 --engine sglang "${sets[@]}" \
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

table_serve() {
    python3 - "$WORK" <<'PY'
import json, sys, pathlib
work = pathlib.Path(sys.argv[1])
path = work / "results" / "evaluate.json"
predicted = json.loads(path.read_text())["sets"] if path.is_file() else {}
rates = {}
print(f"{'server':<10} {'set':<10} {'at once':>7} {'tok/s':>8} {'x plain':>7} {'length':>7} {'predicted':>9}")
for name in ("plain", "eagle3-3", "eagle3-5"):
    path = work / "bench" / f"{name}.json"
    for one in json.loads(path.read_text())["passes"] if path.is_file() else []:
        key = (one["set"], one["concurrency"])
        rate = one["tokens_per_s"]
        rates.setdefault(key, rate)
        length = (one.get("acceptance") or {}).get("length") or 1.0
        wanted = predicted.get(one["set"], {}).get("chains", {}).get(name[-1], {}).get("length", 1.0)
        multiple = rate / rates[key] if rates[key] else 0.0
        print(f"{name:<10} {key[0]:<10} {key[1]:>7} {rate:>8.0f} {multiple:>7.2f} {length:>7.2f} {wanted:>9.2f}")
PY
}

case ${1:-all} in
micro | data | train | serve) "$1" ;;
all) micro; data; train; serve ;;
*) echo "usage: $0 micro|data|train|serve|all" >&2; exit 2 ;;
esac
note "done"
