"""The model client: what is an answer, what is a failure, and how long a call is tried again."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent.budget import Ledger, Spent, price
from agent.config import Budget, ModelConfig, Prices, load_config
from agent.model import UNREADABLE, Answer, Model, Request, _client
from agent.model_calls import Caller, Limiter, Patience
from agent.scribe import Scribe
from agent.scripted import ScriptedModel, Turn
from agent.talk import create_chat
from state.db import Database
from state.errors import BudgetSpent, ModelError, UsageError
from state.log import read
from tests.talking import QUICK

HELLO = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def request(**more: Any) -> Request:
    return Request("scripted", [{"type": "text", "text": "be brief"}], [], HELLO, 100, more)


def ask(*turns: Turn, hear: Callable[[str, str], None] | None = None, **config: Any) -> Answer:
    """One attempt against a server that answers with these turns."""

    async def main(server: ScriptedModel) -> Answer:
        model = Model(ModelConfig(name="scripted", base_url=server.base_url, **config))
        try:
            return await model.ask(request(), hear)
        finally:
            await model.close()

    with ScriptedModel(turns) as server:
        return anyio.run(main, server)


def test_an_answer_comes_in_pieces_and_is_whole_in_the_end() -> None:
    """Thinking with its signature, text and tool input arrive as deltas, and are kept as the endpoint sent them."""
    heard: list[tuple[str, str]] = []
    text = "The bench is done, and it is twice as fast."
    tools = [{"name": "job", "input": {"run": "x" * 200, "gpus": 2}}]
    turn = {"think": "Let me see.", "say": text, "tools": tools, "usage": {"output": 77, "cache_read": 5}}
    answer = ask(turn, hear=lambda kind, piece: heard.append((kind, piece)))
    assert [block["type"] for block in answer.content] == ["thinking", "text", "tool_use"]
    assert answer.content[0] == {"type": "thinking", "thinking": "Let me see.", "signature": "sig1"}
    assert answer.text == text
    assert answer.tool_uses[0]["input"] == tools[0]["input"]
    assert answer.stop_reason == "tool_use"
    assert (answer.usage["output"], answer.usage["cache_read"]) == (77, 5)
    assert "".join(piece for kind, piece in heard if kind == "text") == text
    assert len([1 for kind, _ in heard if kind == "text"]) > 1


@pytest.mark.parametrize(
    ("turn", "kind", "retryable"),
    [
        ({"status": 429, "retry_after": 3}, "rate_limit", True),
        ({"status": 529}, "overloaded", True),
        ({"status": 500}, "down", True),
        ({"say": "half of it and then no more of it", "overload": True}, "overloaded", True),
        ({"say": "half of it and then no more of it", "cut": True}, "cut", True),
        ({"say": "half of it and then no more of it", "cut": "clean"}, "cut", True),
        ({"say": "half of it and then no more", "overload": "api_error"}, "down", True),
        ({"say": "half of it and then no more", "overload": "invalid_request_error"}, "bad_request", False),
        ({"status": 400}, "bad_request", False),
        ({"status": 401}, "bad_request", False),
        ({"status": 404}, "bad_request", False),
    ],
)
def test_what_is_no_answer_is_a_failure_of_a_known_kind(turn: Turn, kind: str, retryable: bool) -> None:
    """An error within a stream is what its type says, though its status was 200; one without a stop reason is cut."""
    with pytest.raises(ModelError) as raised:
        ask(turn)
    assert (raised.value.kind, raised.value.retryable) == (kind, retryable)
    assert raised.value.retry_after_s == (3.0 if kind == "rate_limit" else None)


def test_a_silent_endpoint_is_given_up() -> None:
    """Without a byte for `silence_s` the attempt has failed; nothing waits for ever."""
    with pytest.raises(ModelError) as raised:
        ask({"say": "too late", "wait_s": 3}, silence_s=0.2)
    assert raised.value.kind == "timeout"


def test_an_endpoint_that_is_not_there_is_down() -> None:
    """Connection refused: it may come back."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    async def main() -> None:
        await Model(ModelConfig(name="m", base_url=f"http://127.0.0.1:{port}")).ask(request())

    with pytest.raises(ModelError) as raised:
        anyio.run(main)
    assert (raised.value.kind, raised.value.retryable) == ("down", True)


def test_tool_input_that_is_no_json_is_kept_for_the_complaint() -> None:
    """A weak model's broken input is no crash: it is told what it wrote."""
    answer = ask({"tools": [{"name": "job", "input": '{"run": "unfinished'}]})
    assert answer.tool_uses[0]["input"] == {UNREADABLE: '{"run": "unfinished'}


def test_what_the_server_asks_to_wait_is_the_least_and_counts_against_the_whole() -> None:
    """Pauses double up to a bound, half of each diced; the budget is wall clock and not a number of attempts."""
    patience = Patience(total_s=900.0, first_s=1.0, longest_s=60.0, dice=lambda: 1.0)
    down = ModelError("x", kind="down", retryable=True)
    assert [patience.pause(n, down, 0.0) for n in (1, 2, 3, 10)] == [1.0, 2.0, 4.0, 60.0]
    assert Patience(dice=lambda: 0.0).pause(3, down, 0.0) == 2.0
    asked = ModelError("x", kind="rate_limit", retryable=True, retry_after_s=100.0)
    assert patience.pause(1, asked, 0.0) == 100.0
    assert patience.pause(1, asked, 850.0) is None
    assert patience.pause(30, down, 839.0) == 60.0  # an endpoint that is down for 14 minutes is waited out
    assert patience.pause(1, ModelError("x", kind="bad_request"), 0.0) is None


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    db = Database.open(str(tmp_path / "turnout.db"))
    yield db, create_chat(db, title="t")
    db.close()


def call(stored: Any, turns: list[Turn], budget: Budget | None = None, patience: Patience = QUICK) -> Any:
    """A patient call with its log; the answer or the error, the log's kinds, and the ledger."""
    db, session = stored
    ledger = Ledger(budget or Budget(), time.time())

    async def main(server: ScriptedModel) -> Any:
        model = Model(ModelConfig(name="scripted", base_url=server.base_url, prices=Prices(input=1, output=1_000_000)))
        caller = Caller(Scribe(db, session), model, Limiter(), ledger, patience)
        try:
            return await caller.call("c1", "turn", request(), through=1)
        except ModelError as error:
            return error
        finally:
            await model.close()

    with ScriptedModel(turns) as server:
        outcome = anyio.run(main, server)
    log = db.read(lambda conn: [(m.kind, m.payload) for m in read(conn, session)])
    return outcome, [entry for entry in log if entry[0].startswith("model.")], ledger


def test_bad_days_are_waited_out_and_each_attempt_is_in_the_log(stored: Any) -> None:
    """Overload, a rate limit, a cut stream, a broken answer, and then the answer: one call, four failures."""
    turns = [{"status": 529}, {"status": 429, "retry_after": 0.01}, {"say": "xxxxxxxxx", "cut": True}]
    turns += [{"say": "yyyyyyyyy", "overload": True}, {"say": "at last", "usage": {"output": 3}}]
    outcome, log, ledger = call(stored, turns)
    assert outcome.text == "at last"
    assert [kind for kind, _ in log] == ["model.asked", *["model.failed"] * 4, "model.answered"]
    assert [p["kind"] for kind, p in log if kind == "model.failed"] == ["overloaded", "rate_limit", "cut", "overloaded"]
    assert all(p["retry_in_s"] is not None for kind, p in log if kind == "model.failed")
    # The two that had begun to answer are paid for as well: 1 token out each, and 3 for the answer.
    assert ledger.spent.calls == 3
    assert ledger.spent.output == 5
    assert 5.0 <= ledger.spent.cost < 5.1


def test_a_call_that_cannot_be_mended_ends_at_once(stored: Any) -> None:
    """A refused request is not repeated; the log has its failure without a retry."""
    outcome, log, _ = call(stored, [{"status": 400}, {"say": "never asked for"}])
    assert outcome.kind == "bad_request"
    assert [kind for kind, _ in log] == ["model.asked", "model.failed"]
    assert "retry_in_s" not in log[-1][1]


def test_patience_ends(stored: Any) -> None:
    """What stays down is given up when the budget of time is used up, with the last reason."""
    outcome, log, _ = call(stored, [{"status": 529, "again": True}], patience=Patience(0.2, 0.02, 0.05, lambda: 1.0))
    assert outcome.kind == "overloaded"
    assert log[-1][0] == "model.failed"
    assert "retry_in_s" not in log[-1][1]


def test_a_budget_that_is_used_up_stops_before_anything_is_asked(stored: Any) -> None:
    """No intent, no call, no half-done work: the limit is told with its figures."""
    ledger = Ledger(Budget(tokens=100), 0.0, Spent(calls=2, input=90, output=20))
    with pytest.raises(BudgetSpent, match="110 of 100 tokens"):
        ledger.check(1.0)
    ledger.extend()
    ledger.check(1.0)
    with pytest.raises(BudgetSpent, match="of time"):
        Ledger(Budget(hours=1), 0.0).check(3601.0)
    with pytest.raises(BudgetSpent, match="in money"):
        Ledger(Budget(money=0.5), 0.0, Spent(cost=0.5)).check(0.0)
    outcome, log, _ = call(stored, [{"say": "x"}], Budget(hours=1e-9))
    assert isinstance(outcome, BudgetSpent)
    assert log == []


def test_prices_are_per_million_tokens_and_unknown_ones_are_not_zero() -> None:
    """What has no price has no cost, which is something else than to be free."""
    prices = Prices(input=2, output=10, cache_read=0.2, cache_write=2.5)
    usage = {"input": 1_000_000, "output": 500_000, "cache_read": 1_000_000, "cache_write": 100_000}
    assert price(usage, prices) == pytest.approx(2 + 5 + 0.2 + 0.25)
    assert price(usage, None) is None
    assert Spent().plus(usage, None).unpriced == 1


def test_all_calls_rest_when_one_is_told_to(stored: Any) -> None:
    """Twenty subagents do not run into the same rate limit one after the other: they share its pause."""
    db, session = stored

    async def main(server: ScriptedModel) -> None:
        limiter, model = Limiter(), Model(ModelConfig(name="scripted", base_url=server.base_url))
        caller = Caller(Scribe(db, session), model, limiter, Ledger(), Patience(20.0, 0.01, 0.02))
        answered = []
        async with anyio.create_task_group() as group:

            async def one(number: int) -> None:
                answered.append(await caller.model.ask(request()))

            await caller.call("c1", "turn", request(), through=1)
            for number in range(5):
                group.start_soon(one, number)
        await model.close()
        assert len(answered) == 5

    with ScriptedModel([{"status": 429, "retry_after": 0.3}, {"say": "yes", "again": True}]) as server:
        anyio.run(main, server)
        gaps = [later - server.arrivals[0] for later in server.arrivals[1:]]
    assert min(gaps) >= 0.3


def test_ids_of_tool_calls_are_distinct_also_where_the_engine_s_are_not(stored: Any) -> None:
    """An engine that counts its calls from nought in each answer does not make two calls one."""
    turns = [{"tools": [{"name": "a", "id": "call_0"}, {"name": "b", "id": "call_0"}]}]
    outcome, log, _ = call(stored, turns)
    assert [block["id"] for block in outcome.tool_uses] == ["toolu_c1_0", "toolu_c1_1"]
    assert log[-1][1]["content"] == outcome.content


def test_the_clients_of_other_clouds_are_the_sdk_s_own() -> None:
    """Bedrock and Vertex want their own region and credentials, and nothing of ours."""
    bedrock = _client(ModelConfig(provider="bedrock", region="eu-central-1", api_key="key"))
    assert type(bedrock).__name__ == "AsyncAnthropicBedrock"
    vertex = _client(ModelConfig(provider="vertex", region="europe-west1", project="p"))
    assert type(vertex).__name__ == "AsyncAnthropicVertex"
    assert bedrock.max_retries == vertex.max_retries == 0


def test_configuration_comes_from_file_and_environment(tmp_path: Path) -> None:
    """The environment wins, prices of known models are known, and a wrong key is named with its file."""
    path = tmp_path / "config.toml"
    assert load_config(path, {}).model is None
    path.write_text('[model]\nname = "claude-sonnet-5-5"\n[budget]\nmoney = 5\n[mcp.docs]\ncommand = ["d"]\n')
    config = load_config(path, {"ANTHROPIC_BASE_URL": "http://gpu1:30000"})
    assert config.model is not None
    assert (config.model.name, config.model.base_url) == ("claude-sonnet-5-5", "http://gpu1:30000")
    assert config.model.price is not None
    assert not config.model.searches
    assert config.budget.money == 5
    assert load_config(tmp_path / "none", {"ANTHROPIC_API_KEY": "k"}).model is not None
    path.write_text("[model]\nnaem = 3\n")
    with pytest.raises(UsageError, match=r"config\.toml`: `model\.naem`"):
        load_config(path, {})
    for section in ('[model]\nbase_url = "gpu1:30000"\n', '[mcp.docs]\nurl = "gpu1:30000"\n'):
        path.write_text(section)
        with pytest.raises(UsageError, match=r"config\.toml`: `\w+\..*url`: `gpu1:30000` is no URL"):
            load_config(path, {})
    with pytest.raises(UsageError, match=r"`ANTHROPIC_BASE_URL`: `foo` is no URL: write it like `http://"):
        load_config(tmp_path / "none", {"ANTHROPIC_BASE_URL": "foo"})
    path.write_text("[model\n")
    with pytest.raises(UsageError, match="cannot read the configuration"):
        load_config(path, {})
