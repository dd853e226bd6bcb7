"""Somebody who looks on: sees what was published, holds up nobody, and leaves whole files."""

import csv
import functools
import itertools
import os
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import gymnasium as gym
import numpy as np
import psutil
import pytest
from disk import full_after, small_disk
from gymnasium import spaces
from interrupts import at_point
from scripted import Mortal, Scripted, policy

import pysampler
from pysampler._actors.watcher_policy import EPISODE, _append
from pysampler._workers.exceptions import Raised
from pysampler.errors import BusyError, ClosedError, StopActors, WaitTimeoutError


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


class Noisy(Told):
    """Its pictures cannot be compressed."""

    def render(self):
        return self.np_random.integers(0, 256, (128, 128, 3), np.uint8)


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
    with pysampler.Watcher(Says(), Told) as watcher:
        while len(watcher.curve) < 1:
            os.sched_yield()
        for value in range(1, 6):
            version = watcher.publish({"weight": value}, at=100 * value)
            while value == 3 and watcher._state.episodes < value + 1:
                os.sched_yield()  # it has ended before anybody waits for it
            episode = watcher.wait(1)[0]
            assert (episode["version"], episode["return"]) == (version, 3 * value)
            assert (episode["at"], episode["length"]) == (100 * value, 3)
        with pytest.raises(WaitTimeoutError):
            watcher.wait(1, timeout=0.05)  # not without new ones
        np.testing.assert_array_equal(watcher.curve["return"], 3.0 * np.arange(6))


def test_it_goes_on_without_new_weights_where_it_is_told_to():
    with pysampler.Watcher(Says(), Told, repeat=True) as watcher:
        assert (watcher.wait(20)["version"] == 1).all()
    with pysampler.Watcher(policy, functools.partial(Scripted, "..t")) as watcher:
        watcher.wait(2)  # it has no weights
        with pytest.raises(TypeError, match="cannot publish weights"):
            watcher.publish()


def test_it_follows_what_actors_are_given():
    says = Says()
    with (
        pysampler.Actors(Told, says, num_envs=2, settings={"scale": 1.0}) as actors,
        pysampler.Watcher(actors, Told, settings={"scale": 2.0}) as watcher,
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the watcher has ended")
def test_full_disk_leaves_no_video_that_cannot_be_played(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos")
    with small_disk(tmp_path / "disk", 1 << 17) as disk:
        options = {"folder": disk, "repeat": True, "video_every": 1}
        with (
            pysampler.Watcher(Says(), Noisy, "rgb_array", **options) as watcher,
            pytest.raises(ClosedError, match="it is over") as caught,
        ):
            watcher.wait(100)
        told = str(caught.value.__cause__)
        assert f"writing {disk}/episode-" in told
        assert "the video is incomplete" in told
        videos = [path for path in disk.iterdir() if path.suffix == ".mp4"]
        for path in videos:
            assert ffmpeg.count_frames_and_secs(path)[0] == 3
        assert not any(".part" in path.name for path in videos)


def test_full_disk_leaves_whole_rows_of_episodes(tmp_path):
    path = tmp_path / "returns.csv"
    _append(path, np.zeros(1, EPISODE)[0])
    before = path.read_bytes()
    with full_after(len(before) + 3), pytest.raises(Raised, match=r"returns\.csv"):
        _append(path, np.zeros(1, EPISODE)[0])
    assert path.read_bytes() == before


@pytest.mark.slow
def test_it_writes_returns_and_whole_videos(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos")
    options = {"folder": tmp_path / "some" / "where", "video_every": 3, "repeat": True}
    with pysampler.Watcher(Says(), Told, "rgb_array", **options) as watcher:
        watcher.wait(7)
        watcher.film()
        while watcher._state.videos_made < 1:
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
    with pysampler.Watcher(Says(), Told) as watcher:
        for value in range(1, 3):
            watcher.publish({"weight": value})
            watcher.wait(1)
            os.kill(watcher.envs._pool.pids[0], signal.SIGKILL)
            watcher.publish({"weight": value + 0.5})
            while watcher.curve["return"][-1] != 3 * (value + 0.5):
                os.sched_yield()


@pytest.mark.slow
def test_who_waits_for_a_watcher_that_is_killed_waits_for_the_next():
    with pysampler.Watcher(Says(), Told, repeat=True) as watcher:
        watcher.wait(1)
        for _ in range(2):
            os.kill(watcher.envs._pool.pids[0], signal.SIGKILL)
            assert len(watcher.wait(2000)) == 2000


def test_a_watcher_that_fails_warns_and_the_training_goes_on():
    says = functools.partial(Mortal, "raise", 3)
    with (
        pysampler.Actors(Mortal, Sine(), num_envs=2) as actors,
        pysampler.Watcher(actors, says) as watcher,
    ):
        with pytest.warns(UserWarning, match="the watcher has ended: env 0 .* raised ValueError"):
            look_until_it_is_over(watcher)
        assert len(watcher.curve) == 0  # of the only episode there is no end
        with pytest.raises(ClosedError, match="it is over, and 0 of 1 episodes ended"):
            watcher.wait(1)
        actors.publish()  # to the others
        assert len(actors.take(8)) > 0


def look_until_it_is_over(watcher):
    while not watcher.closed:
        watcher.curve  # noqa: B018


class Sine(Says):
    """Has a weight, for which it does not care."""

    def __call__(self, observations):
        return np.sin(observations[:, 1:])


class FailsLater(Told):
    """Its third episode raises."""

    episodes = 0

    def reset(self, **kwargs):
        self.episodes += 1
        return super().reset(**kwargs)

    def step(self, action):
        if self.episodes == 3:
            raise ValueError("told to")
        return super().step(action)


def test_what_a_watcher_that_failed_has_collected_stays_readable_and_nothing_raises():
    with pysampler.Watcher(Says(), FailsLater, repeat=True) as watcher:
        with pytest.warns(UserWarning, match="the watcher has ended: env 0 .* raised ValueError"):
            look_until_it_is_over(watcher)
        assert len(watcher.curve) == 2
        assert len(watcher.wait(2)) == 2
        assert watcher.publish({"weight": 5}) == 1
        watcher.film()
        with pytest.raises(ClosedError, match="it is over, and 0 of 1") as caught:
            watcher.wait(1)
        assert isinstance(caught.value.__cause__, ValueError)
    assert len(watcher.curve) == 2


def test_what_was_collected_stays_readable_when_it_is_closed():
    with pysampler.Watcher(Says(), Told) as watcher:
        while watcher._state.episodes < 1 or len(watcher._ring) < 1:
            os.sched_yield()
    assert watcher.curve["length"].tolist() == [3]
    with pytest.raises(ClosedError):
        watcher.publish({"weight": 1})
    with pytest.raises(ClosedError):
        watcher.film()


class Quits(Says):
    def __call__(self, observations):
        if self.weight == 1:
            raise StopActors
        return super().__call__(observations)


def test_who_waits_is_told_when_nothing_more_comes():
    with pysampler.Watcher(Says(), Told) as watcher:
        watcher.wait(1)
        watcher.stop()
        with pytest.raises(ClosedError, match="it is over, and 0 of 3 episodes ended"):
            watcher.wait(3)
    with pysampler.Watcher(Quits(), Told) as watcher:
        watcher.wait(1)
        watcher.publish({"weight": 1})
        with pytest.raises(ClosedError, match="it is over, and 0 of 1 episodes ended"):
            watcher.wait(1)
        assert len(watcher.curve) == 1


def test_who_waits_is_told_when_the_actors_are_closed_that_published():
    actors = pysampler.Actors(Told, Says(), num_envs=1)
    with pysampler.Watcher(actors, Told) as watcher:
        watcher.wait(1)
        actors.publish({"weight": 3})
        actors.close()
        assert watcher.wait(1)["version"].tolist() == [2]
        with pytest.raises(ClosedError, match="it is over, and 0 of 1 episodes ended"):
            watcher.wait(1)


def in_threads(*functions):
    """Call functions again and again, each in a thread of its own, for 200 calls of the first."""
    raised = []
    over = threading.Event()

    def run(function, count):
        try:
            while count != 0 and not over.is_set():
                function()
                count -= 1
        except BaseException as error:
            raised.append(error)
        finally:
            if count >= 0:
                over.set()

    counts = [200] + [-1] * (len(functions) - 1)
    threads = [
        threading.Thread(target=run, args=pair) for pair in zip(functions, counts, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


@pytest.mark.slow
def test_threads_may_look_at_it_while_others_publish():
    with (
        pysampler.Actors(Told, Says(), num_envs=2) as actors,
        pysampler.Watcher(actors, Told, repeat=True) as watcher,
    ):
        in_threads(
            lambda: watcher.wait(1, 10),
            actors.publish,
            lambda: watcher.curve,
            lambda: watcher.curve,
        )
        assert not watcher.closed
        assert (watcher.curve["length"] == 3).all()
        assert len(watcher.curve) >= 200


@pytest.mark.slow
def test_it_may_be_made_and_closed_while_another_thread_publishes():
    def cycle():
        with pysampler.Watcher(actors, Told) as watcher:
            assert len(watcher.wait(1, 30)) == 1

    with pysampler.Actors(Told, Says(), num_envs=2) as actors:
        actors.begin()
        over = threading.Event()
        raised = []

        def publish():
            try:
                while not over.is_set():
                    actors.publish()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            for _ in range(8):
                cycle()
        finally:
            over.set()
            thread.join()
        assert raised == []
        assert actors._followers == []


@pytest.mark.slow
def test_it_may_be_closed_while_another_thread_looks():
    for _ in range(10):
        with pysampler.Watcher(Says(), Told, repeat=True) as watcher:
            thread = threading.Thread(target=look_until_it_is_over, args=[watcher])
            thread.start()
            watcher.wait(1)
        thread.join()


def test_threads_that_publish_at_once_are_told():
    with pysampler.Watcher(Says(), Told) as watcher:
        entered = watcher._publish_guard.entry("publish weights")
        told = "another thread is using the weights of a watcher"
        with ThreadPoolExecutor(1) as pool, entered, pytest.raises(BusyError, match=told):
            pool.submit(watcher.publish).result()
        watcher.publish()


@pytest.mark.slow
def test_an_exception_of_a_signal_handler_loses_no_episode():
    with pysampler.Watcher(Says(), Told) as watcher:
        watcher.wait(1)
        for n in itertools.count(1):
            watcher.publish({"weight": n})
            while len(watcher._ring) == 0:
                os.sched_yield()
            reached, _, where = at_point(n, lambda: watcher.curve)
            assert watcher.curve["return"].tolist() == [3.0 * i for i in range(n + 1)], where
            if not reached:
                break


@pytest.mark.slow
def test_a_signal_handler_may_close_it_while_it_looks():
    """What it came into ends by that, and no failure is told."""
    for n in itertools.count(1):
        with pysampler.Watcher(Says(), Told) as watcher:
            watcher.wait(1)
            looking = ("_check_workers", "_wait_some", "wait", "_until", "_received")
            reached, _, where = at_point(
                *(n, lambda w=watcher: w.curve, lambda *_, w=watcher: w.close()), only=looking
            )
            assert watcher.closed == reached, where
            assert watcher._failure is None, where
            assert len(watcher.curve) == 1
        if not reached:
            break
    assert n > 5


def test_nothing_is_left_of_it():
    watcher = pysampler.Watcher(Says(), Told)
    pids = watcher.envs._pool.pids
    watcher.close()
    watcher.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_bad_options_are_refused():
    for options, match in [
        ({"nice": 20}, "cannot watch: nice 20"),
        ({"fps": -1}, "cannot watch: fps -1, expected a whole number of at least 1"),
        ({"fps": 0}, "cannot watch: fps 0"),
        ({"folder": 3}, "cannot watch: folder 3, expected a path"),
        ({"settings": 3}, "cannot watch: settings 3, expected a dict of numbers by name"),
        ({"settings": {3: 1}}, r"cannot watch: settings \{3: 1\}, expected a dict of numbers"),
        ({"settings": {"scale": [[1], [1, 2]]}}, "cannot watch: setting 'scale'"),
        ({"vector_kwargs": {"num_workers": 0}}, "cannot watch: num_workers 0, expected 1"),
        ({"video_every": 0}, "cannot watch: video_every 0"),
        ({"video_every": 2}, "videos need a folder"),
        ({"settings": {"scale": [1, 2]}}, "cannot watch: setting 'scale'"),
    ]:
        with pytest.raises(ValueError, match=match):
            pysampler.Watcher(Says(), Told, **options)
    with pysampler.Watcher(Says(), Told) as watcher:
        for call, match in [
            (watcher.film, "videos need"),
            (lambda: watcher.wait(-1), "cannot watch: count -1, expected a whole number"),
            (lambda: watcher.wait("x"), "cannot watch: count 'x'"),
            (lambda: watcher.wait(1, "x"), "cannot watch: timeout 'x', expected seconds >= 0"),
            (lambda: watcher.wait(1, float("nan")), "cannot watch: timeout nan"),
            (lambda: watcher.wait(1, -1), "cannot watch: timeout -1"),
            (lambda: watcher.publish(at=-1), "cannot watch: at -1"),
        ]:
            with pytest.raises(ValueError, match=match):
                call()
        with pytest.raises(TypeError, match="cannot publish weights: int, expected a dict of"):
            watcher.publish(5)
        assert len(watcher.wait(1, float("inf"))) == 1


def test_imageio_and_its_ffmpeg_are_asked_for_at_once(tmp_path, monkeypatch):
    options = {"folder": tmp_path / "films", "video_every": 2}
    for missing in ("imageio", "imageio_ffmpeg"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(ImportError, match="videos need imageio and its ffmpeg: pip"):
                pysampler.Watcher(Says(), Told, "rgb_array", **options)
    assert not options["folder"].exists()


class Invisible(Told):
    def __init__(self, render_mode=None, picture=None):
        super().__init__(render_mode)
        self.picture = picture

    def render(self):
        if self.picture is None:
            raise ValueError("told to")
        return self.picture


@pytest.mark.parametrize(
    ("picture", "told"),
    [
        (None, r"env 0 in worker 0 .* raised ValueError in render\(\): told to"),
        (["a"], r"env 0 in worker 0 .* raised TypeError in render\(\): it returned list, expected"),
    ],
)
def test_what_render_raises_is_the_envs(tmp_path, picture, told):
    pytest.importorskip("imageio_ffmpeg", reason="videos")
    env = functools.partial(Invisible, picture=picture)
    with pysampler.Watcher(Says(), env, "rgb_array", folder=tmp_path, video_every=1) as watcher:
        with pytest.warns(UserWarning, match=told):
            look_until_it_is_over(watcher)
        assert list(tmp_path.iterdir()) == []


def test_an_episode_that_is_told_is_in_the_table(tmp_path):
    os.mkfifo(tmp_path / "returns.csv")  # Opening it waits for a reader.
    with pysampler.Watcher(Says(), Told, folder=tmp_path) as watcher:
        with pytest.raises(WaitTimeoutError, match="0 of 1 episodes ended"):
            watcher.wait(1, timeout=0.3)
        with pytest.warns(UserWarning, match="returns.csv"), (tmp_path / "returns.csv").open():
            look_until_it_is_over(watcher)


def test_a_folder_that_is_gone_is_told_as_such(tmp_path):
    folder = tmp_path / "some where"
    with pysampler.Watcher(Says(), Told, folder=folder) as watcher:
        watcher.wait(1)
        shutil.rmtree(folder)
        watcher.publish()
        told = "the env server in worker 0 .* raised FileNotFoundError writing .*/returns.csv"
        with pytest.warns(UserWarning, match=told):
            look_until_it_is_over(watcher)
        assert len(watcher.curve) == 2
