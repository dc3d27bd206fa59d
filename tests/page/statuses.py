"""Statuses as a supervisor might tell them: one with something of everything, and one of a very large run."""

from __future__ import annotations

from backedge.recovery.stores.run_status import (
    BarrierStatus,
    ChannelStatus,
    CountedStatus,
    EpochStatus,
    FailureStatus,
    HistogramStatus,
    LoopLog,
    LoopStatus,
    OperatorStatus,
    ResourceStatus,
    RunStatus,
    TaskStatus,
)

DAY_S = 1_790_000_000.0


def rich(records: int = 54_321) -> RunStatus:
    """A run with two loops, a slow operator, an open epoch, one that was given up, and a failure that has healed."""
    names = {"orders": 1, "plan": 2, "judge": 2, "think": 3, "given_up": 1, "done": 1}
    busy = {"orders": (0.1, 0.85), "plan": (0.2, 0.7), "judge": (0.15, 0.8), "think": (0.97, 0.0)}
    operators = tuple(
        OperatorStatus(
            name,
            (name, "checked") if name == "plan" else (name,),
            is_source=name == "orders",
            rate="900/s" if name == "orders" else "",
            is_sink=name in ("given_up", "done"),
            counted={
                "judge": CountedStatus(
                    {"verdicts": 1_234}, {"seconds": HistogramStatus(4, 3.0), "not_yet": HistogramStatus()}
                )
            }
            if name == "judge"
            else {},
            tasks=tuple(
                TaskStatus(index, f"a{index}", records // 3, records // 4, 812.5, 790.0, *busy.get(name, (0.02, 0.0)))
                if name != "think"
                else TaskStatus(
                    index, f"a{index}", records, 0, 812.5, 790.0, 0.97, 0.0, calls_running=8, calls_waiting=30 + index
                )
                for index in range(tasks)
            ),
        )
        for name, tasks in names.items()
    )
    edges = (
        ("orders", "plan", None),
        ("plan", "judge", None),
        ("judge", "think", None),
        ("think", "judge", "think again"),
        ("judge", "plan", "attempts"),
        ("judge", "done", None),
        ("plan", "given_up", None),
    )
    channels = tuple(
        ChannelStatus(
            f"{sender}.out->{receiver}.in",
            f"{sender}/{one}",
            f"{receiver}/{other}",
            loop,
            records,
            backlog=300 if receiver == "think" else 4,
            backlog_bytes=9_600 if receiver == "think" else 128,
            waiting_s=1.25 if receiver == "think" else 0.003,
            credit_bytes=None if loop else 12,
            window_bytes=None if loop else 9_612,
        )
        for sender, receiver, loop in edges
        for one in range(names[sender])
        for other in range(names[receiver])
    )
    loops = (
        LoopStatus("attempts", ("plan", "judge"), 1_204, 40_120, 12.5, {"1": 812, "2": 97, "3": 11, "16": 2}),
        LoopStatus("think again", ("judge", "think"), 300, 9_600, 1.25),
    )
    kept = tuple(
        EpochStatus(
            epoch,
            1 if epoch < 5 else 2,
            "aligned",
            "complete",
            savepoint="before the upgrade" if epoch == 6 else None,
            began_s=DAY_S + 2 * epoch,
            complete_s=DAY_S + 2 * epoch + 0.6,
            align_s=0.2,
            write_s=0.3 + 0.02 * epoch,
            manifest_s=0.04,
            seconds=0.55 + 0.02 * epoch,
            slowest="think/1",
            written_bytes=120_000 + 500 * epoch,
            loops={"attempts": LoopLog(4, 3_100, 97 + epoch)},
            is_kept=epoch > 5,
        )
        for epoch in (1, 2, 3, 5, 6, 7)
    )
    given_up = EpochStatus(
        4, 1, "aligned", "given up", reason="attempt 1 failed", began_s=DAY_S + 8, align_s=0.2, written_bytes=None
    )
    waiting = {"think/0": "its barriers, on 2 of 2 inputs", "think/1": "not reached", "judge/0": "its files"}
    barriers = {
        "orders": BarrierStatus(written=1),
        "plan": BarrierStatus(written=2),
        "judge": BarrierStatus(aligning=1, captured=1),
        "think": BarrierStatus(not_reached=2, aligning=1),
        "given_up": BarrierStatus(written=1),
        "done": BarrierStatus(not_reached=1),
    }
    opened = EpochStatus(8, 2, "aligned", "open", began_s=DAY_S + 16, waiting=waiting, barriers=barriers)
    failure = FailureStatus(1, DAY_S + 8.5, "actor a1 died: it was killed by signal 9", 3, 100, 1.5, 4_321, 2.5)
    return RunStatus(
        job="retries",
        run="4f",
        state="running",
        is_live=True,
        at_s=DAY_S + 17,
        seconds=17.0,
        snapshots=None,
        attempt=2,
        last_epoch=7,
        cuts=6,
        records=records,
        hops=3 * records,
        operators=operators,
        channels=channels,
        loops=loops,
        epochs=tuple(sorted((*kept, given_up, opened), key=lambda epoch: epoch.epoch)),
        failures=(failure,),
        resources={"db": ResourceStatus(open=3, opened=1_005)},
    )


def large(step: int, operators: int = 40, tasks: int = 5) -> RunStatus:
    """A run of 200 tasks and 2,000 channels whose figures all change with each step."""
    names = [f"operator_{number}" for number in range(operators)]
    edges = [
        (number, number + width) for width in (1, 4, 9) for number in range(operators) if number + width < operators
    ]
    # As many as make 2,000 channels, the last of them a loop.
    edges = [*edges[: 2_000 // tasks**2 - 1], (operators - 2, 3)]
    return RunStatus(
        job="large",
        run="5a",
        state="running",
        is_live=True,
        at_s=DAY_S + step,
        seconds=float(step),
        snapshots=None,
        attempt=1,
        last_epoch=None,
        cuts=0,
        records=10_000 * step,
        operators=tuple(
            OperatorStatus(
                name,
                (name,),
                is_source=number == 0,
                is_sink=number == operators - 1,
                tasks=tuple(
                    TaskStatus(
                        index, f"a{index}", 1_000 * step, 999 * step, 7.0 + step, 8.0 + step, 0.01 * (step % 90), 0.05
                    )
                    for index in range(tasks)
                ),
            )
            for number, name in enumerate(names)
        ),
        channels=tuple(
            ChannelStatus(
                f"{names[sender]}.out->{names[receiver]}.in",
                f"{names[sender]}/{one}",
                f"{names[receiver]}/{other}",
                "again" if receiver < sender else None,
                1_000 * step,
                backlog=step + sender,
                backlog_bytes=32 * (step + sender),
                waiting_s=0.001 * step,
                credit_bytes=None if receiver < sender else 1_000,
                window_bytes=None if receiver < sender else 4_000,
            )
            for sender, receiver in edges
            for one in range(tasks)
            for other in range(tasks)
        ),
        loops=(LoopStatus("again", tuple(names[3:-1]), 40 * step, 1_280 * step, 0.001 * step),),
    )
