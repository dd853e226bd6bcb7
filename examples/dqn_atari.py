"""DQN from pixels: actors sample all the time, torch learns all the time.

    python examples/dqn_atari.py                        # Pong: pip install 'pysampler[atari]'
    python examples/dqn_atari.py --env ALE/Breakout-v5 --steps 10000000
    python examples/dqn_atari.py --env MinAtar/Breakout-v1  # small games: pip install minatar
    python examples/dqn_atari.py --env MinAtar/Breakout-v1 --prioritised --dueling --categorical
    python examples/dqn_atari.py --device cuda          # learns on a GPU; acting stays on the CPU
    python examples/dqn_atari.py --bfloat16             # faster on CPUs with AMX, and on GPUs
    python examples/dqn_atari.py --save best.pt --plot returns.png
    python examples/dqn_atari.py --checkpoints run      # resumes from the last checkpoint, if any
    python examples/dqn_atari.py --play best.pt         # evaluates saved weights
    python examples/dqn_atari.py --play best.pt --show human      # or video

Learns any env with images and discrete actions: stacks of the last four screens of Atari games,
images of height x width x channels of all others. Images stay bytes until they are on the
learner's device. The returns shown are sums of the game's own rewards; those that are learned from
are clipped to -1 .. 1 for Atari games. Learner, actors and parts of Rainbow are those of dqn.py.

The progress bar shows the mean return of the last 100 episodes, updates, the size of the replay
buffer, and which share of its time the learner waits. Actors run freely, so two runs with the same
seed differ. Ctrl-C stops the training and prints the result so far.
"""

from __future__ import annotations

import argparse
import copy
import sys
from dataclasses import dataclass, replace
from typing import Any

try:
    import dqn
    import gymnasium as gym
    import numpy as np
    import torch
    from common import add_play, at_least, parse, parser, spaces_of
    from gymnasium.envs.registration import EnvSpec
    from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation
    from torch import nn

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")


# -- hyperparameters -------------------------------------------------------------------------------


@dataclass
class Settings(dqn.Settings):
    """The hyperparameters; returns of ``--categorical`` are those of clipped rewards [6].

    The sources are [1] Mnih et al. 2015 (DQN), [2] Lapan 2018 (Deep Reinforcement Learning
    Hands-On, for Pong), [3] Hessel et al. 2018 (Rainbow), [4] Horgan et al. 2018 (Ape-X),
    [5] Young and Tian 2019 (MinAtar), and [6] Bellemare et al. 2017 (distributions of returns).
    """

    n_step: int = 3  # [3]
    batch: int = 32  # [1], [2], [5]
    updates: int = 8  # in a row, before the next records are taken
    publish: int = 32
    capacity: int = 200_000  # --capacity
    returns: tuple[float, float] = (-10.0, 10.0)  # [6]
    clip: bool = False  # whether to learn from rewards clipped to -1 .. 1, as [1]


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
    returns=(0.0, 20.0),  # of Breakout, whose later points are discounted
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


class Network(dqn.RainbowNet):
    """A network for the values of all actions, from images: those of DQN, or of MinAtar if small.

    Args:
        images: The space of observations: frames, height and width, or height, width and channels.
        actions: The number of actions.
        s: The hyperparameters; the width is that of the published network.
        is_stack: Whether images are stacks of frames.
        bfloat16: Whether all layers but the last work with numbers of 16 bits.
    """

    def __init__(
        self,
        images: gym.spaces.Box,
        actions: int,
        s: dqn.Settings,
        *,
        is_stack: bool,
        bfloat16: bool = False,
    ) -> None:
        channels, *size = images.shape if is_stack else np.roll(images.shape, 1).tolist()
        is_large = min(size) >= 36
        before = [*(large_images if is_large else small_images)(channels), nn.Flatten()]
        with torch.no_grad():
            count = nn.Sequential(*before)(torch.zeros(1, channels, *size)).shape[1]
        super().__init__(count, actions, replace(s, width=512 if is_large else 128), before)
        self.is_stack, self.bfloat16 = is_stack, bfloat16
        self.scale = 1 / 255 if images.dtype == np.uint8 else 1.0
        self.to(memory_format=torch.channels_last)  # a quarter more updates per second

    def features(self, images: torch.Tensor) -> torch.Tensor:
        images = images if self.is_stack else images.permute(0, 3, 1, 2)
        images = images.to(torch.float32, memory_format=torch.channels_last) * self.scale
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
            found = self.body(images)
        return found.float()


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
        actions = torch.randint(self.net.advantages.out_features // self.net.atoms, (count,))
        greedy = torch.rand(count) >= torch.as_tensor(epsilon)
        if greedy.any():  # the network is not called for those that explore
            actions[greedy] = self.net(images[greedy]).argmax(-1)
        return actions


# -- training --------------------------------------------------------------------------------------


class Learner(dqn.Learner):
    """DQN's learner from images: each frame of a stack is stored once, rewards may be clipped."""

    def policy(self) -> EpsilonGreedy:
        return EpsilonGreedy(copy.deepcopy(self.net).cpu())

    def greedy(self) -> EpsilonGreedy:
        self.net.eval()  # without noise
        return EpsilonGreedy(self.net.cpu())

    def published(self) -> EpsilonGreedy:
        return EpsilonGreedy(self.net)

    def add(self, records: pysampler.Records) -> None:
        """Add what actors recorded; the returns in the records stay those of the game."""
        if self.settings.clip:
            np.clip(records.rewards, -1, 1, out=records.rewards)
        super().add(records)


def learner_of(options: argparse.Namespace, make_env: MakeEnv) -> Learner:
    """Return the learner; exit with a message if it cannot learn the env."""
    images, actions = spaces_of(make_env, "discrete", observations=3)
    if min(images.shape[1:] if make_env.is_atari else images.shape[:2]) < 3:
        sys.exit(f"cannot learn {options.env}: images {images.shape}, expected at least 3 x 3 x 1")
    settings = replace(ATARI if make_env.is_atari else SMALL, capacity=options.capacity)
    s = dqn.with_parts(settings, options)
    kind = {"is_stack": make_env.is_atari, "bfloat16": options.bfloat16}
    net = Network(images, int(actions.n), s, **kind).to(options.device)
    seen = np.zeros(images.shape, images.dtype)
    like = {"observations": seen, "next_observations": seen}
    like["actions"] = np.zeros((), actions.dtype)
    learner = Learner(net, like, s, options.seed, stacks=["observations"] * make_env.is_atari)
    learner.keeps_replay = options.checkpoint_replay
    return learner


def main() -> None:
    made = parser(__doc__, "ALE/Pong-v5", steps=2_000_000, until=None)
    dqn.add_actors(made, 2)
    dqn.add_parts(made)
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
    make_env = maker_of(options.env)
    dqn.run_or_play(options, learner_of(options, make_env), make_env)


if __name__ == "__main__":
    main()
