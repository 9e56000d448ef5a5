"""The fleet over HTTP, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.simulate.helper import BEARER, TOKEN, one_pool, value
from tuner.simulate import Fleet
from tuner.simulate.server import FleetServer

if TYPE_CHECKING:
    from collections.abc import Iterator

START = 1_900_000_000.0


@contextlib.contextmanager
def serving(*, speed: float = 0.0, show_truth: bool = False) -> Iterator[str]:
    """Serve two engines from a thread of their own; yield the address."""
    fleet = Fleet(one_pool(engines=2), seed=1, start=START, token=TOKEN)
    loop = asyncio.new_event_loop()
    server = FleetServer(fleet, speed=speed, show_truth=show_truth)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@pytest.fixture
def url() -> Iterator[str]:
    """Serve a fleet whose time stands still until it is advanced."""
    with serving() as address:
        yield address


@pytest.fixture
def client() -> Iterator[httpx2.Client]:
    """Return a client that follows no redirects and waits at most 10 s."""
    with httpx2.Client(timeout=10.0) as one:
        yield one


def metrics(url: str, n: int = 0) -> str:
    """Return the address of an engine's page."""
    return f"{url}/engines/p/{n}/metrics"


def fault(client: httpx2.Client, url: str, kind: str, **given: Any) -> None:
    """Begin a fault of engine 0."""
    answer = client.post(f"{url}/sim/fault", json={"kind": kind, "pool": "p", "engine": 0, **given})
    assert answer.status_code == 200, answer.text


def test_time_passes_by_request(url: str, client: httpx2.Client) -> None:
    """At speed 0 time stands still until it is advanced, and pages follow."""
    assert client.get(f"{url}/sim/now").json() == {"now": START, "speed": 0.0}
    before = client.get(metrics(url))
    assert before.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert client.get(metrics(url)).text == before.text
    assert client.post(f"{url}/sim/advance", json={"seconds": 12.5}).json() == {"now": START + 12.5}
    assert value(client.get(metrics(url)).text, "vllm:generation_tokens_total") > 100


def test_time_passes_by_itself(client: httpx2.Client) -> None:
    """At a speed above 0 time passes, and cannot be advanced."""
    with serving(speed=50.0) as url:
        assert client.post(f"{url}/sim/advance", json={"seconds": 1}).status_code == 409
        while client.get(f"{url}/sim/now").json()["now"] < START + 5:  # a tenth of a second
            pass


@pytest.mark.parametrize("seconds", [-1, "1", None, True, 1e9])
def test_time_that_makes_no_sense(url: str, client: httpx2.Client, seconds: object) -> None:
    """Seconds must be a number, not negative and not years."""
    assert client.post(f"{url}/sim/advance", json={"seconds": seconds}).status_code == 400
    assert client.get(f"{url}/sim/now").json()["now"] == START


def test_targets_name_every_page(url: str, client: httpx2.Client) -> None:
    """Discovery lists each engine with the path of its page, which answers."""
    targets = client.get(f"{url}/targets").json()
    assert targets == client.get(f"{url}/targets/p").json()
    assert [one["labels"]["instance"] for one in targets] == ["p-0", "p-1"]
    for one in targets:
        page = client.get(f"http://{one['targets'][0]}{one['labels']['__metrics_path__']}")
        assert page.status_code == 200
    assert client.get(f"{url}/targets/q").status_code == 404


def test_the_admin_api_answers_over_http(url: str, client: httpx2.Client) -> None:
    """PUT with the token and GET work; without it PUT is refused with a challenge."""
    address = f"{url}/engines/p/1/tuner/v1/schedule"
    push = {"version": "v", "fence": 1, "ttl_seconds": 60, "schedule": [[1, 64, 2]]}
    refused = client.put(address, json=push)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert client.put(address, json=push, headers={"Authorization": BEARER}).status_code == 200
    assert client.get(address).json()["expires_at"] == START + 60
    client.post(f"{url}/sim/advance", json={"seconds": 61})
    assert client.get(address).json()["source"] == "reverted"
    assert client.delete(address).status_code == 405
    large = client.put(address, content=b" " * 100_000, headers={"Authorization": BEARER})
    assert large.status_code == 413


def test_gpus_are_served(url: str, client: httpx2.Client) -> None:
    """Each engine has a GPU with a page of its own."""
    client.post(f"{url}/sim/advance", json={"seconds": 20})
    page = client.get(f"{url}/gpu/p/0/metrics").text
    assert value(page, "DCGM_FI_DEV_GPU_UTIL", Hostname="p-0") > 0


def test_the_truth_is_hidden_unless_asked_for(url: str, client: httpx2.Client) -> None:
    """Only a server that was started to show the truth does."""
    assert client.get(f"{url}/sim/truth").status_code == 403
    with serving(show_truth=True) as open_url:
        pool = client.get(f"{open_url}/sim/truth").json()["pools"]["p"]
    assert pool["oracle"][0][0] == 1
    assert pool["crossover"]["tokens"] > 50
    assert set(pool["routes"]["chat"]["hazards_by_draft_len"]) == {"1", "2", "3", "4"}


@pytest.mark.parametrize(
    "path",
    ["/", "/engines/p/2/metrics", "/engines/q/0/metrics", "/engines/p/x/metrics", "/sim/x", "/gpu/p/0/x"],
)
def test_pages_that_are_not_there(url: str, client: httpx2.Client, path: str) -> None:
    """404 in JSON."""
    assert client.get(url + path).status_code == 404


def test_a_down_engine_closes_and_its_neighbour_answers(url: str, client: httpx2.Client) -> None:
    """No answer, on its page, its admin API and its GPU; the other engine is well; time heals it."""
    fault(client, url, "down", seconds=30)
    for path in ("/engines/p/0/metrics", "/engines/p/0/tuner/v1/schedule", "/gpu/p/0/metrics"):
        with pytest.raises(httpx2.TransportError):
            client.get(url + path)
    assert client.get(metrics(url, 1)).status_code == 200
    client.post(f"{url}/sim/advance", json={"seconds": 31})
    assert client.get(metrics(url)).status_code == 200


def test_a_flapping_engine_answers_every_other_time(url: str, client: httpx2.Client) -> None:
    """Closed, answered, closed, answered."""
    fault(client, url, "flap")
    seen = []
    for _ in range(4):
        try:
            seen.append(client.get(metrics(url)).status_code)
        except httpx2.TransportError:
            seen.append(0)
    assert seen == [0, 200, 0, 200]


def test_answers_that_are_no_metrics(url: str, client: httpx2.Client) -> None:
    """HTML with status 200, an error status, a redirect."""
    fault(client, url, "html")
    page = client.get(metrics(url))
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert page.text.startswith("<!DOCTYPE html>")
    fault(client, url, "clear")
    fault(client, url, "error", status=500)
    assert client.get(metrics(url)).status_code == 500
    fault(client, url, "clear")
    fault(client, url, "redirect")
    assert client.get(metrics(url)).status_code == 302


def test_a_slow_engine_keeps_its_client_waiting(url: str) -> None:
    """The client's patience ends before the first byte comes."""
    with httpx2.Client(timeout=0.3) as client:
        fault(client, url, "slow", delay=30)
        with pytest.raises(httpx2.ReadTimeout):
            client.get(metrics(url))
        assert client.get(metrics(url, 1)).status_code == 200


def test_a_dripping_engine_sends_bytes_one_by_one(url: str) -> None:
    """The first byte of the body comes at once, the second only a second later."""
    with httpx2.Client() as client:
        fault(client, url, "drip")
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /engines/p/0/metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while len(body := received.partition(b"\r\n\r\n")[2]) < 2:
            received += connection.recv(65_536)
    assert body == b"# "


def test_a_huge_answer_is_as_large_as_it_says(url: str, client: httpx2.Client) -> None:
    """The page goes on with comments up to the size that was asked for."""
    fault(client, url, "huge", bytes=3_000_000)
    page = client.get(metrics(url)).content
    assert len(page) == 3_000_000
    assert page.endswith(b"x\n")
    assert b"vllm:generation_tokens_total" in page[:40_000]


def test_faults_over_http_are_checked(url: str, client: httpx2.Client) -> None:
    """400 with a line that says why; the kinds are listed."""
    wrong: tuple[Any, ...] = (
        {}, {"kind": "fire"}, {"kind": "down", "pool": "q"}, {"kind": "down", "pool": "p", "engine": "0"},
        {"kind": "down", "seconds": "1"}, {"kind": ["down"]}, {"kind": "speed", "factor": True}, [],
    )  # fmt: skip
    for document in wrong:
        answer = client.post(f"{url}/sim/fault", content=json.dumps(document))
        assert answer.status_code == 400
        assert answer.json()["error"]
    assert client.post(f"{url}/sim/fault", content=b"{").status_code == 400
    assert "acceptance" in client.get(f"{url}/sim/fault").json()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"PUT / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"413"),
        (b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\n\r\n", b"431"),
    ],
)
def test_requests_that_cannot_be_read(url: str, sent: bytes, status: bytes) -> None:
    """A status and a closed connection."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    assert answer.split(b" ")[1] == status


def test_many_clients_at_once(url: str) -> None:
    """Sixteen clients read two hundred pages, each whole."""

    def read(_: int) -> int:
        with httpx2.Client(timeout=30.0) as client:
            return sum(client.get(metrics(url, n % 2)).status_code == 200 for n in range(12))

    with ThreadPoolExecutor(16) as threads:
        assert sum(threads.map(read, range(16))) == 192
