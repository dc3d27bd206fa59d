"""Rollout training: a policy learns to balance a pole, from episodes that are played with weights of a moment ago.

    python -m examples.cyclic.rollout_training
    backedge compare examples.cyclic.rollout_training --kills 3 --seed 1

The loop of reinforcement learning, small: orders (play this episode with these weights) go to the rollouts, what they
play is judged, the learner takes a step (REINFORCE with a baseline) and sends the next orders, with its new weights,
over the back edge. The rollouts never wait for the learner: batch b is played with the weights after b - 1 steps, so
with weights that are one step old and never more.

Promised, whatever is killed: every sample is used exactly once, in its own batch, and the learner becomes bit for bit
what it becomes undisturbed, since an episode draws its luck from its number and a batch is learned from in the order
of its episodes. A cut says which samples were ordered and not yet used: they are in the loop or wait at the learner.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from backedge import Flow, Items, JsonLines

Record = dict[str, Any]

SIZE = 1_280
"""How many samples, that is episodes, are learned from."""

EPISODES = 32
"""Episodes of a batch; each batch is one step of the learner."""

STALE = 1
"""How many steps old the weights are that a batch is played with."""

STEPS_MAX = 200
STEP_SIZE = 0.5
RANDOM, LEANING = [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1000.0, 0.0]
"""Weights to compare with: of a coin, and of who always pushes to where the pole leans."""

SINK = "used"
KEYS = ("batch", "episode")
TOLERANCES = {"reward": 1e-6, "advantage": 1e-6}

LEARNER = """
    SELECT coalesce(max(updates), 0) AS updates, coalesce(max(ordered), 0) AS ordered, coalesce(max(used), 0) AS used
    FROM (SELECT learner.* FROM (SELECT from_json(value, 'updates INT, ordered INT, used INT') AS learner
                                 FROM state WHERE operator = 'learner'))"""
UNUSED = """
    SELECT 'in flight' AS place, int(record:batch) AS batch, int(record:episode) AS episode FROM in_flight
    UNION ALL SELECT 'waiting', sample.batch, sample.episode
    FROM (SELECT explode(from_json(value, 'waiting ARRAY<STRUCT<batch INT, episode INT>>').waiting) AS sample
          FROM state WHERE operator = 'learner')""".replace(
    "record:batch", "get_json_object(record, '$.batch')"
).replace("record:episode", "get_json_object(record, '$.episode')")
INVARIANTS = {
    "no sample is in two places, nor comes again after it was used": f"""
        WITH learner AS ({LEARNER}), unused AS ({UNUSED})
        SELECT batch, episode, count(*) AS places FROM unused CROSS JOIN learner
        GROUP BY batch, episode, updates HAVING count(*) > 1 OR batch < updates""",
    "what was ordered is used, in flight or waiting": f"""
        WITH learner AS ({LEARNER}), unused AS ({UNUSED}),
             first AS (SELECT sum(records) AS sent FROM operators WHERE operator = 'first_orders')
        SELECT sent, ordered, used, unused.samples FROM learner CROSS JOIN first
        CROSS JOIN (SELECT count(*) AS samples FROM unused) unused WHERE sent + ordered != used + unused.samples""",
    "no weights are older than the bound": f"""
        WITH learner AS ({LEARNER}), unused AS ({UNUSED})
        SELECT * FROM unused CROSS JOIN learner WHERE batch > updates + {STALE}""",
}


def orders(batch: int, weights: list[float]) -> list[Record]:
    """The episodes of a batch that are to be played, and with what."""
    version = max(0, batch - STALE)
    order = {"policy": "pole", "batch": batch, "version": version}
    return [{**order, "episode": episode, "weights": list(weights)} for episode in range(EPISODES)]


def play(weights: list[float], luck: list[float]) -> Record:
    """An episode: a cart that is pushed left or right until its pole falls. `luck` has a number for each choice.

    `score` is how the logarithms of the chances of its choices change with the weights.
    """
    x, dx, angle, turning = ((number - 0.5) / 10 for number in luck[:4])
    score, drift, steps = [0.0] * 4, 0.0, 0
    for number in luck[4:]:
        seen = (x, dx, angle, turning)
        lean = sum(weight * value for weight, value in zip(weights, seen, strict=True))
        chance = 1 / (1 + math.exp(-max(-30.0, min(30.0, lean))))
        goes_right = number < chance
        score = [sum_ + (goes_right - chance) * value for sum_, value in zip(score, seen, strict=True)]
        sine, cosine = math.sin(angle), math.cos(angle)
        push = ((10.0 if goes_right else -10.0) + 0.05 * turning**2 * sine) / 1.1
        torque = (9.8 * sine - cosine * push) / (0.5 * (4 / 3 - 0.1 * cosine**2 / 1.1))
        x, dx = x + 0.02 * dx, dx + 0.02 * (push - 0.05 * torque * cosine / 1.1)
        angle, turning = angle + 0.02 * turning, turning + 0.02 * torque
        steps, drift = steps + 1, drift + abs(x)
        if abs(x) > 2.4 or abs(angle) > 0.2095:
            break
    return {"steps": steps, "drift": drift, "score": score}


def rollout(seed: int, pause_s: float) -> Callable[[Record], Record]:
    """Plays what is ordered. The pause stands for a simulator that has more to compute."""

    def sample(order: Record) -> Record:
        time.sleep(pause_s)
        luck = np.random.default_rng([seed, order["batch"], order["episode"]]).random(4 + STEPS_MAX)
        played = play(order.pop("weights"), luck.tolist())
        return {**order, **played}

    return sample


def rewarded(sample: Record) -> Record:
    """The judge: a point for each step, less for being off the middle."""
    return {**sample, "reward": sample["steps"] - 0.5 * sample["drift"]}


def learned(weights: list[float], samples: list[Record]) -> tuple[list[float], list[float]]:
    """The weights after a step towards what was better than the average of its batch, and how much better each was."""
    rewards = [sample["reward"] for sample in samples]
    mean = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) or 1.0
    better = [(reward - mean) / spread for reward in rewards]
    slope = [sum(gain * sample["score"][i] for gain, sample in zip(better, samples, strict=True)) for i in range(4)]
    length = math.hypot(*slope) or 1.0
    return [weight + STEP_SIZE * part / length for weight, part in zip(weights, slope, strict=True)], better


def learner(batches: int) -> type[Any]:
    """The operator that learns from so many batches."""

    class Learner:
        """State: the weights, how many updates there were, and the samples that wait for the rest of their batch."""

        outputs = ("orders", "used")

        def on_record(self, ctx: Any, sample: Record) -> None:
            """Keep the sample, and learn as soon as the batch whose turn it is has all of its samples."""
            state = ctx.state.get() or {"weights": RANDOM, "updates": 0, "ordered": 0, "used": 0, "waiting": []}
            turn, waiting = state["updates"], [*state["waiting"], sample]
            batch = sorted((one for one in waiting if one["batch"] == turn), key=lambda one: one["episode"])
            if len(batch) == EPISODES:
                state = self.learn(ctx, state, batch)
                waiting = [one for one in waiting if one["batch"] > turn]
            ctx.state.set({**state, "waiting": waiting})

        def learn(self, ctx: Any, state: Record, batch: list[Record]) -> Record:
            """Take a step, say which samples it used, and order the next episodes with the new weights."""
            weights, better = learned(state["weights"], batch)
            for sample, advantage in zip(batch, better, strict=True):
                told = {name: sample[name] for name in ("batch", "episode", "version", "steps", "reward")}
                ctx.emit({**told, "advantage": advantage}, output="used")
            updates = state["updates"] + 1
            ordered = orders(updates + STALE, weights) if updates + STALE < batches else []
            for order in ordered:
                ctx.emit(order)
            counts = {"ordered": state["ordered"] + len(ordered), "used": state["used"] + len(batch)}
            return {"weights": weights, "updates": updates, **counts}

    return Learner


def flow(output: str = "rollout_training", size: int = SIZE, seed: int = 0, pause_ms: float = 3) -> Flow:
    """The graph: the rollouts are the head of the loop, the learner is its body, and orders come back."""
    batches = max(1, size // EPISODES)
    first = [order for batch in range(min(STALE + 1, batches)) for order in orders(batch, RANDOM)]
    flow = Flow("rollout_training")
    ordered = flow.loop("orders", of=dict)
    played = flow.read(Items(first), name="first_orders").merge(ordered).rebalance()
    samples = played.map(rollout(seed, pause_ms / 1000), name="rollouts").map(rewarded, name="reward")
    trained = samples.key_by("policy").process(learner(batches), name="learner")
    ordered.feed(trained)
    trained.side("used").write(JsonLines(f"{output}/used"), name=SINK)
    return flow


def reference(spark: Any, inputs: str, size: int = SIZE, seed: int = 0) -> Any:
    """The same training, computed anew with arrays, all episodes of a batch at once, in one task of Spark."""
    from pyspark.sql.functions import udtf

    class Training:
        """A table that a function gives."""

        def eval(self) -> Iterator[tuple[Any, ...]]:
            """The samples of all batches, and how much better than the average each was."""
            history = [np.zeros(4)]
            for batch in range(max(1, size // EPISODES)):
                version = max(0, batch - STALE)
                steps, reward, score = self.batch(history[version], batch)
                advantage = (reward - reward.mean()) / (reward.std() or 1.0)
                slope = advantage @ score
                history.append(history[-1] + STEP_SIZE * slope / (np.linalg.norm(slope) or 1.0))
                for episode, row in enumerate(zip(steps.tolist(), reward.tolist(), advantage.tolist(), strict=True)):
                    yield batch, episode, version, *row

        def batch(self, weights: Any, batch: int) -> tuple[Any, Any, Any]:
            """Steps, rewards and scores of the episodes of a batch."""
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


def mean_steps(weights: list[float], episodes: int = 100) -> float:
    """How long the pole stays up with these weights, on the average of so many episodes."""
    lucks = (np.random.default_rng([1, episode]).random(4 + STEPS_MAX).tolist() for episode in range(episodes))
    return sum(play(weights, luck)["steps"] for luck in lucks) / episodes


def show(rows: list[Record]) -> None:
    """The learning curve, beside what is to be beaten."""
    played: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        played[row["batch"]].append(row["steps"])
    print(f"steps that the pole stays up, of {STEPS_MAX} at most, on the average of {EPISODES} episodes")
    print(f"  a coin            {mean_steps(RANDOM):6.1f}")
    print(f"  the way it leans  {mean_steps(LEANING):6.1f}")
    for batch in sorted(played)[:: max(1, len(played) // 10)]:
        mean = sum(played[batch]) / len(played[batch])
        print(f"  batch {batch:<11} {mean:6.1f}  {'#' * round(mean / 4)}")
