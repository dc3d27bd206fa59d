"""The live page in a real browser: what it shows of a run on Ray while it goes on, is killed, heals and has ended.

A real Prometheus scrapes the same run: Ray hands on what a run tells only after ten seconds, and this one lasts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Route, expect

from backedge import Collect, Flow, Poll
from backedge.engine.on_ray.api.living_runs import LivingRuns
from backedge.engine.on_ray.supervisor.run_metrics import METRICS
from backedge.page.page_control import PageControl
from backedge.page.page_server import PageServer
from backedge.page.page_source import PageSource
from backedge.recovery.stores.run_status import RunStatus
from tests.gates import Gate, wait_for
from tests.on_ray.flows import begin
from tests.page.browser import SCREENSHOTS, Visit, started
from tests.page.prometheus import ALERTS, dashboard, program, scraping
from tests.page.statuses import large, rich
from tests.page.stored import two_cuts

pytestmark = pytest.mark.slow

SLOW_S = 0.02
ROUNDS = 2
STUCK = 7
"""The record that goes round until the gate opens; all others leave the loop after `ROUNDS`."""

OPERATORS = ("numbers", "try", "enough", "slow", "done")
"""The first operator of each chain of the run's tasks."""

BUSY = "backedge_busy_seconds_total"

NOT_COUNTED = {"backedge_spilled_bytes_total", "backedge_given_up_epochs_total"}
"""No loop is too large, and the kill may come at a moment without an open epoch."""

FRAMES = 90


def planted(gate: Gate) -> Flow:
    """A loop that a record does not leave, and a slow operator behind it; both until the gate opens, and the source."""

    def number(position: int) -> tuple[list[int], int] | None:
        return None if gate.is_open else ([position], position + 1)

    def count(rounds: int, record: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        return rounds + 1, (record[0], rounds + 1)

    def is_done(record: tuple[int, int]) -> bool:
        return record[1] >= ROUNDS and (record[0] != STUCK or gate.is_open)

    class Slow:
        def on_record(self, ctx: Any, record: tuple[int, int]) -> None:
            if not gate.is_open:
                time.sleep(SLOW_S)
            ctx.counter("seen").add()
            ctx.histogram("rounds").observe(record[1])
            ctx.emit(record)

    flow = Flow("planted")
    again = flow.loop("again", max_rounds=10_000_000)
    source = Poll(number, start=0, ends=True)
    numbers = flow.read(source, name="numbers").map(lambda number: (number, 0), name="begin")
    tried = numbers.merge(again).key_by(lambda record: record[0]).stateful_map(count, initial=0, name="try")
    done, rest = tried.rebalance().split(is_done, name="enough")
    again.feed(rest.rebalance())
    again.dead_letters.write(Collect(), name="stuck")
    done.rebalance().process(Slow, name="slow").rebalance().write(Collect(), name="done")
    return flow


class Planted:
    """A run of `planted` of which a task is killed, and its page."""

    def __init__(self, folder: Path) -> None:
        self._gate = Gate(folder / "gate")
        self._job = begin(
            planted(self._gate),
            snapshots=folder / "cuts",
            every=0.5,
            keep=100,  # a cut that a test has opened stays
            actors="task",
            kills=["body@epoch=2"],
        )
        runs = LivingRuns()
        self.server = PageServer(PageSource(str(folder / "cuts"), None, runs.ask), steer=PageControl(runs.job).steer)
        self.server.start()

    def finish(self) -> int:
        """Let the run end, if it has not yet; how many numbers there were."""
        self._gate.open()
        result = self._job.wait()
        assert result.state == "finished"
        return len(result.outputs["done"])

    def close(self) -> None:
        """End the run and the page."""
        self._gate.open()
        self._job.wait()
        self.server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def run(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    found = Planted(tmp_path_factory.mktemp("planted"))
    yield found
    found.close()


@pytest.fixture
def live(browser: Browser, run: Planted) -> Iterator[Visit]:
    """The page of the run on Ray."""
    found = Visit(browser, run.server.address)
    yield found
    found.close()


class Made:
    """The page of statuses that the test makes, beside a stored job with two cuts."""

    def __init__(self, root: Path) -> None:
        two_cuts(root)
        self.alive: list[RunStatus] = []
        self.server = PageServer(PageSource(str(root), None, lambda: self.alive), steer=lambda *asked: "done")
        self.server.start()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    found = Made(tmp_path_factory.mktemp("cuts"))
    yield found
    found.server.stop()


# -- a run on Ray --------------------------------------------------------------------------------------------------


def test_the_page_of_a_running_job_updates(live: Visit):
    records = live.page.locator('#figures [data-key="records"] dd')
    for _ in range(2):
        shown = records.inner_text()
        expect(records).not_to_have_text(shown)
    expect(live.page.locator("#job")).to_have_text("planted")
    expect(live.page.locator("#state")).to_have_text("running")


def test_a_kill_appears_and_heals(live: Visit):
    failure = live.page.locator("#failures li")
    expect(failure).to_contain_text(re.compile("attempt 1 failed: .*ran again after .*from cut"))
    expect(live.page.locator("#state")).to_have_text("running")
    expect(live.page.locator("#timeline rect.failure")).to_have_count(1)
    live.keep("killed")


def test_a_slow_operator_is_named_as_the_one_that_sets_the_pace(live: Visit):
    expect(live.page.locator("#pace")).to_contain_text(re.compile(r"^slow sets the pace: .*busy \d+ %"))
    expect(live.page.locator('#graph [data-operator="slow"]')).to_have_class(re.compile("slowest"))
    assert "slow/0" in live.cells("channels", 2)


def test_the_oldest_record_in_a_loop_is_the_first_of_a_cut(live: Visit):
    def rounds_shown() -> list[int] | None:
        # In the first cuts, no record has gone round more often than the others may.
        live.page.get_by_role("button", name=re.compile("oldest records in cut")).click()
        expect(live.page.locator("#contents tbody tr").first).to_be_visible()
        found = [int(text) for text in live.cells("contents", 1)]
        return found if found[0] > ROUNDS else None

    rounds = wait_for(rounds_shown, "a cut in which the stuck record has gone round more often than the others")
    expect(live.page.locator("#contents tbody tr").first).to_contain_text(f"[{STUCK},")
    assert rounds == sorted(rounds, reverse=True)
    live.keep("oldest")


def test_a_cut_opens_and_can_be_searched(live: Visit):
    live.page.get_by_role("button", name=re.compile(r"^open \d+")).first.click()
    expect(live.page.locator("#cut-title")).to_be_focused()
    live.page.get_by_label("Show").select_option("state of try")
    live.page.get_by_label("containing").fill(str(STUCK))
    live.page.keyboard.press("Enter")
    expect(live.page.locator("#contents tbody tr").first).to_contain_text(str(STUCK))
    assert all(str(STUCK) in row for row in live.page.locator("#contents tbody tr").all_inner_texts())
    live.page.get_by_role("button", name="Close").click()
    expect(live.page.locator("#cut")).to_be_hidden()


def test_buttons_steer_the_run_and_say_what_came_of_it(live: Visit):
    live.page.get_by_label("Name of the cut").fill("before more tasks")
    live.page.get_by_role("button", name="Savepoint").press("Enter")
    expect(live.page.locator("#steered")).to_contain_text("planted: savepoint 'before more tasks' is cut")
    expect(live.page.locator("#epochs tbody tr", has_text="complete, before more tasks")).to_have_count(1)
    # What it has already takes no time.
    for tasks, told in (("slwo=2", "has no operator 'slwo'"), ("slow=1", "rescaled to slow=1")):
        live.page.get_by_label("Number of tasks").fill(tasks)
        live.page.get_by_role("button", name="Rescale").press("Enter")
        expect(live.page.locator("#steered")).to_contain_text(told)
    live.keep("steered")


def test_what_ends_a_run_is_asked_first(live: Visit):
    asked: list[str] = []
    live.page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    for name in ("Cancel the run", "Stop with this cut"):
        live.page.get_by_role("button", name=name).click()
    assert [message.partition(":")[0] for message in asked] == ["planted", "planted"]
    expect(live.page.locator("#steered")).to_be_empty()
    expect(live.page.locator("#state")).to_have_text("running")


def test_prometheus_scrapes_the_run_and_takes_alerts_and_dashboard(run: Planted, tmp_path: Path):
    checked = subprocess.run([program("promtool"), "check", "rules", str(ALERTS)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    with scraping(tmp_path) as prometheus:
        # Ray hands on what it knows every ten seconds: neither the metrics nor the tasks of one appear all at once.
        series = {
            name: prometheus.wait_for(
                f'ray_{name}{{exported_job="planted"}}', at_least=len(OPERATORS) if name == BUSY else 1
            )
            for name in METRICS.keys() - NOT_COUNTED
        }
        (rules,) = prometheus.ask("rules")["groups"]
        refused = [shown for shown in dashboard("planted") if prometheus.ask("query", query=shown) is None]
    assert refused == []
    assert len(series["backedge_restores_total"]) == 1
    assert {(labels["operator"], labels["task"]) for labels in series[BUSY]} == {(name, "0") for name in OPERATORS}
    assert {rule["health"] for rule in rules["rules"]} <= {"ok", "unknown"}


def test_the_page_of_a_finished_job_shows_the_same_from_the_store(live: Visit, run: Planted):
    count = run.finish()
    live.page.reload()
    expect(live.page.locator("#state")).to_have_text("finished")
    expect(live.page.locator("#control")).to_be_hidden()
    expect(live.page.locator("#failures li")).to_contain_text("ran again after")
    expect(live.page.locator('#graph [data-operator="slow"]')).to_contain_text("records")
    live.page.get_by_role("button", name=re.compile(r"^open \d+")).first.click()
    live.page.get_by_label("Show").select_option("state of try")
    expect(live.page.locator("#found")).to_contain_text(f"{min(count, 200):,} of {count:,} entries")
    live.keep("finished")


# -- how it looks and feels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"), [("light", {}), ("dark", {"scheme": "dark"}), ("phone", {"phone": True})], ids=str
)
def test_it_is_accessible_and_fits_the_window(browser: Browser, made: Made, name: str, options: dict[str, Any]):
    made.alive[:] = [rich()]
    visit = Visit(browser, made.server.address, **options)
    expect(visit.page.locator("#state")).to_have_text("running")
    visit.keep(f"running-{name}")
    assert visit.violations() == []
    visit.page.get_by_role("button", name=re.compile("^job ")).click()
    visit.page.get_by_role("button", name="open 2").click()
    visit.page.get_by_label("Show").select_option("state of counts")
    expect(visit.page.locator("#contents tbody tr").first).to_be_visible()
    visit.keep(f"cut-{name}")
    if name == "light":
        visit.page.get_by_label("Show").select_option("what has changed since cut 1")
        expect(visit.page.locator("#contents tbody tr", has_text="position")).to_have_count(1)
        assert visit.violations() == []
    wide = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0, "the page scrolls sideways"
    visit.close()


class Another:
    """Another server of this machine, whose page asks the live page for all that it wants. `heard`: what it is sent."""

    def __init__(self, address: str) -> None:
        script = f"""
            const ask = (path, options) => fetch("{address}" + path, options).then((r) => r.text(), () => "refused");
            const post = {{ method: "POST", credentials: "include" }};
            Promise.all([
                ask("/api/jobs", {{ credentials: "include" }}),
                ask("/api/runs/4f/cancel", post),
                ask("/api/runs/4f/cancel", {{ ...post, mode: "no-cors" }}),
                ask("/api/runs/4f/cancel", {{ ...post, headers: {{ "Backedge-Token": "guessed" }} }}),
            ]).then((answers) => document.title = JSON.stringify(answers));
        """
        heard = self.heard = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard.append(f"{self.path}\n{self.headers}")
                self.send_response(200)
                self.end_headers()
                self.wfile.write(f"<title>asking</title><script>{script}</script>".encode())

            def log_message(self, format: str, *args: object) -> None:
                """Into no output of a test."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}/"


def test_another_server_of_this_machine_gets_no_token_and_presses_no_button(browser: Browser, tmp_path: Path):
    two_cuts(tmp_path)
    pressed: list[tuple[str, ...]] = []
    page = PageServer(PageSource(str(tmp_path), None, list), steer=lambda *asked: pressed.append(asked) or "done")
    page.start()
    another = Another(page.address.partition("/#")[0])
    visit = Visit(browser, page.address)
    expect(visit.page.locator("#job")).to_have_text("job")
    token = page.address.partition("token=")[2]
    assert token not in visit.page.url
    foreign = visit.page.context.new_page()
    foreign.goto(another.address)
    expect(foreign).to_have_title(re.compile("refused"))
    assert json.loads(foreign.title()) == ["refused", "refused", "", "refused"]
    assert another.heard and token not in "".join(another.heard)
    assert pressed == []
    visit.page.reload()
    expect(visit.page.locator("#job")).to_have_text("job")
    foreign.goto(page.address.partition("#")[0])
    expect(foreign.locator("#fault")).to_contain_text("it contains the token")
    visit.close()
    another.server.shutdown()
    another.server.server_close()
    page.stop()


def test_barriers_calls_counts_and_lost_work_are_shown(browser: Browser, made: Made):
    made.alive[:] = [rich()]
    visit = Visit(browser, made.server.address)
    expect(visit.page.locator('#graph [data-operator="judge"] .barrier')).to_have_text("8: 1 of 2")
    judge = visit.page.locator("#barriers tbody tr", has_text="judge")
    expect(judge.locator("td")).to_have_text(["8", "judge", "0", "1", "1", "0"])
    think = visit.page.locator("#tasks tbody tr", has_text="think/2").locator("td")
    expect(think.nth(8)).to_have_text("3 %")
    expect(think.nth(9)).to_have_text("8 + 32")
    counts = visit.page.locator("#counts td")
    expect(counts).to_have_text(
        [
            *("judge", "verdicts", "1,234", "\u2013", "judge", "seconds", "4", "0.75"),
            *("judge", "not_yet", "0", "\u2013"),
            *("db", "processes that have it open", "3", "\u2013"),
            *("db", "times opened, in all attempts", "1,005", "\u2013"),
        ]
    )
    expect(visit.page.locator("#failures li")).to_contain_text("done again: 4,321 records of 2.50 s")
    visit.close()


def test_a_page_does_not_say_that_there_is_no_loop_beside_the_loops(browser: Browser, made: Made):
    made.alive[:] = [replace(rich(), loops=())]
    visit = Visit(browser, made.server.address)
    told = visit.page.get_by_text("This flow has no loop.")
    expect(told).to_be_visible()
    made.alive[:] = [rich()]
    expect(visit.page.locator("#loops h3")).to_have_text(["attempts", "think again"])
    expect(told).to_be_hidden()
    visit.close()


def test_a_page_does_not_say_that_there_is_no_job_before_it_knows(browser: Browser, tmp_path: Path):
    server = PageServer(PageSource(str(tmp_path), None, list[RunStatus]), steer=lambda *asked: "done")
    server.start()
    context, held = browser.new_context(), list[Route]()
    page = context.new_page()
    page.route("**/api/jobs", lambda route: held.append(route))
    try:
        with page.expect_request("**/api/jobs"):
            page.goto(server.address)
        expect(page.locator("#job")).to_have_text("Loading …")
        held[0].continue_()
        expect(page.locator("#job")).to_have_text("No job yet")
    finally:
        context.close()
        server.stop()


def test_jobs_of_one_name_and_unreadable_ones_are_listed_once(browser: Browser, tmp_path: Path):
    two_cuts(tmp_path)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "job.json").write_text("{")
    alive = RunStatus("job", "4f", "running", True, 1.0, 119.7, None, 1, None, 0)
    server = PageServer(PageSource(str(tmp_path), None, lambda: [alive]))
    server.start()
    visit = Visit(browser, server.address)
    try:
        jobs = visit.page.locator("#jobs li")
        told = ["job · running", "job · unfinished", re.compile("torn/job.json")]
        expect(jobs).to_have_text(told)
        for _ in range(3):
            with visit.page.expect_response("**/api/jobs"):
                jobs.get_by_role("button").first.click()
        expect(jobs).to_have_text(told)
    finally:
        visit.close()
        server.stop()


def test_an_unreadable_job_is_not_called_no_job(browser: Browser, tmp_path: Path):
    name = "torn" * 30
    (tmp_path / name).mkdir()
    (tmp_path / name / "job.json").write_text("{")
    server = PageServer(PageSource(str(tmp_path), None, list[RunStatus]))
    server.start()
    visit = Visit(browser, server.address, phone=True)
    try:
        expect(visit.page.locator("#jobs li")).to_have_text(re.compile("torn/job.json"))
        expect(visit.page.locator("#job")).to_have_text("No job can be read")
        assert visit.violations() == []
        wide = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide == 0, "the page scrolls sideways"
    finally:
        visit.close()
        server.stop()


def test_amounts_just_below_the_next_unit_are_numbers_of_it(browser: Browser, made: Made):
    run, last = rich(), replace(rich().epochs[0], epoch=9, seconds=119.7, written_bytes=999_999)
    made.alive[:] = [replace(run, epochs=(last,))]
    visit = Visit(browser, made.server.address)
    cells = visit.page.locator("#epochs tbody td")
    expect(cells.nth(2)).to_have_text("2 min 0 s")
    expect(cells.nth(6)).to_have_text("1000 kB")
    visit.close()


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, made: Made):
    visit = Visit(browser, made.server.address)
    expect(visit.page.get_by_role("button", name=re.compile("^job "))).to_be_visible()
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("link", name="To the run")).to_be_focused()
    visit.page.keyboard.press("Enter")
    expect(visit.page.locator("main")).to_be_focused()
    visit.page.get_by_role("button", name=re.compile("^job ")).press("Enter")
    visit.page.get_by_role("button", name="open 2").press("Enter")
    expect(visit.page.locator("#cut-title")).to_be_focused()
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_label("Show")).to_be_focused()
    visit.close()


def test_two_hundred_tasks_and_two_thousand_channels_stay_usable(browser: Browser, made: Made):
    made.alive[:] = [large(step=1)]
    assert sum(len(operator.tasks) for operator in made.alive[0].operators) == 200
    assert len(made.alive[0].channels) == 2_000
    began_s = time.monotonic()
    visit = Visit(browser, made.server.address)
    tasks = visit.page.locator("#tasks tbody tr")
    expect(tasks).to_have_count(200)
    visit.page.locator("#tasks").scroll_into_view_if_needed()
    interactive_s = time.monotonic() - began_s
    made.alive[0] = large(step=2)
    # Frames while two updates arrive.
    frames: list[float] = visit.page.evaluate(
        """count => new Promise((done) => {
            const gaps = []; let last = performance.now();
            const next = (now) => { gaps.push(now - last); last = now;
                gaps.length < count ? requestAnimationFrame(next) : done(gaps); };
            requestAnimationFrame(next);
        })""",
        FRAMES,
    )
    expect(tasks.first).to_contain_text("2,000")
    middle_ms, worst_ms = sorted(frames)[len(frames) // 2], max(frames)
    visit.keep("large")
    _note("large", {"interactive_s": interactive_s, "frame_ms_median": middle_ms, "frame_ms_max": worst_ms})
    visit.close()


def _note(name: str, measured: dict[str, float]) -> None:
    """Keep what was measured, beside the screenshots."""
    if (folder := os.environ.get(SCREENSHOTS)) is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{name}.json").write_text(json.dumps(measured))
