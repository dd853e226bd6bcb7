"""Small envs that do as an action says: end an episode, or fail. Subclasses add the rest."""

import ctypes
import os
import signal
import threading

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

OK, END, RAISE, KILL, HANG, OS_EXIT, EXIT, SEGV, HANG_IN_C, INTERRUPT = range(10)


def fail(action):
    """Fail in the way that an action says."""
    if action == RAISE:
        raise ValueError("told to raise")
    if action == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    if action == HANG:
        threading.Event().wait()
    if action == OS_EXIT:
        os._exit(7)
    if action == EXIT:
        raise SystemExit(3)
    if action == SEGV:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # an imported pygame would abort instead
        ctypes.string_at(0)
    if action == HANG_IN_C:
        ctypes.PyDLL(None).pause()  # with the GIL
    if action == INTERRUPT:
        raise KeyboardInterrupt


class SmallEnv(gym.Env):
    """Observes (steps of the episode, its seed); a subclass replaces what differs.

    Attributes:
        lengths: Bounds of the random lengths of its episodes; None: only actions end them.
        left: The steps that are left of the episode.
        steps: The steps of the episode so far.
        resets: The resets so far.
        seed: The seed that it got last; -1 if none.
        options: The options of the last reset.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(16)
    lengths = None
    left = np.inf
    steps = resets = 0
    seed = -1
    options = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = self.seed if seed is None else seed
        self.options = options
        self.steps = 0
        self.resets += 1
        if self.lengths is not None:
            self.left = int(self.np_random.integers(*self.lengths))
        return self.observe(), self.begins()

    def step(self, action):
        self.act(action)
        self.steps += 1
        self.left -= 1
        return self.observe(), self.reward(action), self.ends(action), False, self.info(action)

    def act(self, action):
        if np.ndim(action) == 0:
            fail(action)

    def observe(self):
        return np.array([self.steps, self.seed], np.float64)

    def begins(self):
        """Return the info of a reset."""
        return {}

    def info(self, action):
        return {}

    def reward(self, action):
        return 1.0

    def ends(self, action):
        return bool(action == END or self.left <= 0)


class Drawing(SmallEnv):
    """Observes a random number and the steps left of its episode; its actions do nothing."""

    action_space = spaces.Discrete(3)
    lengths = 2, 9

    def act(self, action):
        pass

    def observe(self):
        return np.array([self.np_random.random(), self.left])

    def ends(self, action):
        return self.left <= 0

    def info(self, action):
        return {"left": self.left}


class SmallBatch(gym.vector.VectorEnv):
    """A vector env that returns its own buffer: (its seeds, steps of the episode) of each env.

    Args:
        mode: Its autoreset mode.
        count: The number of envs.
        length: The length of all episodes.
        infos: Returns the infos of the n-th step.
        actions: The space of an env's actions. The action of the first may make it fail.
    """

    single_observation_space = spaces.Box(-1e6, 1e6, (2,), np.float64)
    single_action_space = spaces.Discrete(16)

    def __init__(self, mode, count=2, length=np.inf, infos=None, actions=None):
        self.num_envs, self.length = count, length
        self.metadata = {"autoreset_mode": mode}
        self.single_action_space = actions or self.single_action_space
        self.observation_space = batch_space(self.single_observation_space, count)
        self.action_space = batch_space(self.single_action_space, count)
        self.at = np.full((count, 2), -1.0)
        self.infos = infos or (lambda calls: {})
        self.calls = 0

    def reset(self, *, seed=None, options=None):
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.at[:, 0] = -1 if seed is None else seed + np.arange(self.num_envs)
        self.at[chosen, 1] = 0
        return self.at, self.infos(self.calls)

    def step(self, actions):
        fail(actions[0])
        self.calls += 1
        self.at[:, 1] += 1
        ones, never = np.ones(self.num_envs), np.zeros(self.num_envs, bool)
        return self.at, ones, self.at[:, 1] >= self.length, never, self.infos(self.calls)
