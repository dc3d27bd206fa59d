"""What a run tells is read from another thread while it is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from engine.on_ray.story import Story


class ReadMeanwhile(Mapping[str, int]):
    """Processes that note what a driver would see while they are put down."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.seen: list[tuple[str, dict[str, int]]] = []

    def __getitem__(self, actor: str) -> int:
        self.seen.append((self.story.state, self.story.pids))
        return 22

    def __iter__(self) -> Iterator[str]:
        return iter(["grow/0"])

    def __len__(self) -> int:
        return 1


def test_who_sees_a_run_that_has_recovered_sees_its_new_processes():
    story = Story("rank", attempt=1, pids={"grow/0": 11})
    story.on_restart("the process of actor grow/0 died")
    found = ReadMeanwhile(story)
    story.on_running(found)
    assert found.seen == [("recovering", {"grow/0": 11})]
    assert (story.state, story.pids) == ("running", {"grow/0": 22})
