"""The way back from SGLang to vLLM: data, loaded from its file and never imported."""
