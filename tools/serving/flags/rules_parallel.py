"""Rules for several GPUs and several machines: what a rank is differs, so the numbers are computed together."""

from __future__ import annotations

import re
from math import ceil

from tools.serving.flags.items import Item
from tools.serving.flags.work import Work, finish, rule, whole

GPUS_OF_A_HOST = 8
_ATTENTION_DP = re.compile(r"deepseek[-_.]?(?:v[234]|r1|coder-v2)|kimi[-_.]?k[23]|glm-?5|longcat", re.IGNORECASE)


@rule("tensor-parallel-size")
def tensor(work: Work, item: Item) -> None:
    """GPUs of a replica; with DP attention the whole world."""
    value, ranks = whole(work.resolve(item.first)), work.number("data-parallel-size", 1)
    if work.dp_attention and value is not None and ranks > 1:
        why = f"{value} a rank x {ranks} ranks = {value * ranks}: with DP attention it is the whole world"
        work.copy(item, "--tp-size", str(value * ranks), kind="changed", why=why)
    else:
        work.copy(item, "--tp-size")


@rule("data-parallel-size")
def data(work: Work, item: Item) -> None:
    """Replicas, or with DP attention parts of the one world."""
    ranks = whole(work.resolve(item.first))
    if not work.dp_attention or ranks is None or ranks < 2:
        work.copy(
            item,
            "--dp-size",
            kind="same" if ranks in (None, 1) else "changed",
            why="" if ranks == 1 else "full replicas",
        )
        return
    attention = work.emit("--enable-dp-attention")
    if work.item("tensor-parallel-size") is None:
        work.emit("--tp-size", str(ranks))
    size = work.number("tensor-parallel-size", 1) * ranks
    why = f"all but the attention is shared by all ranks: one world of tp {size}, with {attention}"
    work.copy(item, "--dp-size", kind="changed", why=why)


@finish(10)
def experts(work: Work) -> None:
    """vLLM's switch is a number in SGLang: the GPUs that share the experts."""
    item = work.item("enable-expert-parallel")
    if item is None:
        return
    size = whole("".join(work.flags.get("--tp-size", ["1"])))
    if item.negative:
        work.say(item, "same", "", "off in SGLang unless a size is given")
    elif size is None:
        work.say(item, "changed", "", "--ep-size, as many as --tp-size: set by hand", cost=5)
    else:
        work.copy(item, "--ep-size", str(size), kind="changed", why=f"a number in SGLang: all {size} GPUs of the world")


@rule("enable-expert-parallel", "distributed-executor-backend", "worker-use-ray", "nnodes", "node-rank")
@rule("master-addr", "master-port", "data-parallel-size-local", "data-parallel-start-rank", "data-parallel-rank")
@rule("data-parallel-address", "data-parallel-rpc-port", "data-parallel-backend", "headless")
def together(work: Work, item: Item) -> None:
    """Said at the end, when the size of the world is known."""


@finish(30)
def machines(work: Work) -> None:
    """Which machine this is, how many there are, where the first one listens."""
    world = _world(work)
    nodes = _nodes(work, world)
    rank = _rank(work, nodes)
    address = _address(work, nodes)
    if nodes > 1:
        work.emit("--nnodes", str(nodes))
        if "--node-rank" not in work.flags:
            work.emit("--node-rank", rank)
        work.emit("--dist-init-addr", address)
        if work.item("nnodes") is None and not address.startswith("$"):
            why = (
                f"{world} GPUs are {nodes} machines of {GPUS_OF_A_HOST}: SGLang is started on each, with its own "
                "--node-rank and the first one's address (if they are all in one machine, leave the three flags out)"
            )
            said = f"--nnodes {nodes} --node-rank {rank} --dist-init-addr {address}"
            work.say("more than one machine", "changed", said, why, cost=7).given = False
    _executor(work, world)


def _world(work: Work) -> int:
    sizes = [whole(" ".join(work.flags.get(flag, ["1"]))) or 1 for flag in ("--tp-size", "--pp-size")]
    replicas = 1 if work.dp_attention else whole(" ".join(work.flags.get("--dp-size", ["1"]))) or 1
    return sizes[0] * sizes[1] * replicas


def _nodes(work: Work, world: int) -> int:
    item, local = work.item("nnodes"), work.item("data-parallel-size-local")
    if item is not None:
        nodes = whole(work.resolve(item.first)) or 1
        work.say(item, "same", f"--nnodes {nodes}")
    elif local is not None and (whole(work.resolve(local.first)) or 0) > 0:
        each = whole(work.resolve(local.first)) or 1
        nodes = ceil(work.number("data-parallel-size", 1) / each)
    else:
        nodes = ceil(world / GPUS_OF_A_HOST) if world > GPUS_OF_A_HOST else 1
    if local is not None:
        work.say(
            local, "changed", f"--nnodes {nodes}" if nodes > 1 else "", f"ranks / {local.first} = {nodes} machines"
        )
    return nodes


def _rank(work: Work, nodes: int) -> str:
    rank = "0"
    item, start = work.item("node-rank"), work.item("data-parallel-start-rank")
    headless, own = work.item("headless"), work.item("data-parallel-rank")
    if item is not None:
        work.copy(item, "--node-rank")
    if start is not None:
        local = work.number("data-parallel-size-local", 1) or 1
        number = (whole(work.resolve(start.first)) or 0) // local
        rank = str(number)
        work.say(start, "changed", f"--node-rank {number}", f"first rank {start.first} / {local} a machine = {number}")
    if headless is not None:
        why = "a machine with a rank above 0 answers nobody in SGLang either"
        work.say(headless, "same", "", why)
    if own is not None:
        work.say(own, "none", "", "SGLang numbers its ranks itself", cost=4)
    return rank


def _address(work: Work, nodes: int) -> str:
    """HOST:PORT of the first machine, `HEAD:5000` where the input does not say."""
    names = ("master-addr", "data-parallel-address"), ("master-port", "data-parallel-rpc-port")
    found = [next((item for name in pair if (item := work.item(name)) is not None), None) for pair in names]
    host, port = (item.first if item is not None else "" for item in found)
    address = f"{host or 'HEAD'}:{port or '5000'}"
    for name in (*names[0], *names[1]):
        item = work.item(name)
        if item is not None:
            said = f"--dist-init-addr {address}" if nodes > 1 else ""
            work.say(item, "renamed", said, "" if nodes > 1 else "one machine needs no address")
    backend = work.item("data-parallel-backend")
    if backend is not None:
        work.say(backend, "none", "", "SGLang starts its ranks itself", cost=2)
    return address


def _executor(work: Work, world: int) -> None:
    item = work.item("distributed-executor-backend") or work.item("worker-use-ray")
    if item is None:
        return
    if item.name == "worker-use-ray" or work.resolve(item.first) == "ray":
        work.copy(item, "--use-ray", kind="changed", why="Ray's actors; without Ray start it on each machine")
    else:
        work.say(item, "same", "", "SGLang has processes of its own")


def decide(work: Work) -> None:
    """Before the rules: is data parallelism one of attention alone, with the rest of the model shared by all ranks?

    It is with expert parallelism, for models of which only the attention is worth it, and over several machines, where
    SGLang has nothing else.
    """
    ranks = work.number("data-parallel-size", 1)
    expert = work.item("enable-expert-parallel")
    local = work.number("data-parallel-size-local", ranks)
    shared = expert is not None and not expert.negative
    sizes = [work.number(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline")]
    far = 0 < local < ranks or sizes[0] * sizes[1] * ranks > GPUS_OF_A_HOST
    work.dp_attention = ranks > 1 and (shared or far or bool(_ATTENTION_DP.search(work.model)))
