"""Promises about `diagnose`: any text is named, its facts stand in the JSON, and nothing makes it raise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tools.diagnose import GPU_HEAD, GPU_TAIL, diagnose

DATA = Path(__file__).parent / "data"


def gpu(name: str) -> dict[str, object]:
    return diagnose((DATA / "gpus" / f"{name}.txt").read_bytes()).as_json()


KEYS = {
    "what", "engine", "state", "kind", "remedy", "gpus", "processes", "evidence", "also", "notes", "mig_devices",
    "faulted", "usable", "gpu_count", "zombies", "cases", "unknown_rows", "family", "stage", "source",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted(DATA.glob("*/*.[tl]*[tg]")), ids=lambda path: path.stem)
def test_every_text_is_named_and_fits_into_json(path: Path) -> None:
    """Each collected text gets a name, and its diagnosis has all keys and survives JSON."""
    found = diagnose(path.read_bytes(), source=path.name).as_json()
    assert set(found) >= KEYS
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, default=str))
    assert found["what"] != "unknown"
    assert (found["what"] == "server log") == (path.parent.name == "server_logs")


def test_gpu_facts_stand_at_the_top() -> None:
    """What an operator asks of a GPU text is one key away: MIG devices, faulted and usable cards, zombies, counts."""
    mig = gpu("h200-mig-table")
    assert (mig["gpu_count"], mig["mig"], mig["mig_devices"], mig["memory_used_mib"]) == (1, True, 5, 16959)
    reset = gpu("requires-reset-csv")
    assert (reset["usable"], reset["faulted"], reset["kind"]) == ([1], [0], "gpu requires reset")
    assert gpu("zombie-unknown-error")["zombies"] == [31794, 27707, 2918273]
    assert len(gpu("h200-csv-util-flaps")["busy"]) == 2  # type: ignore[arg-type]
    joined = gpu("driver-not-loaded-and-none")
    assert [case["gpu_count"] for case in joined["cases"]] == [0, 0, None, None]  # type: ignore[attr-defined]
    assert (joined["what"], joined["state"], joined["gpu_count"]) == ("nvidia-smi message", "failed", None)


def test_a_process_list_full_of_engines_is_no_server_log() -> None:
    """nvidia-smi naming vLLM's processes stays an nvidia-smi text, and says nothing of a server's state."""
    found = gpu("gb10-table")
    assert (found["what"], found["engine"], found["state"], found["kind"]) == (
        "nvidia-smi table",
        None,
        "unknown",
        None,
    )


def test_a_start_script_prints_a_table_before_the_server_speaks() -> None:
    """A server log that begins with nvidia-smi's table is a server log, and its cards are read as well."""
    table = (DATA / "gpus" / "driver-440-table.txt").read_text()
    log = (DATA / "server_logs" / "vllm-kv-too-small-v0.log").read_text()
    found = diagnose(table + log).as_json()
    assert (found["what"], found["kind"], found["gpu_count"]) == ("server log", "kv cache too small", 2)


def test_kernel_logs() -> None:
    """The kernel's own lines are a kernel log, whether a card or a process is meant."""
    killed = diagnose("[1.0] Out of memory: Killed process 3742074 (python3) total-vm:8kB, anon-rss:1kB").as_json()
    assert (killed["what"], killed["kind"]) == ("kernel log", "killed by OS OOM killer")
    lost = diagnose("NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus.").as_json()
    assert (lost["what"], lost["kind"], lost["faulted"]) == ("kernel log", "gpu fell off the bus", ["00000000:5D:00.0"])


def test_a_report_in_markdown_is_read_inside_its_fences() -> None:
    """Of an issue's text only the quoted log counts, with the line numbers of the whole."""
    log = (DATA / "server_logs" / "vllm-loading-shards.log").read_text()
    report = f"# It fails\n\nI never see Application startup complete, CUDA out of memory?\n\n```log\n{log}```\n"
    found = diagnose(report)
    assert (found.state, found.log.evidence[0][0]) == ("loading", 11)


def test_utf16_from_a_windows_shell() -> None:
    """A log redirected by PowerShell is read as any other."""
    log = (DATA / "server_logs" / "driver-too-old.log").read_text()
    assert diagnose(log.encode("utf-16")).kind == "driver / CUDA mismatch"


def test_weeks_of_samples_are_read_at_both_ends() -> None:
    """Of a very long GPU text head and tail are read, which is said, and the seam invents no card."""
    rows = "".join(f"2026/02/12 15:30:35.110, 00000000:{n:02X}:00.0, 6 %, 20747 MiB\n" for n in range(8))
    text = "timestamp, pci.bus_id, utilization.gpu [%], memory.used [MiB]\n" + rows * (
        2 * (GPU_HEAD + 2 * GPU_TAIL) // len(rows)
    )
    found = diagnose(text)
    assert (found.gpu.gpu_count, found.what) == (8, "nvidia-smi csv")
    assert any("head and tail" in note for note in found.notes)


def test_pieces_and_whole_agree() -> None:
    """A log streamed from a file gives the diagnosis of the log read whole."""
    data = (DATA / "server_logs" / "sgl-kernel-import-abi.log").read_bytes()
    assert diagnose(iter([data[:100], data[100:]])).as_json() == diagnose(data).as_json()


def test_nothing_is_unknown() -> None:
    """An empty text and a shopping list are of no kind, with no number of GPUs."""
    for text in ("", "\n\n", "milk, eggs, 12, bread\n", "# gpu\n"):
        found = diagnose(text).as_json()
        assert (found["what"], found["state"], found["kind"], found["gpu_count"]) == ("unknown", "unknown", None, None)


@given(st.one_of(st.binary(max_size=300), st.text(max_size=300)))
@example(b"\xff\xfe")
@example("\ud800, [N/A]")
@example(b"| 99999999999999999999 NVIDIA On | 00000000:00:00.0 Off | 0 |\n")
def test_it_never_raises(text: bytes | str) -> None:
    """Any bytes and any text give a diagnosis."""
    json.dumps(diagnose(text).as_json())


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-20 10:00:00 [api_server.py:12] vLLM is here",
        "(EngineCore_DP0 pid=77) WARNING 11-20 10:00:00 [x.py:1] vllm",
        "[2026-11-20 10:00:00 TP0] sglang",
        "2026-11-20T10:00:00.123Z stdout F vllm",
        "Nov 20 10:00:00 gpu1 vllm[77]: hello",
        "ERROR: vllm cannot",
        "\x1b[32mINFO\x1b[0m: vllm",
    ],
)
def test_a_line_of_a_log_that_names_an_engine_is_a_server_log(line: str) -> None:
    """A level or a time before its words makes a line a log's, whoever put it there."""
    assert diagnose(f"{line}\n").what == "server log"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("# A page\n\nIt moves a host from vLLM to SGLang.\n", "it names vllm, and no line of it is a log's"),
        ("serve with vllm, please\n", "it names vllm, and no line of it is a log's"),
        ("dear all,\n", "no line of it is a log's"),
        (" \n", "the text is empty"),
    ],
)
def test_prose_that_names_an_engine_is_no_log(text: str, note: str) -> None:
    """What is no log is not called one for the names in it; what is seen instead is told."""
    found = diagnose(text).as_json()
    assert (found["what"], found["engine"], found["state"]) == ("unknown", None, "unknown")
    assert found["notes"] == [note]
