"""An env of a few lines, whose parts are functions of it that a test gives."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


def _value_of(given, *arguments):
    return given(*arguments) if callable(given) else given


class Small(gym.Env):
    """Observes the steps of its episode, and rewards each with 1.

    Attributes:
        seed: The last seed that it was reset with.
        options: The options of the last reset, a dict.
        steps: The steps of the episode.
        life: All steps.
        episodes: How many episodes have begun.

    Args:
        length: The steps of an episode, or a function of the env, called in each reset. None: the
            episode does not end.
        cut: Whether episodes are truncated, or a function of the env.
        observe: A function of the env that returns its observation.
        reward: The reward of a step, or a function of the env and the action.
        info: The info of a step, or a function of the env.
        reset_info: The info of a reset, or a function of the env.
        before: A function of the env, called before each step: it may wait, raise or die.
        picture: A function of the env that renders it.
        spaces: The spaces of observations and actions; by default a number each.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = spaces.Box(-(2.0**40), 2.0**40, (1,), np.float64)
    action_space = spaces.Box(-(2.0**40), 2.0**40, (1,), np.float64)

    def __init__(
        self,
        length=None,
        *,
        cut=False,
        observe=lambda env: np.array([env.steps], np.float64),
        reward=1.0,
        info=None,
        reset_info=None,
        before=None,
        picture=None,
        spaces=(),
        render_mode=None,
    ):
        self.length_of, self.cut, self.observe = length, cut, observe
        self.reward, self.info, self.reset_info = reward, info, reset_info
        self.before, self.picture, self.render_mode = before, picture, render_mode
        self.seed, self.life, self.episodes = None, 0, 0
        if spaces:
            self.observation_space, self.action_space = spaces

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = self.seed if seed is None else seed
        self.options = options or {}
        self.steps = 0
        self.episodes += 1
        self.length = _value_of(self.length_of, self)
        return self.observe(self), _value_of(self.reset_info, self) or {}

    def step(self, action):
        assert self.length is None or self.steps < self.length, "stepped after the end"
        if self.before is not None:
            self.before(self)
        self.steps += 1
        self.life += 1
        over = self.steps == self.length
        cut = over and _value_of(self.cut, self)
        reward = float(_value_of(self.reward, self, action))
        info = _value_of(self.info, self) or {}
        return self.observe(self), reward, over and not cut, cut, info

    def render(self):
        return self.picture(self)


def still(observations):
    return np.zeros((len(observations), 1))
