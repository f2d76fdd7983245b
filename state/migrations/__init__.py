"""Changes of the schema, in order. `run.py` applies them; each file in `versions` is one step."""
