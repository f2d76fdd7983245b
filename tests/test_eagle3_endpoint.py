"""Answers from a server: the same as in this process, many at a time, kept when the server goes away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from playbooks.eagle3.payload import endpoint  # noqa: E402
from playbooks.eagle3.payload.compose import compose, flaw, open_turn  # noqa: E402
from playbooks.eagle3.payload.config import Compose, load_config  # noqa: E402
from playbooks.eagle3.payload.endpoint import Endpoints, Request  # noqa: E402
from playbooks.eagle3.payload.errors import StepError  # noqa: E402
from playbooks.eagle3.payload.generate import generate, read_rows  # noqa: E402
from playbooks.eagle3.payload.local import Local  # noqa: E402
from playbooks.eagle3.payload.runtime import Workdir  # noqa: E402
from tests.eagle3_helpers import STOP, save_tiny_target, tiny_model, tiny_tokenizer  # noqa: E402
from tests.eagle3_host import SETTINGS  # noqa: E402

pytestmark = pytest.mark.train


class Served(ThreadingHTTPServer):
    """The tiny target behind HTTP, in the shape of SGLang or of an OpenAI server."""

    daemon_threads = True
    # A burst of connections waits to be accepted; the default of five refuses the rest.
    request_queue_size = 128

    def __init__(self, api: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.api, self.asked, self.fail, self.token_ids = api, 0, 0, True
        self.limit = 10**9
        self.local, self.lock = Local(tiny_model(), 1), threading.Lock()
        self.tokenizer = tiny_tokenizer()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def say(self, ids: list[int], new: int, temperature: float) -> tuple[list[int], bool]:
        with self.lock:
            ((_, answer),) = self.local.answer([Request(ids, new, [STOP], temperature)])
        return answer.ids, answer.stopped


class Handler(BaseHTTPRequestHandler):
    server: Served
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        known = {"sglang": "/model_info", "openai": "/v1/models"}[self.server.api]
        self._reply(200 if self.path == known else 404, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        with server.lock:
            server.asked += 1
            refused = server.asked > server.limit
            failing, server.fail = server.fail > 0, server.fail - 1
        if refused or failing:
            self._reply(400 if refused else 503, {"error": "no"})
        elif server.api == "sglang":
            params = body["sampling_params"]
            ids, stopped = server.say(body["input_ids"], params["max_new_tokens"], params["temperature"])
            text = server.tokenizer.decode(ids, skip_special_tokens=True)
            reason = {"type": "stop", "matched": STOP} if stopped else {"type": "length"}
            self._reply(200, {"output_ids": ids, "text": text, "meta_info": {"finish_reason": reason}})
        else:
            ids, stopped = server.say(body["prompt"], body["max_tokens"], body["temperature"])
            told = ids[:-1] if stopped else ids  # such servers leave the stop token out and name it
            choice = {"finish_reason": "stop" if stopped else "length", "stop_reason": STOP if stopped else None}
            choice |= {"token_ids": told} if server.token_ids else {}
            self._reply(200, {"choices": [{**choice, "text": server.tokenizer.decode(told)}]})

    def _reply(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture(params=["sglang", "openai"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server that runs for one test."""
    server = Served(request.param)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def work(tmp_path: Path) -> Workdir:
    work = Workdir(tmp_path / "work")
    work.root.mkdir()
    work.target.symlink_to(save_tiny_target(tmp_path / "tiny"))
    return work


def configured(work: Workdir, *more: str):
    return load_config("smoke", [*SETTINGS, f"target={work.target}", "generate.concurrency=8", *more])


def test_a_server_gives_the_answers_that_transformers_gives(served: Served, work: Workdir) -> None:
    """Token for token, stop tokens included, whichever of the two APIs the server speaks."""
    generate(configured(work), work)
    wanted = {row["id"]: (row["answer_ids"], row["finish"]) for row in read_rows(work.answers)}
    work.answers.unlink()
    result = generate(configured(work, f"generate.endpoint={served.url}"), work)
    assert {row["id"]: (row["answer_ids"], row["finish"]) for row in read_rows(work.answers)} == wanted
    assert result["answers"] == served.asked == 18


def test_what_was_answered_before_the_server_failed_is_kept(served: Served, work: Workdir) -> None:
    """After an error half way through, the next run asks only for the rest."""
    served.limit = 9
    config = configured(work, f"generate.endpoint={served.url}", "generate.concurrency=1")
    with pytest.raises(StepError, match="refused a request"):
        generate(config, work)
    kept = len(read_rows(work.answers))
    assert 0 < kept <= 9
    served.limit, served.asked = 10**9, 0
    assert generate(config, work)["kept_from_before"] == kept
    assert served.asked == 18 - kept


def test_a_server_that_is_busy_is_asked_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A status of 503 is no answer: the request is repeated after a pause, and one that stays is an error."""
    monkeypatch.setattr(endpoint.time, "sleep", lambda seconds: None)
    served.fail = 3
    request = Request([1, 9, 17], 4, [STOP])
    ((number, answer),) = Endpoints([served.url], 1).answer([request])
    assert (number, len(answer.ids)) == (0, 4)
    served.fail = 100
    with pytest.raises(StepError, match="status 503"):
        list(Endpoints([served.url], 1).answer([request]))


def test_a_server_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens after some tries, or the address is none; both name the server."""
    monkeypatch.setattr(endpoint.time, "sleep", lambda seconds: None)
    with pytest.raises(StepError, match=r"`http://127.0.0.1:9` does not answer after 5 tries"):
        Endpoints(["http://127.0.0.1:9"], 1)
    with pytest.raises(StepError, match=r"`generate.endpoint` is `ftp://x`"):
        Endpoints(["ftp://x"], 1)


def test_a_server_without_token_ids_is_refused(work: Workdir) -> None:
    """Text that is tokenised again is another text: such a server is not used."""
    server = Served("openai")
    server.token_ids = False
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with pytest.raises(StepError, match="without token ids"):
            generate(configured(work, f"generate.endpoint={server.url}"), work)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_prompts_that_the_target_writes_are_kept_once_and_go_on_after_a_stop(served: Served, work: Workdir) -> None:
    """Composed prompts are different from each other; a second run keeps them and writes only what lacks."""
    more = ["compose.min_words=2", "compose.max_new_tokens=24", "compose.similarity=0.95"]
    endpoint_of = f"generate.endpoint={served.url}"
    first = compose(configured(work, endpoint_of, "compose.prompts=2", *more), work)
    again = compose(configured(work, endpoint_of, "compose.prompts=3", *more), work)
    texts = [row["prompt"] for row in read_rows(work.root / "composed.jsonl")]
    assert again["kept_from_before"] == first["prompts"]
    assert len(set(texts)) == len(texts) == again["prompts"]
    assert generate(configured(work, endpoint_of), work)["prompts"] == 18


def test_the_users_turn_is_left_open_where_the_user_speaks() -> None:
    """What is sampled after is the user's: the template up to the first word, and a chosen beginning of it."""
    tokenizer = tiny_tokenizer()
    assert tokenizer.decode(open_turn(tokenizer)) == "<s> user"
    assert tokenizer.decode(open_turn(tokenizer, "w9 w10")) == "<s> user w9 w10"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("too short", "short"),
        ("one two three four " * 8, "repetitive"),
        ("Расскажи мне что-нибудь о погоде", "letters"),
        ("How do I bake bread without yeast?", None),
    ],
)
def test_prompts_that_are_no_good_are_dropped(text: str, reason: str | None) -> None:
    """Too short, in circles, in other letters than asked for; a plain question is kept."""
    assert flaw(text, Compose(letters="latin")) == reason
