"""Async training: a policy learns to balance a pole from episodes played with slightly outdated weights.

    python -m examples.cyclic.async_training --kill rollouts@epoch=2 --kill learner@epoch=4 --audit final
    backedge compare examples.cyclic.async_training --kills 3 --seed 1

A small reinforcement-learning loop: orders (play this episode with that version of the weights) go to the rollouts, a
judge computes the reward, and the learner takes a step (REINFORCE with a baseline), publishes its new weights and sends
the next orders over the back edge. Rollouts do not wait for the learner: their weights are exactly `STALE` steps old.
Some episodes are fifty times as long as others. They are played in turns of at most `TURN` steps, after which they go
round a loop of their own: a long one delays no other, and after a crash it goes on at the turn where it was.

Guaranteed, whatever is killed: every sample is used exactly once, in its own batch, however late it comes, and the
learner ends up identical bit for bit to an undisturbed run, because the random numbers of an episode follow from its
number and each batch is processed in the order of its episodes. A cut shows the samples ordered but not used: they are
in a loop or wait at the learner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from backedge import Flow, Items, JsonLines, Versions

Record = dict[str, Any]

EPISODES = 16  # of a batch; each batch is one step of the learner
STALE = 1  # how many steps old the weights are that a batch is played with
STEPS_MAX, TURN, STEP_SIZE = 200, 25, 0.5
COIN, LEANING = [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1000.0, 0.0]  # weights to beat: chance, and push where the pole leans

SIZE = 960  # samples, that is episodes
SINK, KEYS, TOLERANCES = "used", ("batch", "episode"), {"reward": 1e-6, "advantage": 1e-6}
UNUSED = """
    WITH learner AS (SELECT from_json(value, 'updates INT, ordered INT, used INT, waiting ARRAY<STRUCT<batch INT,
                            episode INT>>') AS has FROM state WHERE operator = 'learner' AND kind = 'value'),
         unused AS (SELECT from_json(record, 'batch INT, episode INT') AS sample FROM in_flight
                    UNION ALL SELECT explode(has.waiting) FROM learner)"""
INVARIANTS = {
    "no sample is in two places, nor comes again after it was used": f"""{UNUSED}
        SELECT sample, count(*) AS places FROM unused LEFT JOIN learner GROUP BY sample, has.updates
        HAVING count(*) > 1 OR sample.batch < has.updates""",
    "what was ordered is used, in flight or waiting, and what was used is written": f"""{UNUSED}
        SELECT * FROM (SELECT (SELECT sum(records) FROM operators WHERE operator = 'first_orders') AS first,
                              (SELECT sum(records) FROM operators WHERE operator = 'used') AS written,
                              (SELECT coalesce(sum(has.ordered), 0) FROM learner) AS ordered,
                              (SELECT coalesce(sum(has.used), 0) FROM learner) AS used,
                              (SELECT count(*) FROM unused) AS unused)
        WHERE first + ordered != used + unused OR used != written""",
}


def orders(batch: int) -> list[Record]:
    """The episodes of a batch that are to be played, and with which version of the weights: 0 is a coin."""
    order = {"policy": "pole", "batch": batch, "version": max(0, batch - STALE)}
    return [{**order, "episode": episode} for episode in range(EPISODES)]


class Pole:
    """The environment: a cart is pushed left or right until its pole falls."""

    def reset(self, luck: list[float]) -> list[float]:
        """What is seen at first: where the cart is, and how fast; how far the pole leans, and how fast it falls."""
        return [(number - 0.5) / 10 for number in luck]

    def step(self, seen: list[float], right: bool) -> tuple[list[float], bool]:
        """What is seen after a push, and whether that is the end."""
        x, dx, angle, turning = seen
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if right else -10.0) + 0.05 * turning**2 * sine) / 1.1
        torque = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        x, dx = x + 0.02 * dx, dx + 0.02 * (push - 0.05 * torque * cosine / 1.1)
        angle, turning = angle + 0.02 * turning, turning + 0.02 * torque
        return [x, dx, angle, turning], abs(x) > 2.4 or abs(angle) > 0.2095


def play(weights: list[float], luck: list[float], episode: Record | None = None, steps: int = STEPS_MAX) -> Record:
    """At most so many steps of an episode. `score` is the slope of the log chances of its choices."""
    pole = Pole()
    episode = episode or {"seen": pole.reset(luck[:4]), "score": [0.0] * 4, "drift": 0.0, "steps": 0, "is_over": False}
    seen, score, drift, done, is_over = (episode[name] for name in ("seen", "score", "drift", "steps", "is_over"))
    for number in luck[4 + done :][:steps]:
        lean = sum(weight * value for weight, value in zip(weights, seen, strict=True))
        chance = 1 / (1 + math.exp(-max(-30.0, min(30.0, lean))))
        right = number < chance
        score = [slope + (right - chance) * value for slope, value in zip(score, seen, strict=True)]
        seen, is_over = pole.step(seen, right)
        done, drift = done + 1, drift + abs(seen[0])
        if is_over:
            break
    is_over = is_over or done == STEPS_MAX
    return {"seen": seen, "score": score, "drift": drift, "steps": done, "is_over": is_over}


def rollout(weights: Versions, seed: int, pause_s: float) -> Callable[[Record], Record]:
    """Plays a turn of what is ordered. The pause stands for a simulator that has more to compute."""

    def sample(order: Record) -> Record:
        time.sleep(pause_s)
        luck = np.random.default_rng([seed, order["batch"], order["episode"]]).random(4 + STEPS_MAX)
        version = order["version"]
        played = play(weights[version] if version else COIN, luck.tolist(), order.get("played"), TURN)
        return {**order, "played": played}

    return sample


def judged(sample: Record) -> Record:
    """A point for each step, less for being off the middle."""
    played = sample.pop("played")
    return {**sample, **played, "reward": played["steps"] - 0.5 * played["drift"]}


def learned(weights: list[float], samples: list[Record]) -> tuple[list[float], list[float]]:
    """The weights after a step towards what was better than the average of its batch, and how much better each was."""
    mean = sum(sample["reward"] for sample in samples) / len(samples)
    spread = math.sqrt(sum((sample["reward"] - mean) ** 2 for sample in samples) / len(samples)) or 1.0
    better = [(sample["reward"] - mean) / spread for sample in samples]
    slope = [sum(gain * sample["score"][i] for gain, sample in zip(better, samples, strict=True)) for i in range(4)]
    length = math.hypot(*slope) or 1.0
    return [weight + STEP_SIZE * part / length for weight, part in zip(weights, slope, strict=True)], better


def learner(published: Versions, batches: int) -> type[Any]:
    """The operator that learns from so many batches, and publishes a version of the weights after each."""

    class Learner:
        outputs = ("orders", "used")

        def on_record(self, ctx: Any, sample: Record) -> None:
            """Learn as soon as the batch whose turn it is has all its samples; order more with the new weights."""
            state = ctx.state.get() or {"updates": 0, "ordered": 0, "used": 0, "waiting": []}
            turn, waiting = state["updates"], [*state["waiting"], sample]
            batch = sorted((one for one in waiting if one["batch"] == turn), key=lambda one: one["episode"])
            if len(batch) < EPISODES:
                ctx.state.set({**state, "waiting": waiting})
                return
            weights, better = learned(published[turn] if turn else COIN, batch)
            ctx.publish(published, weights)
            for one, advantage in zip(batch, better, strict=True):
                told = {name: one[name] for name in ("batch", "episode", "version", "steps", "reward")}
                ctx.emit({**told, "advantage": advantage}, output="used")
            ordered = orders(turn + 1 + STALE) if turn + 1 + STALE < batches else []
            for order in ordered:
                ctx.emit(order)
            counts = {"ordered": state["ordered"] + len(ordered), "used": state["used"] + len(batch)}
            waiting = [one for one in waiting if one["batch"] > turn]
            ctx.state.set({"updates": turn + 1, **counts, "waiting": waiting})

    return Learner


def flow(output: str = "async_training", size: int = SIZE, seed: int = 0, seconds: float = 4) -> Flow:
    """The graph: the rollouts are the head of the loop, the learner is its body. All pauses take so many seconds."""
    batches = max(STALE + 1, size // EPISODES)
    first = [order for batch in range(STALE + 1) for order in orders(batch)]
    flow = Flow("async_training")
    weights = flow.versions("weights", keep=STALE + 1)
    ordered, turns = flow.loop("orders", of=dict), flow.loop("turns", of=dict)
    playing = flow.read(Items(first), name="first_orders").merge(ordered, turns).rebalance()
    played = playing.map(rollout(weights, seed, seconds / size / 4), name="rollouts")
    over, going_on = played.split(lambda sample: sample["played"]["is_over"], name="is_over")
    turns.feed(going_on)
    samples = over.map(judged, name="judge")
    learning = samples.key_by("policy").process(learner(weights, batches), name="learner")
    ordered.feed(learning)
    learning.side("used").write(JsonLines(f"{output}/used"), name=SINK)
    return flow


def reference(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> Any:
    """The same training computed with arrays, all episodes of a batch at once, in one Spark task."""
    from pyspark.sql.functions import udtf

    class Training:
        def eval(self) -> Iterator[tuple[Any, ...]]:
            history = [np.zeros(4)]
            for batch in range(max(STALE + 1, size // EPISODES)):
                version = max(0, batch - STALE)
                steps, reward, score = self.batch(history[version], batch)
                advantage = (reward - reward.mean()) / (reward.std() or 1.0)
                slope = advantage @ score
                history.append(history[-1] + STEP_SIZE * slope / (np.linalg.norm(slope) or 1.0))
                for episode, row in enumerate(zip(steps.tolist(), reward.tolist(), advantage.tolist(), strict=True)):
                    yield batch, episode, version, *row

        def batch(self, weights: Any, batch: int) -> tuple[Any, Any, Any]:
            luck = np.stack([np.random.default_rng([seed, batch, episode]).random(204) for episode in range(EPISODES)])
            seen, up = (luck[:, :4] - 0.5) / 10, np.ones(EPISODES, dtype=bool)
            score, drift, steps = np.zeros((EPISODES, 4)), np.zeros(EPISODES), np.zeros(EPISODES, dtype=np.int64)
            for number in luck[:, 4:].T:
                chance = 1 / (1 + np.exp(-np.clip(seen @ weights, -30, 30)))
                score += (up * ((number < chance) - chance))[:, None] * seen
                _, dx, angle, turning = seen.T
                push = (np.where(number < chance, 10, -10) + 0.05 * turning * turning * np.sin(angle)) / 1.1
                torque = (9.8 * np.sin(angle) - np.cos(angle) * push) / (2 / 3 - 0.05 * np.cos(angle) ** 2 / 1.1)
                seen = seen + 0.02 * np.stack([dx, push - 0.05 * torque * np.cos(angle) / 1.1, turning, torque], axis=1)
                drift, steps = drift + up * np.abs(seen[:, 0]), steps + up
                up = up & (np.abs(seen[:, 0]) <= 2.4) & (np.abs(seen[:, 2]) <= 0.2095)
            return steps, steps - 0.5 * drift, score

    columns = "batch long, episode long, version long, steps long, reward double, advantage double"
    return udtf(Training, returnType=columns, useArrow=False)()


def show(rows: list[Record]) -> None:
    """The learning curve, beside what is to be beaten."""
    lucks = [np.random.default_rng([1, episode]).random(4 + STEPS_MAX).tolist() for episode in range(100)]
    beaten = {"a coin": COIN, "where it leans": LEANING}
    played = {who: [play(weights, luck)["steps"] for luck in lucks] for who, weights in beaten.items()}
    for row in sorted(rows, key=lambda row: row["batch"]):
        played.setdefault(f"from batch {row['batch'] // 6 * 6}", []).append(row["steps"])
    print(f"for how many steps the pole stays up, {STEPS_MAX} at most")
    for who, mean in ((who, sum(steps) / len(steps)) for who, steps in played.items()):
        print(f"  {who:<16} {mean:6.1f}  {'#' * round(mean / 4)}")


if __name__ == "__main__":
    from examples.cyclic.command_line import main

    main(__name__)
