"""PettingZoo parallel envs for tests of their vector env."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Leaving(ParallelEnv):
    """Agent i leaves after ``lengths[i]`` steps; observations count steps since the reset.

    Agents with an odd index are truncated, the others terminate. An agent's reward is its action.
    """

    render_mode = None

    def __init__(self, lengths=(2, 5, 3), kind="box"):
        self.lengths = dict(zip("abcdefgh", lengths, strict=False))
        self.possible_agents = list(self.lengths)
        self.agents = []
        self.kind = kind
        self.metadata = {"name": "leaving"}

    def observation_space(self, agent):
        box = spaces.Box(-100, 100, (3,), np.float32)
        if self.kind == "box":
            return box
        return spaces.Dict({"box": box, "both": spaces.Tuple([box, spaces.Discrete(100)])})

    def action_space(self, agent):
        return spaces.Discrete(10)

    def observe(self, agent):
        row = np.array([self.steps, self.possible_agents.index(agent), self.seed], np.float32)
        return row if self.kind == "box" else {"box": row, "both": (-row, self.steps)}

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.steps = 0
        self.seed = -1 if seed is None else seed
        return {agent: self.observe(agent) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents
        self.steps += 1
        ended = {agent: self.steps >= self.lengths[agent] for agent in self.agents}
        odd = {agent: self.possible_agents.index(agent) % 2 == 1 for agent in self.agents}
        results = (
            {agent: self.observe(agent) for agent in self.agents},
            {agent: float(actions[agent]) for agent in self.agents},
            {agent: ended[agent] and not odd[agent] for agent in self.agents},
            {agent: ended[agent] and odd[agent] for agent in self.agents},
            {agent: {} if agent == "b" else {"steps": self.steps} for agent in self.agents},
        )
        self.agents = [agent for agent in self.agents if not ended[agent]]
        return results


class Unequal(Leaving):
    def action_space(self, agent):
        return spaces.Discrete(10 + self.possible_agents.index(agent))


class Dying(Leaving):
    """Kills its worker when agent a takes action 9."""

    def step(self, actions):
        if actions.get("a") == 9:
            import os

            os._exit(1)
        return super().step(actions)


class Joining(Leaving):
    """Agents a and b leave after two steps; then c joins for two steps."""

    def __init__(self):
        super().__init__((2, 2, 4))

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = ["a", "b"]
        return {agent: self.observe(agent) for agent in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        results = super().step(actions)
        if self.steps == 2:
            self.agents = ["c"]
        return results
