"""The page for operators names what is there: its settings, its presets, its steps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("torch")

from playbooks.eagle3.payload.config import load_config

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "eagle3.md").read_text(encoding="utf-8")
PLAYBOOK = yaml.safe_load((ROOT / "playbooks" / "eagle3" / "playbook.yaml").read_text(encoding="utf-8"))
SECTIONS = "data|compose|generate|extract|draft|train|evaluate"


def test_every_setting_on_the_page_exists() -> None:
    """Each dotted name of the page is a key of the configuration."""
    config = load_config("smoke")
    named = set(re.findall(rf"\b({SECTIONS})\.([a-z_]+)\b", PAGE)) - {("draft", "md")}
    assert len(named) > 12
    missing = [f"{table}.{key}" for table, key in named if not hasattr(getattr(config, table), key)]
    assert missing == []


def test_every_preset_and_step_is_on_the_page() -> None:
    """The tables list all presets and all steps of the playbook, but for the parts of a measurement."""
    for preset in (ROOT / "playbooks" / "eagle3" / "payload").glob("*.toml"):
        assert f"| `{preset.stem}` |" in PAGE
    for step in PLAYBOOK["steps"]:
        name = step["id"]
        if not name.startswith(("plain_", "drafted_")) and name != "learned":
            assert f"`{name}`" in PAGE, name


def test_every_parameter_on_the_page_exists() -> None:
    """What the page sets with `--set` is a parameter of the playbook."""
    names = set(re.findall(r"--set ([a-z_]+)=", PAGE))
    assert names <= set(PLAYBOOK["params"])
