"""Train a one-layer EAGLE-3 drafter for a target model, in plain torch.

The story is the list of files, in the order in which they run:

    fetch      the target, as a Hugging Face checkpoint          -> target/
    generate   its own answers to a file of prompts              -> answers.jsonl
    extract    its hidden states over those answers              -> shards/
    train      the drafter, by training-time test                -> drafter/
    baseline   what a drafter without training is worth          -> results/baseline.json
    evaluate   what this one is worth, predicted exactly         -> results/evaluate.json
    export     a folder that SGLang and vLLM load                -> drafter/export/
    report     pictures and a page for someone who was not there -> report/

Each is run as `python -m eagle3.<step> --preset smoke [--set train.steps=200]` in one work directory that they share;
run again, each goes on from what is there or does nothing. `config` and `runtime` are what the steps have in common,
`data`, `shards`, `model`, `objective` and `checkpoint` are what they are made of, and `speculate` is the slow and
obvious speculative decoding that `evaluate` is held against.

It imports only itself, torch, transformers, safetensors, numpy, matplotlib (in `report`) and the standard library.
"""

import os

# On a host whose cores are shared, threads that spin while they wait cost the others and themselves ten times over. The
# OpenMP runtime reads this when torch loads it, so it has to stand before every other import.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
