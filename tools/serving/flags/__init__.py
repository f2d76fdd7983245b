"""From a vLLM command, script, unit or manifest to SGLang's, with every flag accounted for: `translate(text)`."""

from __future__ import annotations

from tools.serving.flags.report import Entry, Translation
from tools.serving.flags.table import Table, from_json, load
from tools.serving.flags.translate import translate

__all__ = ["Entry", "Table", "Translation", "from_json", "load", "translate"]
