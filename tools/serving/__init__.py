"""Serving engines (vLLM, SGLang): reading their logs, their flags and their metrics."""
