"""Token ring: mutual exclusion; only the member that holds the token may use a shared resource.

    python -m examples.cyclic.token_ring --kill members@epoch=2 --kill press@epoch=4 --audit final
    backedge compare examples.cyclic.token_ring --kills 3 --seed 7

A dozen members share a printing press, and print requests arrive all the time. The token travels from member to
member; a member with a request that receives it enters the press room, prints one page, leaves, and passes the token
on. Similar loops: a lease, a leader or a write permission that is passed on, or turns in a game.

Guaranteed, and checked in every cut: there is exactly one token, and only the member admitted by it is in the press
room. A lost token would stop the ring for good; a duplicated one would admit two members at once. In the end every
request is printed once, the requests of each member in order, on consecutive pages. Not guaranteed: which request gets
which page, because that depends on where the token is when the request arrives.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from backedge import Collect, Flow, JsonLines

if TYPE_CHECKING:  # no process of the flow's waits for PySpark
    from pyspark.sql import DataFrame, SparkSession

Record = dict[str, Any]

SIZE = 1_000
"""How many wishes there are. The token retires when so many pages are printed."""

SECONDS = 3.0
"""Within this time the wishes come, whatever their number. Printing a page and walking on take a moment each."""

MEMBERS = 12
SINK = "prints"
KEYS = ("wish",)

INVARIANTS = {
    # The token that has left its source is on its way, or has retired.
    "one token": """
        SELECT * FROM (SELECT count(*) AS on_the_way FROM in_flight WHERE loop = 'round'),
                      (SELECT sum(records) AS begun FROM operators WHERE operator = 'token'),
                      (SELECT sum(records) AS retired FROM operators WHERE operator = 'retired')
        WHERE on_the_way + retired <> begun OR begun > 1""",
    # The token says whom it has let in. That member says so too, and no other.
    "nobody else inside": """
        SELECT * FROM (SELECT key_int AS inside FROM state
                       WHERE operator = 'members' AND get_json_object(value, '$.inside') = 'true')
        FULL JOIN (SELECT cast(get_json_object(record, '$.member') AS BIGINT) AS let_in FROM in_flight
                   WHERE loop = 'round' AND get_json_object(record, '$.let_in') = 'true')
        ON inside = let_in WHERE inside IS NULL OR let_in IS NULL""",
    # Every time that a member went in, the press has printed one page, and the token knows of it.
    "pages without a gap": """
        SELECT * FROM (SELECT coalesce(sum(get_json_object(value, '$.turns')), 0) AS turns FROM state
                       WHERE operator = 'members'),
                      (SELECT coalesce(sum(value_int), 0) AS pages FROM state WHERE operator = 'press'),
                      (SELECT max(cast(get_json_object(record, '$.page') AS BIGINT)) AS told FROM in_flight
                       WHERE loop = 'round')
        WHERE turns <> pages OR told <> pages""",
}


class Members:
    """State by member: the wishes that wait, how many were printed, and whether the member is in the press room."""

    inputs = ("wishes", "token")
    outputs = ("let_in", "passed", "retired")

    def on_record(self, ctx: Any, input: str, record: Record) -> None:
        """A wish comes, or the token does."""
        member = ctx.state.get({"waiting": [], "turns": 0, "inside": False})
        if input == "wishes":
            ctx.state.set({**member, "waiting": [*member["waiting"], record["wish"]]})
        elif member["waiting"] and not member["inside"]:
            wish, *waiting = member["waiting"]
            turn = member["turns"] + 1
            ctx.state.set({"waiting": waiting, "turns": turn, "inside": True})
            ctx.emit({**record, "let_in": True, "wish": wish, "turn": turn}, output="let_in")
        else:
            ctx.state.set({**member, "inside": False})
            is_over = record["page"] == record["pages"]
            following = {**record, "let_in": False, "member": (ctx.key + 1) % MEMBERS}
            ctx.emit(following, output="retired" if is_over else "passed")


def prepare(spark: SparkSession, inputs: str, size: int, seed: int = 0) -> None:
    """The wishes, each of some member, and the one token."""
    from pyspark.sql import functions as F

    member = F.pmod(F.xxhash64("id", F.lit(seed)), F.lit(MEMBERS)).alias("member")
    wishes = spark.range(size).select(F.col("id").alias("wish"), member)
    wishes.coalesce(1).write.mode("overwrite").json(f"{inputs}/wishes")
    token = spark.sql(f"SELECT 0 AS member, 0 AS page, {size} AS pages, 'press' AS press")
    token.coalesce(1).write.mode("overwrite").json(f"{inputs}/token")


def flow(inputs: str, size: int = SIZE) -> Flow:
    """The graph. The members are the head: the token comes round to them from the press, and from each other."""
    rate, pause_s = size / SECONDS, SECONDS / size / 6

    def print_page(pages: int, token: Record) -> tuple[int, Record]:
        time.sleep(pause_s)
        return pages + 1, {**token, "page": pages + 1}

    def walk(token: Record) -> Record:
        time.sleep(pause_s)
        return token

    flow = Flow("token_ring")
    wishes = flow.read(JsonLines(f"{inputs}/wishes"), rate=rate, name="wishes")
    token = flow.read(JsonLines(f"{inputs}/token"), name="token")
    round = flow.loop("round", of=dict[str, Any])
    members = flow.process(
        Members, wishes=wishes.key_by("member"), token=token.merge(round).key_by("member"), name="members"
    )
    printed = members.key_by("press").stateful_map(print_page, initial=0, name="press")
    round.feed(printed.merge(members.side("passed").rebalance().map(walk, name="walk")))
    entries = printed.map(
        lambda token: {name: token[name] for name in ("wish", "member", "turn", "page")}, name="entries"
    )
    entries.write(Collect(), name="prints")
    members.side("retired").write(Collect(), name="retired")
    return flow


def reference(spark: SparkSession, inputs: str) -> DataFrame:
    """Every wish is printed, and a member's wishes one after the other."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    turn = F.row_number().over(Window.partitionBy("member").orderBy("wish")).alias("turn")
    return spark.read.json(f"{inputs}/wishes").select("wish", "member", turn)


def promised(spark: SparkSession, inputs: str, result: DataFrame) -> DataFrame:
    """The prints whose page is not the one behind the page before, or that are on a page before an earlier turn's."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    page = F.row_number().over(Window.orderBy("page", "wish"))
    turn = F.row_number().over(Window.partitionBy("member").orderBy("page", "wish"))
    numbered = result.select("*", page.alias("wanted_page"), turn.alias("wanted_turn"))
    return numbered.where("page <> wanted_page OR turn <> wanted_turn")


def show(rows: list[Record]) -> None:
    """How often each member was in the press room."""
    for member in range(MEMBERS):
        wishes = sorted(row["wish"] for row in rows if row["member"] == member)
        print(
            f"member {member:>2} printed {len(wishes):>4} pages, of the wishes {', '.join(map(str, wishes[:8]))}, ..."
        )


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)
