"""Pages to play with: what is stored is what the core does, and the page shows it, in a real browser."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from backedge import Collect, Flow, Items
from backedge.command import main
from backedge.engine.simulation.play import Recorder, Step
from backedge.engine.simulation.simulation import SimulationError
from backedge.play_command import layout_of, page_of, page_with
from tests.page.browser import SCREENSHOTS, Visit, started
from tests.page.recorded import FLOWS, FOLDER, data_in, flow_of, frames, page

KILLS = 10
KILLS_CLICKED = 5
"""With the loop log, and as many without."""

PAGE_BYTES_MAX = 1_000_000
AGAIN = "the core, a flow or the page has changed: run make play"
LOG = "2: a log is exactly what was in its channel"


def as_stored(steps: list[Step]) -> list[tuple[str, dict[str, Any]]]:
    return [(step.said, json.loads(json.dumps(step.frame))) for step in steps]


def drawn(name: str, recorder: Recorder, kills: int) -> Iterator[tuple[bool, int, str, list[Step]]]:
    """So many kills, each with and without loop logs: the step, the process, and what the core makes of it now."""
    rng = random.Random(name)
    for with_log in (True, False):
        steps = recorder.run(with_log=with_log)
        for _ in range(kills):
            step, process = rng.randrange(len(steps) - 1), rng.choice(recorder.processes)
            yield with_log, step, process, recorder.killed(process, steps[step].events, with_log=with_log)


def circling() -> Flow:
    """Two records that go round several times."""
    flow = Flow("circling")
    again = flow.loop("again", max_rounds=9)
    added = flow.read(Items([0, 10])).merge(again).map(lambda n: n + 1, name="add")
    out, on = added.rebalance().split(lambda n: n % 10 > 4, name="out")
    again.feed(on)
    out.write(Collect(), name="done")
    return flow


# -- what is recorded ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_record_is_lost_without_its_log_and_not_with_it():
    recorder = Recorder(circling(), 0)
    lost: dict[bool, list[dict[str, Any]]] = {}
    for with_log in (True, False):
        steps = recorder.run(with_log=with_log)
        ends = [recorder.killed("add/0", step.events, with_log=with_log)[-1].frame for step in steps[:-1:12]]
        lost[with_log] = [end for end in ends if end["verdict"] != {"lost": {}, "doubled": {}}]
        assert with_log == (not any(f"wrong {LOG}" in end for end in ends))
    assert lost[True] == []
    assert lost[False]
    assert all(end["verdict"]["lost"]["done"] and f"wrong {LOG}" in end for end in lost[False])


def test_a_statement_goes_red_when_the_cut_that_violates_it_is_complete():
    frames = [step.frame for step in Recorder(circling(), 0).run(with_log=False)]
    first = next(number for number, frame in enumerate(frames) if f"wrong {LOG}" in frame)
    completed = [key for key in frames[first] if key.startswith("cut ") and key not in frames[first - 1]]
    assert len(completed) == 1


def test_a_run_that_is_too_long_to_look_at_is_refused():
    flow = Flow("long")
    flow.read(Items([*range(1000)])).rebalance().write(Collect())
    with pytest.raises(SimulationError, match=r"'long'.*fewer records"):
        Recorder(flow, 0).run(with_log=True)


@pytest.mark.slow
def test_the_command_writes_the_same_page_each_time_and_only_where_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "shop_to_play.py").write_text(
        "from backedge import Collect, Flow, Items\n"
        "flow = Flow('shop')\n"
        "flow.read(Items(['</script><b>'])).rebalance().write(Collect(), name='done')\n"
    )
    monkeypatch.chdir(tmp_path)
    for file in ("one.html", "two.html"):
        assert main(["play", "shop_to_play:flow", file]) == 0
    assert main(["play", "shop_to_play:flow", "pages/one.html"]) == 2
    assert "there is no folder pages: create it" in capsys.readouterr().err
    assert main(["play", "shop_to_play:flow", "."]) == 2
    assert ". is a folder: name a file in it" in capsys.readouterr().err
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
    assert (tmp_path / "one.html").read_text().count("</script>") == 2
    assert [["'</script><b>'"], []] in data_in((tmp_path / "one.html").read_text())["values"]


# -- the pages of the documentation --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOWS)
def test_a_page_of_the_documentation_has_the_current_look(name: str):
    data = data_in(page(name))
    assert data["layout"] == json.loads(json.dumps(layout_of(Recorder(flow_of(name), 0).deployment)))
    assert page(name) == page_with(data), AGAIN
    assert len(page(name).encode()) < PAGE_BYTES_MAX


@pytest.mark.parametrize("name", FLOWS)
def test_whatever_is_killed_and_whenever_nothing_is_lost_with_the_loop_log(name: str):
    data = data_in(page(name))
    with_log, without = data["runs"]
    base = frames(data, with_log["first"], {})
    firsts = {(node, step) for step, nodes in enumerate(with_log["kills"]) for node in nodes}
    ends = [frames(data, node, base[step][1])[-1][1] for node, step in firsts]
    assert [end for end in ends if end["verdict"] != {"lost": {}, "doubled": {}}] == []
    assert [key for end in ends for key in end if key.startswith("wrong")] == []
    # The page of the documentation says what is lost without it.
    row = re.search(rf"\[{name}\].*\| after step (\d+): (.*) \|", (FOLDER.parent / "playing.md").read_text())
    assert row is not None
    step, before = int(row[1]), frames(data, without["first"], {})[int(row[1])][1]
    for node in without["kills"][step]:
        end = frames(data, node, before)[-1][1]
        assert ("wrong the run ends" in end) == ("never ends" in row[2])
        lost = [record for records in end["verdict"]["lost"].values() for record in records]
        assert lost == (re.findall("`(.*?)`", row[2]) or lost) and lost


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOWS)
def test_what_a_page_stores_is_what_the_core_does(name: str):
    data, recorder = data_in(page(name)), Recorder(flow_of(name), 0)
    runs = [frames(data, run["first"], {}) for run in data["runs"]]
    assert runs == [as_stored(recorder.run(with_log=with_log)) for with_log in (True, False)], AGAIN
    for with_log, step, process, steps in drawn(name, recorder, KILLS):
        node = data["runs"][not with_log]["kills"][step][data["processes"].index(process)]
        stored = frames(data, node, runs[not with_log][step][1])
        assert stored == as_stored(steps), (with_log, step, process)


@pytest.mark.long
@pytest.mark.parametrize("name", FLOWS)
def test_a_page_of_the_documentation_is_what_the_command_writes(name: str):
    assert page(name) == page_of(flow_of(name)), AGAIN


# -- in a browser --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with started() as found:
        yield found


def address(name: str) -> str:
    return (FOLDER / f"{name}.html").as_uri()


def go_to(visit: Visit, step: int) -> None:
    visit.page.get_by_role("slider").fill(str(step))


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOWS)
def test_the_page_says_of_a_kill_what_the_core_says(browser: Browser, name: str):
    visit, losses = Visit(browser, address(name)), 0
    for with_log, step, process, steps in drawn(name, Recorder(flow_of(name), 0), KILLS_CLICKED):
        end = steps[-1].frame
        visit.page.get_by_label("loop log").set_checked(with_log)
        go_to(visit, step)
        visit.page.get_by_role("button", name=process, exact=True).click()
        expect(visit.page.locator("#said")).to_contain_text("is killed")
        visit.page.get_by_role("button", name="To the end").click()
        differing = [
            (what, sink, end["verdict"][what][sink]) for what in end["verdict"] for sink in end["verdict"][what]
        ]
        losses += bool(differing)
        wrong = {key.removeprefix("wrong ") for key in end if key.startswith("wrong ")}
        verdict = visit.page.locator("#verdict")
        expect(verdict).to_have_attribute("data-verdict", "lost" if differing else "wrong" if wrong else "whole")
        assert not (with_log and wrong)
        for what, sink, records in differing:
            expect(verdict).to_contain_text(f"{what.capitalize()} in {sink}: {', '.join(records)}")
        red = visit.page.locator("#audit li.wrong").all_inner_texts()
        assert {text.partition(". Violated: ")[0] for text in red} == wrong
        visit.page.get_by_role("button", name="Undo the kill").click()
    assert losses
    visit.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("retries", {}), ("mutual", {"scheme": "dark"}), ("rounds", {"phone": True})],
    ids=["light", "dark", "phone"],
)
def test_a_page_is_accessible_and_fits_the_window(browser: Browser, name: str, options: dict[str, Any]):
    visit = Visit(browser, address(name), **options)
    for summary in visit.page.locator("summary").all():
        summary.click()
    visit.page.get_by_label("loop log").uncheck()
    visit.page.get_by_role("button", name="To the end").click()
    expect(visit.page.locator("#audit li.wrong")).not_to_have_count(0)
    visit.keep(f"play-{name}")
    assert visit.violations() == []
    wide = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0, "the page scrolls sideways"
    _note(f"play-{name}", visit.page.evaluate("performance.getEntriesByType('navigation')[0].domInteractive"))
    visit.close()


@pytest.mark.slow
def test_a_process_is_killed_and_lives_again_by_the_keyboard(browser: Browser):
    visit = Visit(browser, address("retries"))
    keys, said = visit.page.keyboard, visit.page.locator("#said")
    before = said.inner_text()
    visit.page.get_by_role("button", name="Step", exact=True).focus()
    keys.press("Enter")
    expect(said).not_to_have_text(before)
    before = said.inner_text()
    visit.page.get_by_role("button", name="try/0").focus()
    keys.press("Space")
    expect(said).to_have_text("Try/0 is killed.")
    expect(visit.page.locator("#words li", has_text="try/0 is dead")).to_have_count(1)
    # What is killed once in a recorded run is not killed again.
    keys.press("Space")
    expect(said).to_have_text("Try/0 is killed.")
    visit.page.get_by_role("button", name="Undo the kill").focus()
    keys.press("Enter")
    expect(said).to_have_text(before)
    expect(visit.page.get_by_role("button", name="parcels/0")).to_be_focused()
    visit.page.get_by_role("slider").focus()
    keys.press("End")
    expect(visit.page.locator("#verdict")).to_have_attribute("data-verdict", "whole")
    visit.page.get_by_role("button", name="Play").focus()
    keys.press("Enter")
    expect(visit.page.get_by_role("button", name="Stop")).to_be_focused()
    expect(said).to_contain_text("begin")
    visit.close()


def _note(name: str, interactive_ms: float) -> None:
    """Keep what was measured, beside the screenshots."""
    if (folder := os.environ.get(SCREENSHOTS)) is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"{name}.json").write_text(json.dumps({"interactive_ms": interactive_ms}))
