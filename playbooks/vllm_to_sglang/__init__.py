"""The move from vLLM to SGLang: data and a payload, loaded from their files and never imported."""
