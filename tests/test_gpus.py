"""Promises about GPU texts: what is known is read, what is unknown stays unknown, broken cards are never free."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.gpu_model import Gpu
from tools.gpus import parse_compute_apps, parse_query_gpu, parse_table, read

DATA = Path(__file__).parent / "data" / "gpus"


def case(name: str) -> str:
    return (DATA / f"{name}.txt").read_text()


def test_load_that_flaps_is_busy_over_the_samples() -> None:
    """Two cards that work in turns are both busy, told apart by bus id, though each single sample shows one at rest."""
    reading = read(case("h200-csv-util-flaps"))
    assert reading.gpu_count == 2
    assert [gpu.samples for gpu in reading.gpus] == [5, 4]
    assert all(gpu.busy and gpu.idle is False for gpu in reading.gpus)
    assert [gpu.utilization for gpu in reading.gpus] == [3, 0]


def test_mig_table() -> None:
    """Under MIG the load is unknown, and compute instances that share a pool are not added up twice."""
    reading = read(case("h200-mig-table"))
    (gpu,) = reading.gpus
    assert (reading.gpu_count, gpu.mig, len(gpu.mig_devices)) == (1, True, 5)
    assert (gpu.utilization, gpu.memory_used_mib, gpu.mig_memory_used_mib) == (None, 16959, 16925 + 17 + 9 + 9)
    assert (gpu.driver, gpu.cuda) == ("590.48.01", "13.1")
    assert [(p.pid, p.used_mib, p.gi, p.ci) for p in reading.processes[:1]] == [(12249, 2194, 2, 1)]


def test_rows_of_two_hosts_with_the_same_index_are_two_cards() -> None:
    """An index that repeats with other settings is another host's card, and `[N/A]` is neither an error nor 0."""
    reading = read(case("h100-csv-mig-and-plain"))
    assert [gpu.utilization for gpu in reading.gpus] == [None, 100]
    assert [gpu.memory_used_mib for gpu in reading.gpus] == [11125, 19818]


def test_process_rows_that_hide_what_they_are() -> None:
    """A process name keeps its commas, and rows that name no process are counted, not listed."""
    reading = read(case("compute-apps-insufficient-permissions"))
    assert [(p.pid, p.used_mib) for p in reading.processes] == [(4242, 512), (4243, None)]
    assert reading.processes[0].name == "/opt/app/run,fast --name=a, b"
    assert reading.processes[0].gpu_uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert reading.unknown_rows == 2
    assert reading.gpu_count is None


def test_unified_memory_has_no_total_but_processes_have_theirs() -> None:
    """A card without memory figures still lists what its processes hold, and that makes it busy."""
    reading = read(case("gb10-csv"))
    (gpu,) = reading.gpus
    assert (gpu.memory_total_mib, gpu.memory_used_mib, gpu.memory_free_mib) == (None, None, None)
    assert [(p.pid, p.used_mib) for p in reading.processes] == [(114687, 19135)]
    assert gpu.busy is True


def test_processes_that_outlived_themselves() -> None:
    """Nameless holders and a pid that `kill` does not know are suspected zombies; their neighbours are not."""
    reading = read(case("zombie-unknown-error"))
    assert [p.pid for p in reading.processes if p.zombie] == [31794, 27707, 2918273]
    assert reading.kind == "gpu memory held by a dead process"


def test_a_card_that_wants_a_reset_is_not_free() -> None:
    """A broken card that reads 0 MiB used is faulted, and its 0 is no measurement."""
    reading = read(case("requires-reset-csv"))
    assert (reading.usable, reading.faulted, reading.kind) == ([1], [0], "gpu requires reset")
    assert reading.gpus[0].memory_used_mib is None


def test_four_ways_to_have_no_answer() -> None:
    """No driver and no card mean 0 cards; a missing program and a lost card mean that the number is not known."""
    reading = read(case("driver-not-loaded-and-none"))
    assert [c.gpu_count for c in reading.cases] == [0, 0, None, None]
    assert len({c.kind for c in reading.cases}) == 4
    assert reading.gpu_count is None
    singles = [read(piece) for piece in case("driver-not-loaded-and-none").split("---\n")]
    assert [one.gpu_count for one in singles] == [0, 0, None, None]
    assert all(one.what == "nvidia-smi message" and one.remedy for one in singles)


@pytest.mark.parametrize(
    "sentence, kind",
    [
        ("Failed to initialize NVML: Driver/library version mismatch", "driver / library mismatch"),
        ("Failed to initialize NVML: Unknown Error", "container lost the gpus"),
        ("sh: 1: nvidia-smi: not found", "nvidia-smi not found"),
        ("zsh: command not found: nvidia-smi", "nvidia-smi not found"),
        ('exec: "nvidia-smi": executable file not found in $PATH', "nvidia-smi not found"),
        ("GPU access blocked by the operating system", "permission denied"),
        ('Field "power.draw.instant" is not a valid field to query.', "unknown query field"),
        ("NVRM: Xid (PCI:0000:5d:00): 79, pid=1, GPU has fallen off the bus.", "gpu fell off the bus"),
        ("NVRM: Xid (PCI:0000:5d:00): 95, pid=1, Uncontained ECC error", "gpu fault (Xid 95)"),
    ],
)
def test_sentences(sentence: str, kind: str) -> None:
    """Each sentence of the driver keeps its own meaning."""
    assert read(sentence).kind == kind


def test_a_program_fault_is_no_card_fault() -> None:
    """Xid 31 is a program's bad address: no card is taken out of use for it."""
    assert read("NVRM: Xid (PCI:0000:5d:00): 31, pid=812, name=python").what == "unknown"


def test_a_lost_card_is_named_by_its_bus_id() -> None:
    """The card without a handle appears as faulted, under nvidia-smi's way of writing its bus id."""
    reading = read("Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system")
    assert [(gpu.bus_id, gpu.faulted) for gpu in reading.gpus] == [("00000000:02:00.0", True)]
    assert reading.gpu_count is None


def test_tables_before_mig() -> None:
    """A driver of 2020 draws other columns and lists processes without instances: all of it is read."""
    reading = read(case("driver-440-table"))
    assert [(g.index, g.memory_used_mib, g.processes, g.mig) for g in reading.gpus] == [
        (0, 15830, 1, None),
        (1, 0, 0, None),
    ]
    assert (reading.processes[0].name, reading.processes[0].used_mib) == ("python3", 15819)
    # A single look does not prove that a card may be taken.
    assert (reading.gpus[1].busy, reading.gpus[1].idle) == (False, None)


def test_broken_cards_in_a_table() -> None:
    """`ERR!` in fan, temperature or state, and a lost card, are faults; the healthy card among them stays usable."""
    reading = read(case("fault-table"))
    assert (reading.usable, reading.faulted) == ([1], [0, 2, 13])
    assert reading.gpus[2].fault == "GPU is lost"
    # Indices reach 13 and four cards are listed: how many there are is not known.
    assert reading.gpu_count is None


@pytest.mark.parametrize("name", ["gb10-table", "jetson-table", "wsl-table", "mig-container-table"])
def test_tables_that_leave_things_out(name: str) -> None:
    """`Not Supported`, `N/A` and WSL's `ERR!` for the load are unknown values of a healthy card."""
    reading = read(case(name))
    (gpu,) = reading.gpus
    assert (reading.gpu_count, gpu.faulted) == (1, False)
    assert gpu.memory_used_mib in (None, 161)
    assert gpu.utilization in (None, 0)


def test_the_last_of_many_tables_decides_and_all_are_samples() -> None:
    """A table drawn again and again shows one card, its latest figures, and only processes that are still there."""
    first = case("driver-440-table")
    later = first.replace("|      0%", "|     97%").replace("23119", "24000")
    reading = read(first + later)
    assert [(g.samples, g.utilization) for g in reading.gpus] == [(2, 97), (2, 97)]
    assert [p.pid for p in reading.processes] == [24000]
    assert (parse_table(first + later).gpus, parse_table(first + later).processes) == (
        list(reading.gpus),
        list(reading.processes),
    )


def test_idle_needs_memory_over_samples() -> None:
    """A card is called idle only when several samples show its memory empty."""
    rows = "index, memory.used [MiB], utilization.gpu [%]\n" + "0, 4 MiB, 0 %\n1, 70000 MiB, 0 %\n" * 2
    assert [gpu.idle for gpu in read(rows).gpus] == [True, False]
    assert [gpu.idle for gpu in parse_query_gpu("index, utilization.gpu [%]\n" + "0, 0 %\n" * 3)] == [None]


def test_a_cut_stream_does_not_invent_numbers() -> None:
    """The last row of a stream that was cut gives only its whole cells."""
    head = "index, temperature.gpu, memory.used [MiB]\n0, 56, 20747 MiB\n"
    assert parse_query_gpu(head + "1, 5")[1].temperature_c is None
    assert parse_query_gpu(head + "1, 56, 207 Mi")[1].memory_used_mib is None


def test_columns_from_the_command_and_from_the_caller() -> None:
    """Rows without header and units are read by the command line above them, or by the caller's columns."""
    rows = "0, NVIDIA H200, 143771, 12, 0\n1, NVIDIA H200, 143771, [N/A], [N/A]\n"
    columns = "index,name,memory.total,memory.used,utilization.gpu"
    by_command = read(f"$ nvidia-smi --query-gpu={columns} --format=csv,noheader,nounits\n{rows}").gpus
    assert list(by_command) == parse_query_gpu(rows, columns.split(","))
    assert [(g.memory_used_mib, g.utilization) for g in by_command] == [(12, 0), (None, None)]


def test_unnamed_memory_columns_are_not_guessed() -> None:
    """Without names, used and free look alike: the memory stays unknown and the reading says why."""
    reading = read("0, NVIDIA H200, 143771 MiB, 12 MiB, 7 %\n")
    (gpu,) = reading.gpus
    assert (gpu.index, gpu.name, gpu.utilization, gpu.memory_used_mib) == (0, "NVIDIA H200", 7, None)
    assert any("no names" in note for note in reading.notes)


def test_compute_apps_for_the_probe() -> None:
    """The live probe gets every row, also those that hide their process."""
    rows = parse_compute_apps(
        "GPU-00000000-0000-0000-0000-000000000001, 7, a, b, 5\nGPU-00000000-0, [N/A], [N/A], [N/A]\n"
    )
    assert [(p.pid, p.name, p.used_mib) for p in rows] == [(7, "a, b", 5), (None, None, None)]


def test_hosts_side_by_side() -> None:
    """Behind `host: ` prefixes or under headings, equal indices of two hosts are two cards."""
    rows = ["index, memory.used [MiB]", "0, 10 MiB"]
    prefixed = "\n".join(f"{host}: {row}" for host in ("gpu1", "gpu2") for row in rows)
    headed = "\n".join([line for host in ("gpu1", "gpu2") for line in (f"=== {host} ===", *rows)])
    for text in (prefixed, headed):
        assert [(gpu.host, gpu.index) for gpu in read(text).gpus] == [("gpu1", 0), ("gpu2", 0)]


def test_lists_and_monitors() -> None:
    """`-L`, `pmon`, `dmon` and gpustat lines are read too; a `-` is no number and no process."""
    listed = read(
        "GPU 0: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-00000000000a)\n"
        "  MIG 3g.71gb     Device  0: (UUID: MIG-00000000-0000-0000-0000-00000000000b)\n"
        "GPU 1: NVIDIA H200 (UUID: GPU-00000000-0000-0000-0000-00000000000c)\n"
    )
    assert (listed.gpu_count, [len(gpu.mig_devices) for gpu in listed.gpus]) == (2, [1, 0])
    monitored = read(
        "# gpu         pid   type     sm    mem    enc    dec    command\n"
        "# Idx           #    C/G      %      %      %      %    name\n"
        "    0          -     -      -      -      -      -    -\n"
        "    1      11345     C     99     10      -      -    gpu_burn\n"
    )
    assert [(p.pid, p.gpu_index) for p in monitored.processes] == [(11345, 1)]
    dmon = read("# gpu    pwr  gtemp  mtemp     sm    mem\n# Idx W C C % %\n    0    631     63      -    100     10\n")
    assert [(g.utilization, g.power_w, g.temperature_c) for g in dmon.gpus] == [(100, 631.0, 63)]
    stat = read(
        "[1] NVIDIA A100 80GB PCIe | 62°C,  99 %,  250 / 300 W | 70123 / 81920 MB | alice:python/4242(70100M)\n"
    )
    assert (stat.gpus[0].memory_used_mib, stat.processes[0].pid, stat.gpu_count) == (70123, 4242, None)


def test_query_text() -> None:
    """`nvidia-smi -q` gives cards, processes and what the driver recommends for them."""
    reading = read(case("query-text"))
    assert [(g.bus_id, g.memory_used_mib, g.utilization, g.driver) for g in reading.gpus] == [
        ("00000000:5D:00.0", 19818, 100, "590.48.01"),
        ("00000000:9B:00.0", 1, 0, "590.48.01"),
    ]
    assert [(p.pid, p.name, p.gpu_bus_id) for p in reading.processes] == [(11345, "./gpu_burn", "00000000:5D:00.0")]
    assert reading.faulted == ["00000000:9B:00.0"]


def test_the_same_process_in_two_texts_is_one() -> None:
    """A table names the card by index and a CSV by UUID; joined by `-L` their process rows are one process."""
    uuid = "GPU-00000000-0000-0000-0000-00000000000a"
    table = case("driver-440-table")
    both = f"{table}\nGPU 0: Tesla V100-SXM2-16GB (UUID: {uuid})\n{uuid}, 23119, python3, 15819 MiB\n"
    reading = read(both)
    assert [p.pid for p in reading.processes] == [23119]
    assert (reading.gpus[0].uuid, reading.gpus[0].samples) == (uuid, 1)


def test_foreign_tools_are_not_guessed() -> None:
    """rocm-smi output is named as not read."""
    reading = read(
        "======================= ROCm System Management Interface =======================\nGPU  Temp  AvgPwr\n"
    )
    assert (reading.what, reading.gpu_count, len(reading.notes)) == ("unknown", None, 1)


WORDS = ("[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "[GPU is lost]", "ERR!", "", "-")


@given(st.lists(st.sampled_from(WORDS), min_size=7, max_size=7))
def test_unknown_never_becomes_a_number(words: list[str]) -> None:
    """Whatever word stands for a value that is not known, no reading turns it into a number."""
    header = (
        "uuid, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], temperature.gpu, "
        "power.draw [W]"
    )
    row = ", ".join(["GPU-00000000-0000-0000-0000-00000000000a", *words[1:]])
    (gpu,) = parse_query_gpu(f"{header}\n{row}\n")
    values = (
        gpu.memory_total_mib,
        gpu.memory_used_mib,
        gpu.memory_free_mib,
        gpu.utilization,
        gpu.temperature_c,
        gpu.power_w,
    )
    assert values == (None,) * 6
    if any(word in ("[GPU requires reset]", "[GPU is lost]") for word in words[1:]):
        assert gpu.faulted


PIECES = re.split(r"(?<=[|,\n])", "".join(path.read_text() for path in sorted(DATA.glob("*.txt"))))


@given(st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=20)), max_size=60))
def test_no_text_breaks_the_readers(pieces: list[str]) -> None:
    """Any text, also one shuffled from real cells, is read without an error, and counts stay honest."""
    text = "".join(pieces)
    reading = read(text)
    assert reading.gpu_count in (None, 0, len(reading.gpus))
    assert len(reading.usable) + len(reading.faulted) == len(reading.gpus)
    parse_table(text), parse_query_gpu(text), parse_compute_apps(text)


def test_a_faulted_card_is_never_idle() -> None:
    """However empty it looks."""
    assert Gpu(index=0, memory_used_mib=0, samples=9, faulted=True, fault="x").idle is False
