"""Counts of steps and episodes against their definition as a loop."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pysampler import _core
from pysampler._frames.frames import BEGUN, LOST
from pysampler._policies.warm_up import EpisodesSoFar
from pysampler._rollouts.rollout import Ended


class SlowTally:
    """The same counts as a plain loop."""

    def __init__(self, so_far):
        self.returns, self.lengths = so_far.returns.copy(), so_far.lengths.copy()
        self.begins = so_far.lengths == 0

    def count(self, frames, made):
        steps, envs = frames.rewards.shape
        starts = np.zeros((steps + 1, envs), bool)
        valid, lost = np.zeros((2, steps, envs), bool)
        starts[0] = self.begins
        ended = []
        for env in range(envs):
            for t in range(made[env]):
                lost[t, env] = frames.has_final[t, env] == LOST
                valid[t, env] = not lost[t, env]
                self.returns[env] += frames.rewards[t, env]
                self.lengths[env] += 1
                if frames.terminated[t, env] or frames.truncated[t, env]:
                    starts[t + 1, env] = True
                    if valid[t, env]:
                        ended.append((env, t, self.returns[env], self.lengths[env]))
                    self.returns[env] = self.lengths[env] = 0
            self.begins[env] = starts[made[env], env]
        return starts, valid, lost, ended


@pytest.mark.slow
@given(data=st.data(), steps=st.integers(1, 6), envs=st.integers(1, 4), rollouts=st.integers(1, 3))
def test_tally_equals_its_definition(data, steps, envs, rollouts):
    draw, shape = data.draw, (steps, envs)
    lengths = draw(arrays.arrays(np.int64, envs, elements=st.integers(0, 3)))
    so_far = EpisodesSoFar(lengths * 0.1, lengths)
    tally = _core.Tally(so_far.returns.tolist(), so_far.lengths.tolist(), LOST, BEGUN)
    slow = SlowTally(so_far)
    for _ in range(rollouts):
        flags = arrays.arrays(np.bool_, shape)
        frames = SimpleNamespace(
            envs=envs,
            rewards=draw(arrays.arrays(np.float64, shape, elements=st.floats(-1, 1))),
            terminated=draw(flags),
            truncated=draw(flags),
            has_final=draw(arrays.arrays(np.uint8, shape, elements=st.integers(0, LOST))),
        )
        marks = np.empty((steps + 1, envs), bool), np.empty(shape, bool), np.empty(shape, bool)
        made = draw(arrays.arrays(np.int64, envs, elements=st.integers(0, steps)))
        if draw(st.booleans()):
            tally.begin_episodes()
            slow.__init__(EpisodesSoFar(np.zeros(envs), np.zeros(envs, np.int64)))
        counted = tally.count(
            *(frames.rewards, frames.terminated, frames.truncated, frames.has_final, made, *marks)
        )
        *expected, ended = slow.count(frames, made)
        for name, mark, array in zip(["starts", "valid", "lost"], marks, expected, strict=True):
            assert np.array_equal(mark, array), name
        found = Ended(*counted)
        assert found.env.tolist() == [one[0] for one in ended]
        assert found.step.tolist() == [one[1] for one in ended]
        assert found.returns.tolist() == [one[2] for one in ended]  # bit for bit
        assert found.lengths.tolist() == [one[3] for one in ended]
