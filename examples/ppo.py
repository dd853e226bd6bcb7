"""PPO: pysampler samples, torch learns.

    python examples/ppo.py                                      # CartPole-v1 until it returns 475
    python examples/ppo.py --env HalfCheetah-v5 --steps 1000000
    python examples/ppo.py --env HalfCheetah-v5 --vec gymnasium # the same with AsyncVectorEnv
    python examples/ppo.py --env MaskedCartPole-v1 --lstm       # without velocities, with a memory
    python examples/ppo.py --a2c                                # A2C instead
    python examples/ppo.py --ray auto                           # on each node of a Ray cluster

The progress bar shows the mean return of the last 100 episodes, steps per second, and which share
of the time each part takes. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from common import Run, add_hosts, at_least, parse, parser, run, spaces_of
    from torch import nn
    from torch.distributions import Categorical, Independent, Normal

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
    normalizes: bool = True  # advantages
    length: int = 16  # steps of the sequences that an LSTM learns from: horizon is a multiple
    until: float | None = None  # stop at this mean return of 100 episodes


SETTINGS = {
    "CartPole-v1": Settings(until=475.0),
    "MaskedCartPole-v1": Settings(until=475.0),
    "HalfCheetah-v5": Settings(64, 64, 1_000_000, 8, 16, 1e-3, gamma=0.99, gae_lambda=0.95),
}


# In the first epoch all ratios are 1, where clipping changes nothing, so a PPO of one epoch of one
# batch is A2C (arXiv 2205.09123). The numbers are those of Stable-Baselines3.
A2C = {
    "horizon": 5,
    "length": 5,
    "epochs": 1,
    "batches": 1,
    "rate": 7e-4,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "normalizes": False,
}


class ActorCritic(nn.Module):
    """An actor and a critic with two hidden layers each; observations are normalized."""

    def __init__(
        self, observations: Any, actions: Any, width: int = 64, features: int | None = None
    ) -> None:
        super().__init__()
        inputs = int(np.prod(observations.shape))
        features = inputs if features is None else features  # of actor and critic
        self.discrete = isinstance(actions, gym.spaces.Discrete)
        outputs = int(actions.n if self.discrete else actions.shape[0])

        def mlp(outputs: int, scale: float) -> nn.Sequential:
            layers = [
                nn.Linear(features, width),
                nn.Linear(width, width),
                nn.Linear(width, outputs),
            ]
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
        self.merge(rows.mean(0), rows.var(0, unbiased=False), len(rows))

    def merge(self, mean: torch.Tensor, var: torch.Tensor, count: int) -> None:
        """Update them with the mean and variance of ``count`` observations."""
        total = self.seen + count
        delta = mean - self.mean
        squares = self.var * self.seen + var * count
        self.var.copy_((squares + delta**2 * self.seen * count / total) / total)
        self.mean += delta * count / total
        self.seen.copy_(total)

    def value(self, observations: torch.Tensor) -> torch.Tensor:
        return self.critic(self.normalized(observations)).squeeze(-1)

    def values(self, data: pysampler.Rollout) -> tuple[torch.Tensor, ...]:
        """Return values of what was acted on, of what came last, and of where episodes were cut."""
        observations = data.observations[:-1], data.last_observations, data.cut_observations
        return tuple(map(self.value, observations))

    def features(self, normalized: torch.Tensor) -> torch.Tensor:
        """Return what the actor and the critic get."""
        return normalized

    def distribution(self, features: torch.Tensor) -> Any:
        outputs = self.actor(features)
        if self.discrete:
            return Categorical(logits=outputs, validate_args=False)
        normal = Normal(outputs, self.log_std.exp().expand_as(outputs), validate_args=False)
        return Independent(normal, 1, validate_args=False)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Act as the policy: return actions and their log-probabilities."""
        distribution = self.distribution(self.normalized(observations))
        actions = distribution.sample()
        return actions, {"log_prob": distribution.log_prob(actions)}


class RecurrentActorCritic(ActorCritic):
    """An actor and a critic of what an LSTM remembers."""

    def __init__(self, observations: Any, actions: Any, width: int = 64) -> None:
        super().__init__(observations, actions, width, width)
        self.lstm = nn.LSTMCell(len(self.mean), width)

    def initial_state(self, count: int) -> torch.Tensor:
        return torch.zeros(count, 2 * self.lstm.hidden_size)

    def step(self, normalized: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return the next state. Its first half is the LSTM's output."""
        return torch.cat(self.lstm(normalized, state.chunk(2, -1)), -1)

    def unrolled(
        self, normalized: torch.Tensor, starts: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        """Return the state after each step [T, N]; it is empty where an episode starts."""
        states = []
        for row, begins in zip(normalized, starts, strict=True):
            state = self.step(row, state * ~begins[:, None])
            states.append(state)
        return torch.stack(states)

    def features(
        self, normalized: torch.Tensor, starts: torch.Tensor, state: torch.Tensor
    ) -> torch.Tensor:
        states = self.unrolled(normalized.transpose(0, 1), starts.T, state)
        return states.transpose(0, 1).chunk(2, -1)[0]

    def values(self, data: pysampler.Rollout) -> tuple[torch.Tensor, ...]:
        observations = data.observations[:-1], data.last_observations, data.cut_observations
        seen, last, cut = map(self.normalized, observations)
        states = self.unrolled(seen, data.starts[:-1], data.state[0])
        after = self.step(last, states[-1] * ~data.starts[-1][:, None])
        all_states = states, after, self.step(cut, states[data.cut_indices])
        return tuple(self.critic(one.chunk(2, -1)[0]).squeeze(-1) for one in all_states)

    def forward(
        self, observations: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Act as the policy: return actions, their log-probabilities and the next state."""
        state = self.step(self.normalized(observations), state)
        distribution = self.distribution(state.chunk(2, -1)[0])
        actions = distribution.sample()
        return actions, {"log_prob": distribution.log_prob(actions), "state": state}


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
    state: torch.Tensor | None = None  # of an LSTM before each step
    starts: torch.Tensor | None = None  # whether an episode begins with the step

    def sequences(self, length: int) -> tuple[torch.Tensor, ...]:
        """Return the tensors as sequences of steps, and the state that each of them begins with."""
        tensors = (self.actions, self.log_probs, self.advantages, self.returns, self.starts)
        *parts, states = (
            tensor.unflatten(0, (-1, length)).transpose(1, 2).flatten(0, 1)
            for tensor in (self.observations.flatten(2), *tensors, self.state)
        )
        return *parts, states[:, 0]

    def rows(self) -> tuple[torch.Tensor, ...]:
        """Return the tensors with a row for each step of each env."""
        tensors = (self.actions, self.log_probs, self.advantages, self.returns)
        return self.observations.flatten(0, 1).flatten(1), *(t.flatten(0, 1) for t in tensors)


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
    data = rollout.torch(net.mean.device)
    observations = data.observations[:-1]
    with torch.no_grad():  # of the current network, which with --overlap is not the one that acted
        values = net.values(data)
    advantages, returns = data.gae(*values, gamma=s.gamma, gae_lambda=s.gae_lambda)
    return Batch(
        *(observations, data.actions, data.extras["log_prob"], advantages, returns),
        *(rollout.ended.returns, seconds, data.state, data.starts[:-1]),
    )


def with_gymnasium(envs: Any, net: ActorCritic, s: Settings, options: Any) -> Iterator[Batch]:
    """Yield rollouts from a plain loop over any vector env with same-step autoreset."""
    seen, _ = envs.reset(seed=options.seed)
    totals = np.zeros(s.envs)
    device = options.device
    learned = time.perf_counter()
    while True:
        rows: dict[str, list[Any]] = {name: [] for name in "oalrtcf"}
        ended, seconds = [], {"policy": 0.0, "waiting": 0.0, "learner": 0.0}
        seconds["learner"] = time.perf_counter() - learned
        for _ in range(s.horizon):
            began = time.perf_counter()
            with torch.no_grad():
                actions, extras = net(torch.from_numpy(seen).to(device))
            acted = time.perf_counter()
            after, rewards, terminated, truncated, infos = envs.step(actions.cpu().numpy())
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
        observations = torch.from_numpy(np.stack(rows["o"])).to(device)
        with torch.no_grad():
            values = net.value(observations).cpu().numpy()
            last = net.value(torch.from_numpy(seen).to(device)).cpu().numpy()
            finals = np.array(rows["f"]).reshape(-1, *seen.shape[1:])
            cut_values = net.value(torch.from_numpy(finals).to(device)).cpu().numpy()
        advantages, returns = pysampler.gae(
            *(np.stack(rows["r"]), values, last, np.stack(rows["t"]), np.stack(rows["c"])),
            cut_values,
            gamma=s.gamma,
            gae_lambda=s.gae_lambda,
        )
        began = time.perf_counter()
        yield Batch(
            *(observations, torch.stack(rows["a"]), torch.stack(rows["l"])),
            *(torch.from_numpy(array).to(device) for array in (advantages, returns)),
            *(np.array(ended), seconds),
        )
        learned = began


def losses(
    net: ActorCritic,
    features: torch.Tensor,
    actions: torch.Tensor,
    old: torch.Tensor,
    gain: torch.Tensor,
    returns: torch.Tensor,
    s: Settings,
) -> torch.Tensor:
    """Return the loss of each row: PPO's clipped objective, the critic's error and the entropy.

    ``old`` are log-probabilities when the actions were chosen, ``gain`` normalized advantages.
    """
    distribution = net.distribution(features)
    ratio = (distribution.log_prob(actions) - old).exp()
    policy_loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
    value_loss = (net.critic(features).squeeze(-1) - returns).pow(2)
    return policy_loss + 0.5 * value_loss - s.entropy * distribution.entropy()


def learn(net: ActorCritic, optimizer: torch.optim.Optimizer, batch: Batch, s: Settings) -> None:
    """Update the network for some epochs with PPO's clipped objective."""
    is_recurrent = isinstance(net, RecurrentActorCritic)
    data = batch.sequences(s.length) if is_recurrent else batch.rows()
    observations, actions, old, advantages, returns, *memory = data
    normalized = net.normalized(observations)
    for _ in range(s.epochs):
        for rows in torch.randperm(len(old)).chunk(s.batches):
            gain = advantages[rows]
            if s.normalizes:
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            features = net.features(normalized[rows], *(tensor[rows] for tensor in memory))
            loss = losses(net, features, actions[rows], old[rows], gain, returns[rows], s)
            optimizer.zero_grad()
            loss.mean().backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    net.observe(observations)


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
        num_workers=options.workers,
        # With 1, hosts wait while the network learns, and act with what it has become.
        in_flight=2 if options.overlap else 1,
        on_host_loss="restart",
        policy_in=options.policy_in,
        seed=options.seed,
    )


def train(options: argparse.Namespace, run: Run) -> None:
    """Sample and learn in turn until the run is over."""
    s = options.settings
    kind = RecurrentActorCritic if options.lstm else ActorCritic
    net = kind(*spaces_of(options.env, "any")).to(options.device)
    descent = torch.optim.RMSprop if options.a2c else torch.optim.Adam
    optimizer = descent(net.parameters(), s.rate, eps=1e-5)
    run.restore(net=net, optimizer=optimizer)
    mode = gym.vector.AutoresetMode.SAME_STEP
    source = with_pysampler if options.vec == "pysampler" else with_gymnasium
    if options.ray is not None:
        envs, source = on_hosts(options, net, s), with_ray
    elif options.vec == "pysampler":
        envs = pysampler.make_vec(
            options.env, s.envs, num_workers=options.workers, autoreset_mode=mode
        )
    else:
        envs = gym.make_vec(options.env, s.envs, "async", vector_kwargs={"autoreset_mode": mode})
    spent = dict.fromkeys(("policy", "envs", "waiting", "learner"), 0.0)
    with contextlib.closing(envs):
        run.start(net, lambda: net)
        for batch in source(envs, net, s, options):
            for name, seconds in batch.seconds.items():
                spent[name] += seconds
            run.advance(batch.log_probs.numel(), batch.ended, spent=spent)
            if not run.over:
                for group in optimizer.param_groups:
                    group["lr"] = s.rate * (1 - run.steps / run.total)
                learn(net, optimizer, batch, s)
            run.checkpoint(net=net, optimizer=optimizer)
            if run.over:
                return


def main() -> None:
    made = parser(__doc__, "CartPole-v1", steps=None, until=None)
    vecs, places = ("pysampler", "gymnasium"), ("main", "workers")
    made.add_argument("--vec", choices=vecs, default=vecs[0], help="whose vector env to use")
    made.add_argument("--policy-in", choices=places, default=places[0], help="where to act")
    made.add_argument("--overlap", action="store_true", help="sample while learning")
    made.add_argument("--envs", type=at_least(1), help="number of envs; of each host")
    made.add_argument(
        "--workers", type=at_least(0), help="worker processes of pysampler; default: one per CPU"
    )
    made.add_argument("--lstm", action="store_true", help="remember earlier observations")
    made.add_argument("--a2c", action="store_true", help="learn by A2C instead of PPO")
    add_hosts(made)
    options = parse(made)
    own = options.overlap or options.policy_in != "main" or options.ray is not None
    if options.vec == "gymnasium" and (own or options.lstm):
        made.error(
            "--overlap, --policy-in, --ray and --lstm are pysampler's; expected --vec pysampler"
        )
    settings = SETTINGS.get(options.env, Settings())
    if options.a2c:
        settings = replace(settings, **A2C)
    given = {name: getattr(options, name) for name in ("envs", "steps", "until")}
    given = {name: value for name, value in given.items() if value is not None}
    options.settings = replace(settings, **given)
    options.until = options.settings.until
    run(train, Run(options, total=options.settings.steps))


if __name__ == "__main__":
    main()
