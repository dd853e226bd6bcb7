"""Somebody who looks on: sees what was published, holds up nobody, and leaves whole files."""

import csv
import functools
import os
import signal

import gymnasium as gym
import numpy as np
import psutil
import pytest
from gymnasium import spaces
from scripted import Mortal, Scripted, policy

import pysampler
from pysampler.errors import ClosedError, WaitTimeoutError


class Told(gym.Env):
    """Rewards what it is told; its episodes are three steps long."""

    observation_space = spaces.Box(-1, 1, (1,), np.float64)
    action_space = spaces.Box(-100, 100, (1,), np.float64)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1), float(action[0]), self.steps == 3, False, {}

    def render(self):
        return np.full((32, 32, 3), 80 * self.steps, np.uint8)


class Says:
    """Does what its weight is."""

    def __init__(self):
        self.weight = np.zeros(())

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, weights):
        self.weight = weights["weight"].copy()

    def __call__(self, observations, *, scale=1.0):
        return np.full((len(observations), 1), self.weight) * np.reshape(scale, (-1, 1))


def test_each_episode_is_of_the_newest_weights():
    with pysampler.watch(Says(), Told) as watcher:
        while len(watcher.curve) < 1:
            os.sched_yield()
        for value in range(1, 6):
            version = watcher.publish({"weight": value}, at=100 * value)
            while value == 3 and watcher._state.shown < value + 1:
                os.sched_yield()  # it has ended before anybody waits for it
            episode = watcher.wait(1)[0]
            assert (episode["version"], episode["return"]) == (version, 3 * value)
            assert (episode["at"], episode["length"]) == (100 * value, 3)
        with pytest.raises(WaitTimeoutError):
            watcher.wait(1, timeout=0.05)  # not without new ones
        np.testing.assert_array_equal(watcher.curve["return"], 3.0 * np.arange(6))


def test_it_goes_on_without_new_weights_where_it_is_told_to():
    with pysampler.watch(Says(), Told, repeat=True) as watcher:
        assert (watcher.wait(20)["version"] == 1).all()
    with pysampler.watch(policy, functools.partial(Scripted, "..t")) as watcher:
        watcher.wait(2)  # it has no weights
        with pytest.raises(TypeError, match="cannot publish weights"):
            watcher.publish()


def test_it_follows_what_actors_are_given():
    says = Says()
    with (
        pysampler.actors(Told, says, num_envs=2, settings={"scale": 1.0}) as actors,
        pysampler.watch(actors, Told, settings={"scale": 2.0}) as watcher,
    ):
        seen = set()
        value = 0
        while len(seen) < 3:
            value += 1
            says.weight = np.array(value / 1000)
            actors.publish(says)
            actors.take(16)
            seen |= set(watcher.curve["return"].tolist()) - {0.0}
        curve = watcher.curve
        assert (np.diff(curve["at"]) >= 0).all()
        assert {round(one * 1000 / 6) for one in seen} <= set(range(1, value + 1))


def test_it_writes_returns_and_whole_videos(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos")
    options = {"folder": tmp_path / "some" / "where", "video_every": 3, "repeat": True}
    with pysampler.watch(Says(), Told, "rgb_array", **options) as watcher:
        watcher.wait(7)
        watcher.film()
        while watcher._state.filmed < 1:
            watcher.wait(1)
        curve = watcher.curve
    folder = tmp_path / "some" / "where"
    with (folder / "returns.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) >= len(curve)
    assert [float(line["return"]) for line in lines[: len(curve)]] == curve["return"].tolist()
    films = sorted(path.name for path in folder.glob("*.mp4"))
    assert {f"episode-{n:06}.mp4" for n in (0, 3, 6)} <= set(films)
    assert not any("part" in name for name in films)
    count, _ = ffmpeg.count_frames_and_secs(str(folder / "episode-000003.mp4"))
    assert count == 3  # before each step: in the last one it was reset


def test_a_watcher_that_is_killed_is_replaced():
    with pysampler.watch(Says(), Told) as watcher:
        for value in range(1, 3):
            watcher.publish({"weight": value})
            watcher.wait(1)
            os.kill(watcher.envs._pool.pids[0], signal.SIGKILL)
            watcher.publish({"weight": value + 0.5})
            while watcher.curve["return"][-1] != 3 * (value + 0.5):
                os.sched_yield()


def test_who_waits_for_a_watcher_that_is_killed_waits_for_the_next():
    with pysampler.watch(Says(), Told, repeat=True) as watcher:
        watcher.wait(1)
        for _ in range(2):
            os.kill(watcher.envs._pool.pids[0], signal.SIGKILL)
            assert len(watcher.wait(2000)) == 2000


def test_a_watcher_that_fails_warns_and_the_training_goes_on():
    says = functools.partial(Mortal, "raise", 3)
    with (
        pysampler.actors(Mortal, sine, num_envs=2) as actors,
        pysampler.watch(actors, says) as watcher,
    ):
        with pytest.warns(UserWarning, match="nobody watches any more: env 0 .* raised ValueError"):
            look_until_it_is_over(watcher)
        with pytest.raises(ClosedError):
            watcher.curve  # noqa: B018
        assert len(actors.take(8)) > 0


def look_until_it_is_over(watcher):
    while not watcher.closed:
        watcher.curve  # noqa: B018


def sine(observations):
    return np.sin(observations[:, 1:])


def test_nothing_is_left_of_it():
    watcher = pysampler.watch(Says(), Told)
    pids = watcher.envs._pool.pids
    watcher.close()
    watcher.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_bad_options_are_refused():
    for options, match in [
        ({"nice": 20}, "cannot watch: nice 20"),
        ({"video_every": 0}, "cannot watch: video_every 0"),
        ({"video_every": 2}, "videos need a folder"),
        ({"settings": {"scale": [1, 2]}}, "cannot watch: setting 'scale'"),
    ]:
        with pytest.raises(ValueError, match=match):
            pysampler.watch(Says(), Told, **options)
    with pysampler.watch(Says(), Told) as watcher, pytest.raises(ValueError, match="videos need"):
        watcher.film()
