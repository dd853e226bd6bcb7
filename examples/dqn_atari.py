"""DQN from pixels in one file: actors sample all the time, torch learns all the time.

    python examples/dqn_atari.py                        # Pong: pip install 'pysampler[atari]'
    python examples/dqn_atari.py --env ALE/Breakout-v5 --steps 10000000
    python examples/dqn_atari.py --env MinAtar/Breakout-v1  # small games: pip install minatar
    python examples/dqn_atari.py --device cuda          # learns on a GPU; acting stays on the CPU
    python examples/dqn_atari.py --bfloat16             # faster on CPUs with AMX, and on GPUs
    python examples/dqn_atari.py --save best.pt --plot returns.png
    python examples/dqn_atari.py --checkpoints run      # resumes from the last checkpoint, if any
    python examples/dqn_atari.py --play best.pt         # evaluates saved weights
    python examples/dqn_atari.py --play best.pt --show human      # or video

Learns any env with images and discrete actions: stacks of the last four screens of Atari games,
images of height x width x channels of all others. Images stay bytes until they are on the
learner's device. The returns shown are sums of the game's own rewards; those that are learned from
are clipped to -1 .. 1 for Atari games.

The progress bar shows the mean return of the last 100 episodes, updates, the size of the replay
buffer, and which share of its time the learner waits. Actors run freely, so two runs with the same
seed differ. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from common import (
        Run,
        add_play,
        at_least,
        learner_seconds,
        load,
        parse,
        parser,
        play,
        run,
        spaces_of,
    )
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
    from torch import nn

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


# -- hyperparameters -------------------------------------------------------------------------------


@dataclass
class Settings:
    """The hyperparameters.

    The sources are [1] Mnih et al. 2015 (DQN), [2] Lapan 2018 (Deep Reinforcement Learning
    Hands-On, for Pong), [3] Hessel et al. 2018 (Rainbow), [4] Horgan et al. 2018 (Ape-X), and
    [5] Young and Tian 2019 (MinAtar).
    """

    rate: float  # of Adam
    warmup: int  # steps in the replay buffer before the first update
    exploring: int  # steps until epsilon is at its minimum
    target: int  # updates between two copies of the network to the target network
    every: int  # steps per update, at least: with fewer the learner waits
    most: int  # steps per update, at most: with more the actors wait
    epsilons: tuple[float, float]  # of the first env and the last, at the end; spread as in [4]
    clip: bool  # whether to learn from rewards clipped to -1 .. 1, as [1]
    gamma: float = 0.99  # [1], [5]
    n_step: int = 3  # [3]
    batch: int = 32  # [1], [2], [5]
    updates: int = 8  # in a row, before the next records are taken
    publish: int = 32  # updates between two versions of the actors' weights: a multiple of these
    capacity: int = 200_000  # --capacity

    def epsilon(self, steps: int, envs: int) -> Any:
        """Return epsilon of each env: 1 at first, at last between ``epsilons``."""
        return np.maximum(np.geomspace(*self.epsilons, envs), 1 - steps / self.exploring)


ATARI = Settings(
    rate=1e-4,  # [2]
    warmup=10_000,  # [2]
    exploring=100_000,  # [2]; for games harder than Pong [1] has 250,000
    target=500,  # [2]: 1000, with an update for each step
    every=4,  # [1]
    most=8,  # the actors are quicker than a learner on the CPU: new steps cost nothing
    epsilons=(0.01, 0.1),  # [2]: 0.02, [1]: 0.1
    clip=True,
)
SMALL = Settings(
    rate=2.5e-4,  # [5], for RMSprop
    warmup=5_000,  # [5]
    exploring=100_000,  # [5]
    target=500,  # [5]: 1000
    every=2,  # [5]: 1
    most=8,
    epsilons=(0.01, 0.1),  # [5]: 0.1
    clip=False,
)
SOLVED = {"ALE/Pong-v5": 18.0}  # mean returns to stop at, without --until: [2]


# -- envs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MakeEnv:
    """Makes envs of a spec, in this process or in workers, which get it pickled."""

    spec: EnvSpec

    @property
    def env_id(self) -> str:
        return self.spec.id

    @property
    def is_atari(self) -> bool:
        return self.spec.namespace == "ALE"

    def __call__(self, **options: Any) -> gym.Env:
        if not self.is_atari:
            return gym.make(self.spec, **options)
        import ale_py  # noqa: PLC0415

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # no banner of each env
        env = gym.make(self.spec, frameskip=1, **options)
        return FrameStackObservation(AtariPreprocessing(env), 4)  # 4 screens a step, 84 x 84, grey


def maker_of(env: str) -> MakeEnv:
    """Return what makes an env of this id, or exit with a message that says what to install."""
    wanted = {"ALE": "'pysampler[atari]'", "MinAtar": "minatar"}
    namespace = env.partition("/")[0]
    try:
        if namespace == "ALE":
            import ale_py  # noqa: PLC0415
            import cv2  # noqa: F401, PLC0415 - AtariPreprocessing needs it

            gym.register_envs(ale_py)
        elif namespace == "MinAtar" and env not in gym.registry:
            import minatar.gym  # noqa: PLC0415

            minatar.gym.register_envs()
        return MakeEnv(gym.spec(env))
    except ImportError as error:
        sys.exit(f"cannot make {env}: {error}: pip install {wanted.get(namespace, 'it')}")
    except gym.error.Error as error:
        sys.exit(f"cannot make {env}: {error}")


# -- the network, and how actors use it ------------------------------------------------------------


class Network(nn.Module):
    """A network for the values of all actions, from images: those of DQN, or of MinAtar if small.

    Args:
        images: The space of observations: frames, height and width, or height, width and channels.
        actions: The number of actions.
        is_stack: Whether images are stacks of frames.
        bfloat16: Whether all layers but the last work with numbers of 16 bits.
    """

    def __init__(
        self, images: gym.spaces.Box, actions: int, *, is_stack: bool, bfloat16: bool = False
    ) -> None:
        super().__init__()
        self.is_stack, self.bfloat16 = is_stack, bfloat16
        self.scale = 1 / 255 if images.dtype == np.uint8 else 1.0
        channels, *size = images.shape if is_stack else np.roll(images.shape, 1).tolist()
        self.body = nn.Sequential(
            *(large_images if min(size) >= 36 else small_images)(channels), nn.Flatten()
        )
        with torch.no_grad():
            count = self.body(torch.zeros(1, channels, *size)).shape[1]
        hidden = 512 if min(size) >= 36 else 128
        self.body.extend([nn.Linear(count, hidden), nn.ReLU()])
        self.head = nn.Linear(hidden, actions)
        self.to(memory_format=torch.channels_last)  # a quarter more updates per second

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        images = images if self.is_stack else images.permute(0, 3, 1, 2)
        images = images.to(torch.float32, memory_format=torch.channels_last) * self.scale
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
            found = self.body(images)
        return self.head(found.float())


def large_images(channels: int) -> list[nn.Module]:
    """Return the convolutions of DQN (Mnih et al. 2015)."""
    return [
        *(nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU()),
        *(nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU()),
    ]


def small_images(channels: int) -> list[nn.Module]:
    """Return the convolution of MinAtar's DQN (Young and Tian 2019)."""
    return [nn.Conv2d(channels, 16, 3), nn.ReLU()]


class EpsilonGreedy(nn.Module):
    """An epsilon-greedy policy in torch, which is twice as fast as NumPy for images of 84 x 84."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor, epsilon: Any = 0.001) -> torch.Tensor:
        """Return actions; ``epsilon`` is that of Rainbow's evaluation: no game waits forever."""
        count = len(images)
        actions = torch.randint(self.net.head.out_features, (count,))
        greedy = torch.rand(count) >= torch.as_tensor(epsilon)
        if greedy.any():  # the network is not called for those that explore
            actions[greedy] = self.net(images[greedy]).argmax(-1)
        return actions


# -- training --------------------------------------------------------------------------------------


class Learner:
    """Double DQN: a network, its target network, an optimizer and a replay buffer."""

    def __init__(self, net: Network, settings: Settings) -> None:
        self.net, self.target = net, copy.deepcopy(net)
        self.device = next(net.parameters()).device
        self.optimizer = torch.optim.Adam(net.parameters(), settings.rate, fused=True)
        self.settings = settings
        self.replay: pysampler.ReplayBuffer | None = None
        self.steps = self.updates = 0

    @property
    def parts(self) -> dict[str, Any]:
        """What has a state of its own."""
        return {"net": self.net, "target": self.target, "optimizer": self.optimizer}

    def remember(self, like: dict[str, Any], seed: int) -> None:
        """Make the replay buffer, where each frame of a stack is stored once."""
        s = self.settings
        stacks = ["observations"] if self.net.is_stack else []
        self.replay = pysampler.ReplayBuffer(
            s.capacity, like, n_step=s.n_step, gamma=s.gamma, stacks=stacks, seed=seed
        )

    def add(self, records: pysampler.Records) -> None:
        """Add what actors recorded; the returns in the records stay those of the game."""
        if self.settings.clip:
            np.clip(records.rewards, -1, 1, out=records.rewards)
        self.replay.extend(records)
        self.steps += len(records)

    def learn(self) -> None:
        """Do some updates, and copy the network to the target network when that is due."""
        for _ in range(self.settings.updates):
            self.update()
            if self.updates % self.settings.target == 0:
                self.target.load_state_dict(self.net.state_dict())

    def update(self) -> None:
        drawn = self.replay.sample(self.settings.batch)
        batch = drawn.torch(None if self.device.type == "cpu" else self.device)
        values = self.net(batch.fields["observations"])
        value = values.gather(1, batch.fields["actions"][:, None])[:, 0]
        loss = nn.functional.smooth_l1_loss(value, self.goals(batch))
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optimizer.step()
        self.updates += 1

    @torch.no_grad()
    def goals(self, batch: pysampler.Batch) -> torch.Tensor:
        """Return what the values should be. After the end of a game ``discounts`` are 0."""
        after = batch.next_fields["next_observations"]
        best = self.net(after).argmax(-1, keepdim=True)
        return batch.rewards + batch.discounts * self.target(after).gather(1, best)[:, 0]


class Actors:
    """Actors in workers. They wait only if they get too far ahead, the learner if behind."""

    def __init__(self, make_env: MakeEnv, learner: Learner, options: Any) -> None:
        self.count = max(1, options.actors) * options.envs_per_actor
        self.settings = s = learner.settings
        self.actors = pysampler.Actors(
            make_env,
            EpsilonGreedy(copy.deepcopy(learner.net).cpu()),
            num_envs=self.count,
            num_workers=options.actors,
            high=2 * s.most * s.updates,
            settings={"epsilon": s.epsilon(learner.steps, self.count)},
            seed=options.seed,
        )
        self.like = self.actors.like
        self.adding = 0.0  # seconds

    def sample(self, learner: Learner) -> tuple[int, Any]:
        """Add new steps to the replay buffer; return how many, and returns of ended episodes."""
        s = self.settings
        records = self.actors.take(s.updates * s.most, min_records=s.updates * s.every)
        began = time.perf_counter()
        learner.add(records)
        self.adding += time.perf_counter() - began
        self.actors.settings["epsilon"][:] = s.epsilon(learner.steps, self.count)
        return len(records), records.ended

    def publish(self, learner: Learner) -> None:
        self.actors.publish(EpsilonGreedy(learner.net))

    @property
    def seconds(self) -> dict[str, float]:
        return learner_seconds(self.actors.stats(), self.adding)

    def close(self) -> None:
        self.actors.close()


def train(source: Actors, learner: Learner) -> Iterator[tuple[int, Any]]:
    """Train forever; yield how many steps were sampled, and returns of ended episodes."""
    s = learner.settings
    while True:
        steps, returns = source.sample(learner)
        if len(learner.replay) >= min(s.warmup, s.capacity):
            learner.learn()
            if learner.updates % s.publish == 0:
                source.publish(learner)
        yield steps, returns


def learn(options: argparse.Namespace, run: Run) -> None:
    """Sample and learn until the run is over."""
    make_env, net = made_of(options)
    settings = replace(ATARI if make_env.is_atari else SMALL, capacity=options.capacity)
    learner = Learner(net, settings)
    if found := run.restore(**learner.parts):
        learner.updates, learner.steps = found["updates"], run.steps
        learner.replay = found.get("replay")
    with contextlib.closing(Actors(make_env, learner, options)) as source:
        if learner.replay is None:
            learner.remember(source.like, options.seed)
        run.start(net, lambda: EpsilonGreedy(net.cpu()), make_env)
        for steps, returns in train(source, learner):
            run.advance(
                steps,
                returns,
                spent=source.seconds,
                updates=learner.updates,
                replay=len(learner.replay),
            )
            kept = {"replay": learner.replay} if options.checkpoint_replay else {}
            run.checkpoint(**learner.parts, **kept, updates=learner.updates)
            if run.over:
                return


def made_of(options: argparse.Namespace) -> tuple[MakeEnv, Network]:
    """Return what makes envs, and a network; exit with a message if it cannot learn the env."""
    make_env = maker_of(options.env)
    images, actions = spaces_of(make_env, "discrete", observations=3)
    if min(images.shape[1:] if make_env.is_atari else images.shape[:2]) < 3:
        sys.exit(f"cannot learn {options.env}: images {images.shape}, expected at least 3 x 3 x 1")
    net = Network(images, int(actions.n), is_stack=make_env.is_atari, bfloat16=options.bfloat16)
    return make_env, net.to(options.device)


def main() -> None:
    made = parser(__doc__, "ALE/Pong-v5", steps=2_000_000, until=None)
    made.add_argument(
        "--actors", type=at_least(0), default=2, help="worker processes; 0: act in this process"
    )
    made.add_argument("--envs-per-actor", type=at_least(1), default=8)
    text = "steps in the replay buffer; 7.6 GB for each million of stacked 84 x 84; default: 200000"
    made.add_argument("--capacity", type=at_least(1), default=200_000, help=text)
    text = "save the replay buffer in checkpoints too, which may take seconds and gigabytes"
    made.add_argument("--checkpoint-replay", action="store_true", help=text)
    text = "CPU threads of the learner; default: 1"
    made.add_argument("--threads", type=at_least(1), default=1, help=text)
    made.add_argument("--bfloat16", action="store_true", help="compute with numbers of 16 bits")
    add_play(made)
    made.set_defaults(episodes=10)
    options = parse(made)
    torch.set_num_threads(options.threads)
    # Adam's averages for weights without gradients become so small that the CPU is slow with them.
    torch.set_flush_denormal(True)
    if options.until is None:
        options.until = SOLVED.get(options.env)
    if options.play:
        make_env, net = made_of(options)
        load(net, options.play)
        play(options, EpsilonGreedy(net.cpu()), make_env)
        return
    run(learn, Run(options))


if __name__ == "__main__":
    main()
