"""Ways to tamper with a cut; each returns the statement that it violates and what the finding must name."""

from __future__ import annotations

import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from backedge.graphs.routing import key_group
from backedge.recovery.spark.audit.manifest_checks import channel_name
from backedge.recovery.stores.documents import sealed
from tests.spark.forging import Facts, ForgedChannels, Row, plain

ONWARD = "grow.out->enough.in"


def logged(manifest: Facts) -> list[Facts]:
    """The channels between actors whose log holds several batches, those with the most first."""
    between = {ends(c) for c in manifest["deployment"]["channels"] if not c["within_actor"]}
    found = [
        channel
        for task in manifest["tasks"]
        for channel in task["channels"]
        if (channel["log_count"] or 0) > 1 and (ends_of(channel) in between and not channel["channel"]["restored"])
    ]
    return sorted(found, key=lambda channel: -channel["log_count"])


def ends(channel: Facts) -> tuple[Any, ...]:
    return tuple(channel[name] for name in ("edge", "sender", "sender_index", "receiver", "receiver_index"))


def ends_of(channel: Facts) -> tuple[Any, ...]:
    told = channel["channel"]
    return (told["edge"], *told["sender"], *told["receiver"])


def row_ends(row: Row) -> tuple[Any, ...]:
    return ends(row) if not row["restored"] else ()


class Subject(ForgedChannels):
    """The run, copied to be changed in one of its cuts with output and several long logs, and a channel in that."""

    def __init__(self, job: Path, copy: Path) -> None:
        super().__init__(job, copy)
        epochs = sorted(self.manifests)
        self.before = dict(pairwise(reversed(epochs)))
        attempts = {epoch: manifest["attempt"] for epoch, manifest in self.manifests.items()}
        logs = {e: logged(self.manifests[e]) for e, b in self.before.items() if attempts[b] == attempts[e] == 2}
        self.suitable = sorted(
            (epoch for epoch in logs if len(logs[epoch]) > 1 and self.has_output(epoch)),
            key=lambda epoch: -sum(channel["log_count"] for channel in logs[epoch]),
        )
        self.turn_to(self.apart()[0])

    def turn_to(self, epoch: int, place: int = 0) -> None:
        """Change this cut from now on, and of its channels that are alike the one at this place."""
        self.epoch, self.place = epoch, place
        self.manifest = self.manifests[epoch]
        self.channel = ends_of(logged(self.manifest)[place])
        self.log = self.file(epoch, "log", self.channel[3], self.channel[4])

    def apart(self) -> list[int]:
        """Suitable cuts, none of which is compared with another of them; before the first of them, numbers are read."""
        found: list[int] = []
        for epoch in self.suitable:
            if not any({epoch, other} & {self.before.get(other), self.before.get(epoch)} for other in found):
                found.append(epoch)
        return sorted(found)

    def has_output(self, epoch: int) -> bool:
        """Whether the first task of the sink has prepared something: early cuts have nothing."""
        return any("/table=transactions/" in file["name"] for file in self.task(epoch, "done", 0)["files"])

    def change_log(self, change: Callable[[list[Row]], list[Row]]) -> None:
        """Change the entries of the channel; each lies where it lay, whatever it is."""

        def changed(rows: list[Row]) -> list[Row]:
            mine = [row for row in rows if row_ends(row) == self.channel]
            others = [row for row in rows if row_ends(row) != self.channel]
            return [{**row, "position": place} for place, row in enumerate([*others, *change(mine)])]

        super().change(self.log, changed)

    def shift(self, direction: str, channel: tuple[Any, ...], by: int) -> None:
        """Change what one end has counted."""
        task, index = channel[1:3] if direction == "out" else channel[3:]
        for told in self.task(self.epoch, task, index)["channels"]:
            is_it = told["direction"] == direction and ends_of(told) == channel and not told["channel"]["restored"]
            told["count"] += by * is_it

    def between_actors(self, edge: str) -> tuple[Any, ...]:
        """A channel of an edge that has digests."""
        found = self.manifest["deployment"]["channels"]
        return [ends(c) for c in found if c["edge"] == edge and not c["within_actor"]][self.place]


Mutation = Callable[[Subject], tuple[int, str]]
"""Changes a cut; returns the statement that is violated then, and what the finding must name."""


# -- the mutations ------------------------------------------------------------------------------------------------


def change_entries(change: Callable[[list[Row]], list[Row]]) -> Mutation:
    def changed(cut: Subject) -> tuple[int, str]:
        cut.change_log(change)
        return 2, channel_name(*cut.channel)

    return changed


def count_one_more(direction: str, statement: int) -> Mutation:
    def counted(cut: Subject) -> tuple[int, str]:
        channel = cut.channel if statement == 2 else cut.between_actors(ONWARD)
        cut.shift(direction, channel, 1)
        return statement, channel_name(*channel)

    return counted


def say_another(what: str, value: Callable[[Any], Any]) -> Mutation:
    def said(cut: Subject) -> tuple[int, str]:
        cut.manifest[what] = value(cut.manifest[what])
        return 5, f"the manifest says {what}"

    return said


def change_graph(statement: int, words: str, change: Callable[[Facts], None]) -> Mutation:
    def changed(cut: Subject) -> tuple[int, str]:
        (file,) = cut.path.glob("graph-*.json")
        document = plain(file)
        change(document["graph"])
        file.write_bytes(sealed(document, None))
        return statement, words

    return changed


def swap_two_payloads(cut: Subject) -> tuple[int, str]:
    cut.change_log(
        lambda log: [{**log[0], "payload": log[1]["payload"]}, {**log[1], "payload": log[0]["payload"]}, *log[2:]]
    )
    return 2, "was changed"


def edit_an_entry_and_the_digests_after_it(cut: Subject) -> tuple[int, str]:
    def changed(log: list[Row]) -> list[Row]:
        log[0]["payload"] = EDITED
        digest = log[0]["digest_before"]
        for row in log:
            row["digest_before"] = digest
            digest = row["digest_after"] = zlib.crc32(row["payload"], digest)
        return log

    cut.change_log(changed)
    return 2, "the sent ones"


def count_less_than_the_cut_before(cut: Subject) -> tuple[int, str]:
    channel = cut.between_actors(ONWARD)
    for direction, (task, index) in {"in": channel[3:], "out": channel[1:3]}.items():
        ends = cut.task(cut.epoch, task, index)["channels"]
        (count,) = [end["count"] for end in ends if end["direction"] == direction and ends_of(end) == channel]
        cut.shift(direction, channel, -count)
    return 8, channel_name(*channel)


def mix_two_epochs(cut: Subject) -> tuple[int, str]:
    other = cut.task(cut.before[cut.epoch], "enough", 1)
    cut.task(cut.epoch, "enough", 1).update(other)
    return 5, "enough/1"


def mix_two_epochs_under_one_name(cut: Subject) -> tuple[int, str]:
    ours, theirs = cut.task(cut.epoch, "enough", 1), cut.task(cut.before[cut.epoch], "enough", 1)
    ours["channels"] = theirs["channels"]
    return 3, "enough/1"


def mix_two_attempts(cut: Subject) -> tuple[int, str]:
    first = min(cut.manifests)
    cut.task(cut.epoch, "enough", 1).update(cut.task(first, "enough", 1), epoch=cut.epoch, filed=cut.epoch)
    return 5, "attempt 1"


def leave_out_a_channel(cut: Subject) -> tuple[int, str]:
    channel = cut.between_actors(ONWARD)
    deployment = cut.manifest["deployment"]
    deployment["channels"] = [told for told in deployment["channels"] if ends(told) != channel]
    for name, index in (channel[1:3], channel[3:]):
        task = cut.task(cut.epoch, name, index)
        task["channels"] = [told for told in task["channels"] if ends_of(told) != channel]
    return 5, channel_name(*channel)


def file_an_end_of_a_channel_under_another_task(cut: Subject) -> tuple[int, str]:
    channel = cut.between_actors(ONWARD)
    task, other = (cut.task(cut.epoch, channel[3], index) for index in (channel[4], 1 - channel[4]))
    (moved,) = [told for told in task["channels"] if ends_of(told) == channel]
    task["channels"].remove(moved)
    other["channels"].append(moved)
    return 5, "filed under another task"


def leave_out_an_end_of_a_channel(cut: Subject) -> tuple[int, str]:
    channel = cut.between_actors(ONWARD)
    task = cut.task(cut.epoch, channel[3], channel[4])
    task["channels"] = [told for told in task["channels"] if ends_of(told) != channel]
    return 5, channel_name(*channel)


def leave_out_a_task(cut: Subject) -> tuple[int, str]:
    for tasks in (cut.manifest["tasks"], cut.manifest["deployment"]["tasks"]):
        tasks[:] = [task for task in tasks if (task["task"], task["index"]) != ("done", 1)]
    cut.entry(cut.epoch)["files"] = [told for told in cut.entry(cut.epoch)["files"] if told[:2] != ["done", 1]]
    return 5, "'done'"


def leave_out_a_file_of_state(cut: Subject) -> tuple[int, str]:
    name = cut.file(cut.epoch, "state", "grow", 1)
    task = cut.task(cut.epoch, "grow", 1)
    # The file itself stays: later cuts may be on top of it.
    task["files"] = [file for file in task["files"] if file["name"] != name]
    return 5, "grow/1"


def leave_out_a_log(cut: Subject) -> tuple[int, str]:
    task = cut.task(cut.epoch, *cut.channel[3:])
    task["files"] = [file for file in task["files"] if file["name"] != cut.log]
    (cut.path / cut.log).unlink()
    return 5, "table=log"


def change_a_value(cut: Subject) -> tuple[int, str]:
    name = cut.file(cut.epoch, "state", "grow", 0)
    cut.change(name, lambda rows: [{**rows[0], "value_int": rows[0]["value_int"] + 1}, *rows[1:]])
    return 7, "every number has made as many trips as were counted"


def move_state_to_another_task(cut: Subject) -> tuple[int, str]:
    name = cut.file(cut.epoch, "state", "grow", 0)
    cut.change(name, lambda rows: [{**rows[0], "key_group": 127}, *rows[1:]])
    return 5, "grow/0"


def change_a_position(cut: Subject) -> tuple[int, str]:
    split = cut.task(cut.epoch, "numbers", 0)["operators"][0]["splits"][0]
    split[1] = pickle.dumps(pickle.loads(bytes.fromhex(split[1])) + 1).hex()
    return 6, "'numbers'"


def leave_out_a_split(cut: Subject) -> tuple[int, str]:
    cut.task(cut.epoch, "numbers", 0)["operators"][0]["splits"].pop()
    return 8, "is missing"


def leave_out_all_splits_of_a_task(cut: Subject) -> tuple[int, str]:
    cut.task(cut.epoch, "numbers", 0)["operators"][0]["splits"].clear()
    return 5, "no split"


def go_back_to_an_earlier_position(cut: Subject) -> tuple[int, str]:
    source = cut.task(cut.epoch, "numbers", 0)["operators"][0]
    read = pickle.loads(bytes.fromhex(source["splits"][0][1]))
    source["splits"][0][1] = pickle.dumps(0).hex()
    source["records"] -= read
    return 8, "'numbers'"


def change_what_a_transaction_holds(cut: Subject) -> tuple[int, str]:
    name = cut.file(cut.epoch, "transactions", "done", 0)
    cut.change(name, lambda rows: [*rows[:-1], {**rows[-1], "records": rows[-1]["records"] + 1}])
    return 6, "'done'"


def give_a_transaction_another_epoch(cut: Subject) -> tuple[int, str]:
    name = cut.file(cut.epoch, "transactions", "done", 0)
    cut.change(name, lambda rows: [*rows[:-1], {**rows[-1], "epoch": rows[-1]["epoch"] - 1}])
    return 6, "the name of transaction"


def hide_that_a_channel_has_digests(cut: Subject) -> tuple[int, str]:
    for told in cut.manifest["deployment"]["channels"]:
        told["within_actor"] |= ends(told) == cut.channel
    return 5, channel_name(*cut.channel)


def have_a_key_group_in_two_files(cut: Subject) -> tuple[int, str]:
    split_state(cut)
    return 5, "out of order or in two files"


def list_key_groups_out_of_order(cut: Subject) -> tuple[int, str]:
    split_state(cut)
    first, second = state_files(cut)
    first["groups"], second["groups"] = second["groups"], first["groups"]
    return 5, "out of order or in two files"


def state_files(cut: Subject) -> list[Facts]:
    """What the manifest says of the files with the state of grow/0."""
    name = cut.file(cut.epoch, "state", "grow", 0).removesuffix(".parquet")
    return [file for file in cut.task(cut.epoch, "grow", 0)["files"] if file["name"].startswith(name)]


def split_state(cut: Subject) -> None:
    """Make two files of the state of grow/0, in the middle of a key group."""
    (first,) = state_files(cut)
    groups = [row["key_group"] for row in cut.rows(first["name"])]
    place = next((place for place in range(1, len(groups)) if groups[place] == groups[place - 1]), len(groups))
    if place == len(groups):
        # A delta need not have two keys of a group.
        other = next(key for key in count(1_000) if key_group(key) == groups[-1])
        cut.change(first["name"], lambda rows: [*rows, {**rows[-1], "key_int": other}])
    second = {**first, "name": first["name"].replace("grow.0.parquet", "grow.0-1.parquet")}
    files = cut.task(cut.epoch, "grow", 0)["files"]
    files.insert(files.index(first) + 1, second)
    shutil.copy(cut.path / first["name"], cut.path / second["name"])
    cut.change(first["name"], lambda rows: rows[:place])
    cut.change(second["name"], lambda rows: rows[place:])


def move_a_key_to_another_task(cut: Subject) -> tuple[int, str]:
    """It takes its place in the other task's groups."""
    here, there = (cut.file(cut.epoch, "state", "grow", task) for task in (0, 1))
    (moved, *_) = cut.rows(here)
    cut.change(here, lambda rows: rows[1:])
    cut.change(there, lambda rows: [{**moved, "key_group": rows[0]["key_group"]}, *rows])
    cut.task(cut.epoch, "grow", 0)["state_rows"] -= 1
    cut.task(cut.epoch, "grow", 1)["state_rows"] += 1
    return 5, "grow/1"


def leave_out_a_count_of_a_channel(cut: Subject) -> tuple[int, str]:
    cut.task(cut.epoch, "grow", 0)["channels"][0]["count"] = None
    return 1, "counts[0] is wrong"


def have_a_position_that_is_no_number(cut: Subject) -> tuple[int, str]:
    split = cut.task(cut.epoch, "numbers", 0)["operators"][0]["splits"][0]
    split[1] = pickle.dumps("somewhere").hex()
    return 6, "not a number of records"


def put_both_ends_of_a_channel_into_one_actor(cut: Subject) -> tuple[int, str]:
    tasks = {(task["task"], task["index"]): task for task in cut.manifest["deployment"]["tasks"]}
    sender, receiver = tasks[cut.channel[1:3]], tasks[cut.channel[3:]]
    sender["actor"] = receiver["actor"]
    actors = {id: task["actor"] for id, task in tasks.items()}
    for told in cut.manifest["deployment"]["channels"]:
        ids = (told["sender"], told["sender_index"]), (told["receiver"], told["receiver_index"])
        told["within_actor"] = actors[ids[0]] == actors[ids[1]]
    return 5, "cannot host this task"


def name_another_file_as_the_manifest(cut: Subject) -> tuple[int, str]:
    cut.named[cut.epoch] = "epoch=1/attempt=1/other.json"
    return 5, "as its manifest"


def link_to_the_same_bytes_outside(cut: Subject) -> tuple[int, str]:
    path = cut.path / cut.file(cut.epoch, "state", "grow", 0)
    outside = path.rename(cut.path.parent / "outside.parquet")
    path.symlink_to(outside)
    return 5, "is a symbolic link"


def put_a_pipe_in_place_of_a_file(cut: Subject) -> tuple[int, str]:
    path = cut.path / cut.file(cut.epoch, "state", "grow", 0)
    cut.replaced[path] = os.mkfifo
    return 5, "is not a regular file"


def leave_out_the_last_entries(cut: Subject) -> tuple[int, str]:
    number = next(n for n, entry in enumerate(cut.entries) if entry["manifest"] and entry["epoch"] == cut.epoch)
    assert len(cut.entries) > number + 2
    for file in sorted((cut.path / "chain").glob("*.json"))[number + 1 :]:
        file.unlink()
    del cut.entries[number + 1 :]
    return 5, "its last entries are missing"


def forget_back_edges(graph: Facts) -> None:
    for edge in graph["edges"]:
        edge["loop"] = None


def broadcast_what_is_hashed(graph: Facts) -> None:
    next(edge for edge in graph["edges"] if edge["routing"] == "hash")["routing"] = "broadcast"


def say_another_version_of_state(graph: Facts) -> None:
    next(operator for operator in graph["operators"] if operator["kind"] == "stateful_map")["state_version"] = 2


EDITED = pickle.dumps(([(1, 1)], 0), 5)

MUTATIONS: dict[str, Mutation] = {
    "drop_an_entry": change_entries(lambda log: log[:-1]),
    "drop_the_first_entry": change_entries(lambda log: log[1:]),
    "double_an_entry": change_entries(lambda log: [log[0], *log]),
    "swap_two_entries": change_entries(lambda log: [log[1], log[0], *log[2:]]),
    "edit_an_entry": change_entries(lambda log: [{**log[0], "payload": EDITED}, *log[1:]]),
    "count_one_more_as_consumed": count_one_more("in", 1),
    "count_one_more_as_sent": count_one_more("out", 3),
    "count_one_more_as_sent_into_the_loop": count_one_more("out", 2),
    "say_another_epoch": say_another("epoch", lambda epoch: epoch + 1),
    "say_another_attempt": say_another("attempt", lambda attempt: attempt + 1),
    "say_another_mode": say_another("mode", lambda _: "unaligned"),
    "say_that_it_is_a_savepoint": say_another("savepoint", lambda _: "before"),
    "route_an_edge_otherwise": change_graph(5, "the stored graph has hash", broadcast_what_is_hashed),
    "say_that_state_has_another_version": change_graph(5, "the stored graph has hash", say_another_version_of_state),
    "forget_that_an_edge_goes_back": change_graph(4, "enough, grow", forget_back_edges),
    **{
        mutation.__name__: mutation
        for mutation in (
            *(have_a_key_group_in_two_files, list_key_groups_out_of_order, move_a_key_to_another_task),
            *(leave_out_a_count_of_a_channel, have_a_position_that_is_no_number, leave_out_the_last_entries),
            *(put_both_ends_of_a_channel_into_one_actor, name_another_file_as_the_manifest),
            *(link_to_the_same_bytes_outside, put_a_pipe_in_place_of_a_file, swap_two_payloads),
            *(edit_an_entry_and_the_digests_after_it, count_less_than_the_cut_before, mix_two_epochs),
            *(mix_two_epochs_under_one_name, mix_two_attempts, leave_out_a_channel, leave_out_an_end_of_a_channel),
            *(file_an_end_of_a_channel_under_another_task, leave_out_a_task, leave_out_a_file_of_state),
            *(leave_out_a_log, change_a_value, move_state_to_another_task, change_a_position, leave_out_a_split),
            *(leave_out_all_splits_of_a_task, go_back_to_an_earlier_position, change_what_a_transaction_holds),
            *(give_a_transaction_another_epoch, hide_that_a_channel_has_digests),
        )
    },
}
