"""Measures a model server where it runs: speed, time to the first token, and how many drafts of a drafter it accepts.

It runs on the host that serves, as `python3 -m bench` in the folder it was copied to or as
`python3 -m tools.serving.bench` here, and imports only the standard library (Python 3.8 or newer) and itself.

    python3 -m bench --url http://127.0.0.1:30000 --set gsm8k=gsm8k.jsonl --set mt=mt_bench.jsonl \
        --concurrency 1,8 --max-tokens 256 --baseline plain.json --out speculative.json

The story is the list of files:

    prompts     JSONL of many shapes          -> conversations, texts or token ids
    transport   HTTP without dependencies
    adapters    SGLang and vLLM               -> one way to tokenize, generate, flush and count
    passes      threads that keep N requests in flight, after a warm-up and with an empty prefix cache
    figures     answers                       -> lengths, rates, intervals
    compare     two results                   -> multiplier and step cost, or why they cannot be compared

It starts and stops no server, chooses no settings and judges nothing: the verdict is the doctor's.
"""
