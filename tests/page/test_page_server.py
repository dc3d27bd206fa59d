"""The live page over HTTP: who may see it, and what it tells of jobs and cuts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from socket import create_connection
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest
from msgspec.structs import replace

from backedge import ui_command
from backedge.command import main
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.job_handle import Job
from backedge.engine.on_ray.run_spec import RequestFailedError
from backedge.flows import WrongCallError
from backedge.page.page_control import PageControl
from backedge.page.page_server import ASSETS, TOKEN_HEADER, PageServer, Steer
from backedge.page.page_source import PageSource
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.run_status import RunStatus
from tests.gates import HANG_S
from tests.page.stored import two_cuts
from tests.stores.snapshots import begin


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Page:
    """A page that is being served, and a client that has opened it."""

    def __init__(self, root: Path, steer: Steer | None = None) -> None:
        self.alive: list[RunStatus] = []
        self.server = PageServer(PageSource(str(root), None, lambda: self.alive), steer=steer)
        self.server.start()
        self.address = urlsplit(self.server.address)
        self.token = self.address.fragment.removeprefix("token=")
        self.headers = {TOKEN_HEADER: self.token}

    def stream(self, path: str, method: str = "GET", body: str | bytes = "", **headers: str) -> HTTPResponse:
        """The beginning of an answer."""
        connection = HTTPConnection("127.0.0.1", self.address.port or 0, timeout=HANG_S)
        connection.request(method, path, body, {"Connection": "close", **headers})
        return connection.getresponse()

    def ask(self, path: str, method: str = "GET", body: str | bytes = "", **headers: str) -> Answer:
        """A whole answer."""
        with self.stream(path, method, body, **headers) as reply:
            return Answer(reply.status, dict(reply.headers), reply.read().decode())

    def get(self, path: str, status: int = 200) -> Any:
        """JSON, as a client with the token gets it."""
        reply = self.ask(path, **self.headers)
        assert reply.status == status, reply.text
        return json.loads(reply.text)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of a job with two cuts, and of one whose identity is torn."""
    root = tmp_path_factory.mktemp("cuts")
    two_cuts(root)
    begin(CutStore(str(root), "torn"))
    (root / "torn" / "job.json").write_text("{")
    found = Page(root)
    yield found
    found.server.stop()


# -- who may see it ------------------------------------------------------------------------------------------------


def test_it_is_served_on_the_loopback_address_only(page: Page):
    assert page.address.hostname == "127.0.0.1"
    listening = Path("/proc/net/tcp").read_text()
    places = re.findall(rf" ([0-9A-F]{{8}}):{page.address.port:04X} 00000000:0000 0A", listening)
    assert places == ["0100007F"]


@pytest.mark.parametrize("path", ["/api/jobs", "/api/control", "/api/jobs/job/events", "/api/nothing"])
def test_nothing_is_told_without_the_token(page: Page, path: str):
    for headers in (
        {},
        {TOKEN_HEADER: page.token[:-1]},
        {TOKEN_HEADER: ""},
        {"Cookie": f"{TOKEN_HEADER}={page.token}"},
    ):
        reply = page.ask(path, **headers)
        assert reply.status == 403 and "contains the token" in json.loads(reply.text)["error"]
    assert page.ask(f"{path}?token={page.token}").status == 403


def test_the_page_itself_holds_nothing_and_sets_no_cookie(page: Page):
    for path in ("/", *(f"/assets/{name}" for name in ASSETS)):
        reply = page.ask(path)
        assert reply.status == 200 and page.token not in reply.text and "Set-Cookie" not in reply.headers


def test_a_request_under_another_name_is_refused_even_with_the_token(page: Page):
    assert page.ask("/api/jobs", Host="backedge.example:80", **page.headers).status == 403
    assert page.ask("/api/jobs", Host=f"localhost:{page.address.port}", **page.headers).status == 200


def test_bytes_that_are_no_text_are_no_token(page: Page):
    with create_connection(("127.0.0.1", page.address.port or 0), timeout=HANG_S) as connection:
        head = f"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{page.address.port}\r\nConnection: close\r\n".encode()
        connection.sendall(head + f"{TOKEN_HEADER}: ".encode() + b"\xff\xfe\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 403")


def test_the_page_asks_nobody_else(page: Page):
    for name in ("", *(f"assets/{asset}" for asset in ASSETS)):
        reply = page.ask(f"/{name}")
        assert reply.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert set(re.findall(r"https?://[^\"'` ]+", reply.text)) <= {"http://www.w3.org/2000/svg"}
    assert page.ask("/assets/../page_server.py").status == 404


# -- what it tells -------------------------------------------------------------------------------------------------


def test_jobs_are_listed_and_a_damaged_one_hides_none(page: Page):
    job, torn = page.get("/api/jobs")
    assert (job["job"], job["state"], job["is_live"], job["cut"]) == ("job", "unfinished", False, 2)
    assert torn["state"] == "unreadable" and "torn/job.json" in torn["fault"]


def test_a_job_in_the_store_has_the_same_document_as_one_that_is_alive(page: Page):
    stored = page.get("/api/jobs/job/status")
    assert [operator["name"] for operator in stored["operators"]] == ["orders", "rank", "done"]
    assert [loop["name"] for loop in stored["loops"]] == ["again"]
    assert [epoch["epoch"] for epoch in stored["epochs"] if epoch["is_kept"]] == [1, 2]
    alive = RunStatus("fresh", "4f", "running", True, 1.0, 5.0, None, 1, None, 0)
    assert stored.keys() == {*alive.to_json(), "layout"}


@pytest.mark.slow
def test_a_run_that_is_alive_is_pushed_as_it_changes(page: Page):
    run = RunStatus("fresh", "4f", "running", True, 1.0, 5.0, None, 1, None, 0)
    page.alive.append(run)
    try:
        with page.stream("/api/jobs/fresh/events", **page.headers) as reply:
            assert reply.headers["Content-Type"] == "text/event-stream"
            assert _next_event(reply)["records"] == 0
            page.alive[0] = replace(run, records=70)
            assert _next_event(reply)["records"] == 70
    finally:
        page.alive.clear()


def _next_event(reply: HTTPResponse) -> dict[str, Any]:
    while not (line := reply.readline()).startswith(b"data: "):
        assert line, "the stream has ended"
    return json.loads(line.removeprefix(b"data: "))


def test_a_cut_opens_by_operator_and_loop_and_can_be_searched(page: Page):
    cut = page.get("/api/jobs/job/cuts/2")
    assert (cut["operators"], cut["loops"]) == (["orders", "cleaned", "rank", "counts", "done"], ["again"])
    found = page.get("/api/jobs/job/cuts/2/state/counts?search=10")
    assert found["entries"] and all("10" in e["key"] or "10" in e["value"] for e in found["entries"])
    everything = page.get("/api/jobs/job/cuts/2/state/counts")
    assert (len(everything["entries"]), everything["more"]) == (200, 800)
    loop = page.get("/api/jobs/job/cuts/2/inflight/again?search=" + quote('"id"'))
    assert [(record["record"], record["receiver"]) for record in loop["entries"]] == [('{"id":1}', "rank/0")]


def test_positions_transactions_and_the_difference_of_two_cuts_are_told(page: Page):
    positions = page.get("/api/jobs/job/cuts/2/positions")
    assert positions["entries"] and all(row["split"].startswith("orders: ") for row in positions["entries"])
    transactions = page.get("/api/jobs/job/cuts/2/transactions")
    assert {row["task"] for row in transactions["entries"]} == {"done/0"}
    told = page.get("/api/jobs/job/cuts/2/diff/1")["entries"]
    assert [tuple(row.values()) for row in told] == [
        ("position", "orders: a.jsonl", 7, 9),
        ("records", "orders", 10, 12),
    ]
    found = page.get("/api/jobs/job/cuts/2/diff/1?search=position")["entries"]
    assert found and {row["what"] for row in found} == {"position"}
    assert page.get("/api/jobs/job/cuts/2/diff/2") == {"entries": [], "more": 0}


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("jib/status", "it holds job"),
        ("job/cuts/7", "it holds 1, 2"),
        ("job/cuts/x", "not the number of a cut"),
        ("job/cuts/2/diff/9", "it holds 1, 2"),
        ("job/cuts/2/diff/-1", "not the number of a cut"),
        ("job/cuts/2/state/rang", "there are: orders"),
        ("job/cuts/2/inflight/agian", "there are: again"),
        (quote("../job", safe="") + "/status", ""),
    ],
)
def test_a_wrong_name_is_answered_with_what_there_is(page: Page, path: str, told: str):
    assert told in page.get(f"/api/jobs/{path}", status=404)["error"]


def test_a_port_that_is_taken_is_refused(page: Page, tmp_path: Path):
    with pytest.raises(OSError, match=rf"\b{page.address.port}\b"):
        PageServer(PageSource(str(tmp_path), None, list), page.address.port or 0).start()


# -- control -------------------------------------------------------------------------------------------------------


class Steered:
    """A page with buttons. Notes what they ask for; a rescale is refused."""

    def __init__(self, root: Path) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.page = Page(root, self._steer)

    def _steer(self, run: str, action: str, given: str) -> str:
        self.asked.append((run, action, given))
        if action == "rescale":
            raise RequestFailedError("no room for 9 tasks")
        return "it was done"

    def press(self, action: str, given: str | bytes = "", method: str = "POST", **changed: str | None) -> Answer:
        """What the page sends for a button, but for headers that are changed or, with None, left out."""
        headers: dict[str, str | None] = {
            "Origin": f"http://127.0.0.1:{self.page.address.port}",
            TOKEN_HEADER: self.page.token,
        }
        sent = {name: value for name, value in (headers | changed).items() if value is not None}
        return self.page.ask(f"/api/runs/4f/{action}", method, given, **sent)


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Steered]:
    found = Steered(tmp_path_factory.mktemp("steered"))
    yield found
    found.page.server.stop()


@pytest.mark.slow
def test_a_button_that_waits_keeps_no_process_alive():
    program = """
import threading
from http.client import HTTPConnection
from urllib.parse import urlsplit
from backedge.page.page_server import TOKEN_HEADER, PageServer
from backedge.page.page_source import PageSource

pressed = threading.Event()

def steer(*asked):
    pressed.set()
    threading.Event().wait()

server = PageServer(PageSource(".", None, list), steer=steer)
server.start()
address = urlsplit(server.address)
connection = HTTPConnection(address.hostname, address.port)
headers = {"Origin": f"http://{address.netloc}", TOKEN_HEADER: address.fragment.removeprefix("token=")}
connection.request("POST", "/api/runs/4f/savepoint", "before", headers)
pressed.wait()
server.stop()
print("stopped", flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=HANG_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "stopped\n", "")


def test_a_page_without_control_has_no_way_to_steer(page: Page):
    assert page.get("/api/control") is False
    assert page.ask("/api/runs/4f/cancel", "POST", **page.headers).status == 404


def test_a_button_asks_for_one_thing_and_is_answered_with_the_outcome(steered: Steered):
    steered.asked.clear()
    assert json.loads(steered.press("savepoint", " before the upgrade ").text) == {"done": "it was done"}
    refused = steered.press("rescale", "9")
    assert json.loads(refused.text) == {"error": "no room for 9 tasks"}
    assert steered.asked == [("4f", "savepoint", "before the upgrade"), ("4f", "rescale", "9")]


@pytest.mark.parametrize(
    "changed",
    [
        {TOKEN_HEADER: None},
        {TOKEN_HEADER: "wrong"},
        {"Origin": None},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://backedge.example"},
    ],
    ids=str,
)
def test_a_request_that_is_not_from_the_page_steers_nothing(steered: Steered, changed: dict[str, str | None]):
    steered.asked.clear()
    assert steered.press("cancel", **changed).status == 403
    assert steered.asked == []


def test_looking_at_an_address_steers_nothing(steered: Steered):
    steered.asked.clear()
    assert steered.press("cancel", method="GET").status == 405
    assert "can't decode" in json.loads(steered.press("savepoint", b"\xff").text)["error"]
    assert steered.asked == []


def test_the_page_cannot_be_shown_in_a_frame(steered: Steered):
    assert steered.page.get("/api/control") is True
    assert "frame-ancestors 'none'" in steered.page.ask("/").headers["Content-Security-Policy"]


class SteeredJob:
    """A run that does what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def savepoint(self, name: str) -> int:
        self.asked.append(("savepoint", name))
        return 7

    def request_stop(self, name: str) -> int:
        self.asked.append(("stop", name))
        return 8

    def rescale(self, parallelism: int | Mapping[str, int]) -> int:
        self.asked.append(("rescale", parallelism))
        return 150

    def cancel(self) -> None:
        self.asked.append(("cancel",))


def test_each_button_does_its_own_thing_and_says_what_was_done():
    job = SteeredJob()
    control = PageControl(lambda run: cast(Job, job))
    assert control.steer("4f", "savepoint", "mine") == "savepoint 'mine' is cut 7"
    assert control.steer("4f", "stop", "last") == "the run ends with cut 8, 'last'"
    assert control.steer("4f", "rescale", "grow=3 done=1") == "rescaled to grow=3 done=1; no task ran for 150 ms"
    assert control.steer("4f", "cancel", "ignored") == "cancelled; its last complete cut stays"
    assert job.asked == [
        ("savepoint", "mine"),
        ("stop", "last"),
        ("rescale", {"grow": 3, "done": 1}),
        ("cancel",),
    ]


@pytest.mark.parametrize(
    ("action", "given", "told"),
    [("remove", "", "none of savepoint"), ("rescale", "", "give the number"), ("rescale", "none", "at least 1")],
)
def test_a_wrong_request_is_refused_before_the_run_is_asked(action: str, given: str, told: str):
    job = SteeredJob()
    with pytest.raises(WrongCallError, match=told):
        PageControl(lambda run: cast(Job, job)).steer("4f", action, given)
    assert job.asked == []


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_command_serves_the_page_until_it_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    begin(CutStore(str(tmp_path), "job"))
    monkeypatch.setattr(ui_command, "_join_cluster", lambda is_needed: None)
    seen: list[str] = []

    def interrupted() -> None:
        seen.append(capsys.readouterr().err)
        address = re.search("http://[^ ]+", seen[0])
        assert address is not None
        with urlopen(address[0].strip()) as reply:
            seen.append(reply.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr(ui_command.signal, "pause", interrupted)
    assert main(["ui", str(tmp_path)]) == 0
    assert "<title>Backedge</title>" in seen[1]


def test_without_a_folder_and_without_a_cluster_the_command_says_what_it_needs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def none(*, must_exist: bool) -> None:
        raise cluster.ClusterError("no cluster is running")

    monkeypatch.setattr(cluster, "connect", none)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert main(["ui"]) == 2
    assert "no cluster is running; or give the folder" in capsys.readouterr().err
