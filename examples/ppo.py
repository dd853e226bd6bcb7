"""PPO in one file: pysampler samples, torch learns.

    python examples/ppo.py                                      # CartPole-v1 until it returns 475
    python examples/ppo.py --env HalfCheetah-v5 --steps 1000000
    python examples/ppo.py --env HalfCheetah-v5 --vec gymnasium # the same with AsyncVectorEnv
    python examples/ppo.py --ray auto                           # on each node of a Ray cluster

The progress bar shows the mean return of the last 100 episodes, steps per second, and which share
of the time each part takes. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from torch import nn
    from torch.distributions import Categorical, Independent, Normal
    from tqdm import tqdm

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


@dataclass
class Settings:
    """The hyperparameters."""

    envs: int = 8
    horizon: int = 128
    steps: int = 300_000
    epochs: int = 10
    batches: int = 4
    rate: float = 2.5e-3
    entropy: float = 0.0
    gamma: float = 0.98
    gae_lambda: float = 0.8
    until: float | None = None  # stop at this mean return of 100 episodes


SETTINGS = {
    "CartPole-v1": Settings(until=475.0),
    "HalfCheetah-v5": Settings(64, 64, 1_000_000, 8, 16, 1e-3, gamma=0.99, gae_lambda=0.95),
}


@dataclass
class Progress:
    """The progress of the training."""

    steps: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=100))  # episode returns
    spent: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("policy", "envs", "waiting", "learner"), 0.0)
    )
    began: float = field(default_factory=time.perf_counter)

    @property
    def mean(self) -> float | None:
        """The mean return of the last 100 episodes; None if none has ended."""
        return float(np.mean(self.recent)) if self.recent else None

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.began
        sampling = self.spent["policy"] + self.spent["waiting"]
        return (
            f"{self.steps:,} steps in {seconds:.1f} s, {self.steps / seconds:,.0f} a second; the "
            f"learner waited for them for {sampling:.1f} s; "
            + (
                "no episode has ended"
                if self.mean is None
                else f"return {self.mean:.1f} over the last {len(self.recent)} episodes"
            )
        )


class ActorCritic(nn.Module):
    """An actor and a critic with two hidden layers each; observations are normalized."""

    def __init__(self, observations: Any, actions: Any, width: int = 64) -> None:
        super().__init__()
        inputs = int(np.prod(observations.shape))
        self.discrete = isinstance(actions, gym.spaces.Discrete)
        outputs = int(actions.n if self.discrete else actions.shape[0])

        def mlp(outputs: int, scale: float) -> nn.Sequential:
            layers = [nn.Linear(inputs, width), nn.Linear(width, width), nn.Linear(width, outputs)]
            for layer, gain in zip(layers, (2**0.5, 2**0.5, scale), strict=True):
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.actor, self.critic = mlp(outputs, 0.01), mlp(1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(0 if self.discrete else outputs))
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("var", torch.ones(inputs))
        self.register_buffer("seen", torch.tensor(1e-4))

    def normalized(self, observations: torch.Tensor) -> torch.Tensor:
        normalized = (observations.float() - self.mean) / (self.var + 1e-8).sqrt()
        return normalized.clamp(-10, 10)

    def observe(self, observations: torch.Tensor) -> None:
        """Update the running mean and variance of observations."""
        rows = observations.reshape(-1, len(self.mean)).float()
        total = self.seen + len(rows)
        delta = rows.mean(0) - self.mean
        squares = self.var * self.seen + rows.var(0, unbiased=False) * len(rows)
        self.var.copy_((squares + delta**2 * self.seen * len(rows) / total) / total)
        self.mean += delta * len(rows) / total
        self.seen.copy_(total)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(self.normalized(observations)).squeeze(-1)

    def distribution(self, normalized: torch.Tensor) -> Any:
        outputs = self.actor(normalized)
        if self.discrete:
            return Categorical(logits=outputs, validate_args=False)
        normal = Normal(outputs, self.log_std.exp().expand_as(outputs), validate_args=False)
        return Independent(normal, 1, validate_args=False)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Act as the policy: return actions and their log-probabilities."""
        distribution = self.distribution(self.normalized(observations))
        actions = distribution.sample()
        return actions, {"log_prob": distribution.log_prob(actions)}


@dataclass
class Batch:
    """A rollout as PPO needs it: tensors [T, N], and statistics."""

    observations: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    ended: np.ndarray  # returns of the episodes that ended
    seconds: dict[str, float]  # spent on each part


def with_pysampler(envs: Any, net: ActorCritic, s: Settings, options: Any) -> Iterator[Batch]:
    """Yield rollouts that pysampler samples."""
    rollouts = pysampler.Rollouts(
        envs,
        net,
        s.horizon,
        seed=options.seed,
        policy_in=options.policy_in,
        overlap=options.overlap,
    )
    for rollout in rollouts:
        yield batch_of(rollout, net, s, rollout.seconds)


def with_ray(rollouts: Any, net: ActorCritic, s: Settings, _: Any) -> Iterator[Batch]:
    """Yield rollouts of the envs of all hosts, side by side."""
    waited = time.perf_counter()
    while True:
        began = time.perf_counter()
        seconds = {"learner": began - waited}
        rollout = rollouts.take().joined
        waited = time.perf_counter()
        yield batch_of(rollout, net, s, {**seconds, "waiting": waited - began})


def batch_of(rollout: Any, net: ActorCritic, s: Settings, seconds: dict[str, float]) -> Batch:
    """Return a rollout of pysampler as PPO needs it."""
    data = rollout.torch()
    observations = data.observations[:-1]
    with torch.no_grad():  # of the current network, which with --overlap is not the one that acted
        values, last = net.value(observations), net.value(data.last_observations)
        cut = net.value(data.cut_observations)
    advantages, returns = data.gae(values, last, cut, gamma=s.gamma, gae_lambda=s.gae_lambda)
    return Batch(
        *(observations, data.actions, data.extras["log_prob"], advantages, returns),
        *(rollout.ended.returns, seconds),
    )


def with_gymnasium(envs: Any, net: ActorCritic, s: Settings, options: Any) -> Iterator[Batch]:
    """Yield rollouts from a plain loop over any vector env with same-step autoreset."""
    seen, _ = envs.reset(seed=options.seed)
    totals = np.zeros(s.envs)
    learned = time.perf_counter()
    while True:
        rows: dict[str, list[Any]] = {name: [] for name in "oalrtcf"}
        ended, seconds = [], {"policy": 0.0, "waiting": 0.0, "learner": 0.0}
        seconds["learner"] = time.perf_counter() - learned
        for _ in range(s.horizon):
            began = time.perf_counter()
            with torch.no_grad():
                actions, extras = net(torch.from_numpy(seen))
            acted = time.perf_counter()
            after, rewards, terminated, truncated, infos = envs.step(actions.numpy())
            seconds["policy"] += acted - began
            seconds["waiting"] += time.perf_counter() - acted
            done = terminated | truncated
            totals += rewards
            ended += totals[done].tolist()
            totals[done] = 0
            cut = np.flatnonzero(truncated & ~terminated)
            rows["f"] += [infos["final_obs"][env] for env in cut]
            for name, value in zip(
                "oalrtc",
                (seen, actions, extras["log_prob"], rewards, terminated, truncated),
                strict=True,
            ):
                rows[name].append(value)
            seen = after
        observations = torch.from_numpy(np.stack(rows["o"]))
        with torch.no_grad():
            values = net.value(observations).numpy()
            last = net.value(torch.from_numpy(seen)).numpy()
            finals = np.array(rows["f"]).reshape(-1, *seen.shape[1:])
            cut_values = net.value(torch.from_numpy(finals)).numpy()
        advantages, returns = pysampler.gae(
            *(np.stack(rows["r"]), values, last, np.stack(rows["t"]), np.stack(rows["c"])),
            cut_values,
            gamma=s.gamma,
            gae_lambda=s.gae_lambda,
        )
        began = time.perf_counter()
        yield Batch(
            *(observations, torch.stack(rows["a"]), torch.stack(rows["l"])),
            *(torch.from_numpy(advantages), torch.from_numpy(returns), np.array(ended), seconds),
        )
        learned = began


def learn(net: ActorCritic, optimizer: torch.optim.Optimizer, batch: Batch, s: Settings) -> None:
    """Update the network for some epochs with PPO's clipped objective."""
    count = batch.log_probs.numel()
    observations = batch.observations.reshape(count, -1)
    actions = batch.actions.reshape(count, *batch.actions.shape[2:])
    old, advantages, returns = (
        t.reshape(count) for t in (batch.log_probs, batch.advantages, batch.returns)
    )
    normalized = net.normalized(observations)
    for _ in range(s.epochs):
        for rows in torch.randperm(count).chunk(s.batches):
            distribution = net.distribution(normalized[rows])
            ratio = (distribution.log_prob(actions[rows]) - old[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            value_loss = (net.critic(normalized[rows]).squeeze(-1) - returns[rows]).pow(2).mean()
            loss = policy_loss + 0.5 * value_loss - s.entropy * distribution.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    net.observe(observations)


def spaces_of(env_id: str) -> tuple[gym.Space, gym.Space]:
    """Return the spaces of an env, or exit with a message if they are not supported."""
    try:
        with contextlib.closing(gym.make(env_id)) as env:
            observations, actions = env.observation_space, env.action_space
    except (gym.error.Error, ModuleNotFoundError) as error:
        sys.exit(f"cannot make {env_id}: {error}")
    vectors = [isinstance(x, gym.spaces.Box) and len(x.shape) == 1 for x in (observations, actions)]
    if not (vectors[0] and (vectors[1] or isinstance(actions, gym.spaces.Discrete))):
        sys.exit(
            f"cannot learn {env_id}: observations {observations} and actions {actions}, expected "
            "a Box of one dimension and a Discrete or such a Box"
        )
    return observations, actions


def on_hosts(options: argparse.Namespace, net: ActorCritic, s: Settings) -> Any:
    """Return rollouts on hosts, or exit with a message if there is no Ray."""
    try:
        import pysampler.ray  # noqa: PLC0415 - only with --ray
    except ModuleNotFoundError as error:
        sys.exit(str(error))
    import ray  # noqa: PLC0415

    ray.init(options.address)
    return pysampler.ray.Rollouts(
        *(options.env, net, s.horizon),
        hosts=options.ray,
        num_envs=s.envs,
        vector_kwargs={} if options.workers is None else {"num_workers": options.workers},
        # With 1, hosts wait while the network learns, and act with what it has become.
        in_flight=2 if options.overlap else 1,
        on_host_loss="restart",
        policy_in=options.policy_in,
        seed=options.seed,
    )


def train(options: argparse.Namespace, s: Settings, progress: Progress) -> None:
    """Sample and learn in turn; ``progress`` is up to date after each rollout."""
    net = ActorCritic(*spaces_of(options.env))
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5)
    mode = gym.vector.AutoresetMode.SAME_STEP
    source = with_pysampler if options.vec == "pysampler" else with_gymnasium
    if options.ray is not None:
        envs, source = on_hosts(options, net, s), with_ray
    elif options.vec == "pysampler":
        kwargs = {"num_workers": options.workers, "autoreset_mode": mode}
        envs = pysampler.make_vec(options.env, s.envs, vector_kwargs=kwargs)
    else:
        envs = gym.make_vec(options.env, s.envs, "async", vector_kwargs={"autoreset_mode": mode})
    bar = tqdm(total=s.steps, unit=" steps", unit_scale=True, disable=options.quiet)
    with contextlib.closing(envs), bar:
        for batch in source(envs, net, s, options):
            count = batch.log_probs.numel()
            progress.steps += count
            progress.recent.extend(batch.ended)
            for name, seconds in batch.seconds.items():
                progress.spent[name] += seconds
            mean = progress.mean
            passed = time.perf_counter() - progress.began
            shares = {name: f"{part / passed:.0%}" for name, part in progress.spent.items()}
            bar.update(count)
            bar.set_postfix({"return": "-" if mean is None else f"{mean:.1f}", **shares})
            solved = len(progress.recent) == 100 and s.until is not None and mean >= s.until
            if solved or progress.steps >= s.steps:
                return
            for group in optimizer.param_groups:
                group["lr"] = s.rate * (1 - progress.steps / s.steps)
            learn(net, optimizer, batch, s)


def at_least(minimum: int) -> Callable[[str], int]:
    """Return a converter for options that are integers of at least ``minimum``."""

    def number(text: str) -> int:
        if (value := int(text)) < minimum:
            raise argparse.ArgumentTypeError(f"{value}, expected at least {minimum}")
        return value

    return number


def hosts(text: str) -> int | str:
    """Return how many hosts an option asks for."""
    return text if text == "auto" else at_least(1)(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    vecs, places = ("pysampler", "gymnasium"), ("main", "workers")
    parser.add_argument("--env", default="CartPole-v1", help="id of an env")
    parser.add_argument("--vec", choices=vecs, default=vecs[0], help="whose vector env to use")
    parser.add_argument("--policy-in", choices=places, default=places[0], help="where to act")
    parser.add_argument("--overlap", action="store_true", help="sample while learning")
    parser.add_argument("--envs", type=at_least(1), help="number of envs; of each host")
    parser.add_argument(
        "--workers", type=at_least(0), help="worker processes of pysampler; default: one per CPU"
    )
    parser.add_argument("--steps", type=at_least(1), help="stop after this many steps of all envs")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--ray",
        type=hosts,
        metavar="HOSTS",
        help="the number of hosts to sample on, or auto: all nodes",
    )
    parser.add_argument("--address", help="of a Ray cluster; default: RAY_ADDRESS, or this machine")
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    own = options.overlap or options.policy_in != "main" or options.ray is not None
    if options.vec == "gymnasium" and own:
        parser.error("--overlap, --policy-in and --ray are pysampler's; expected --vec pysampler")
    if options.address is not None and options.ray is None:
        parser.error("--address is of a Ray cluster; expected --ray too")
    settings = SETTINGS.get(options.env, Settings())
    settings.envs = options.envs or settings.envs
    settings.steps = options.steps or settings.steps

    torch.set_num_threads(1)  # more would not help such a small network, and slow down the envs
    torch.manual_seed(options.seed)
    progress = Progress()
    with contextlib.suppress(KeyboardInterrupt):  # report what was learned so far
        train(options, settings, progress)
    if not options.json:
        print(progress)
        return
    seconds = time.perf_counter() - progress.began
    result = {
        "env": options.env,
        "vec": options.vec,
        "return": progress.mean,
        "steps": progress.steps,
        "seconds": seconds,
        "steps_per_second": progress.steps / seconds,
        "seconds_in": progress.spent,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
