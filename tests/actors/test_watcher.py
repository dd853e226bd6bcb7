"""Watcher: evaluates published weights, blocks no actor, and leaves complete files."""

import csv
import functools
import itertools
import os
import shutil
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest
from disk import full_after, small_disk
from fork_server_in_tests import wait_until
from forks_in_tests import Fork
from hammers import calling, together
from interrupts import at_point
from scripted import Mortal, Scripted, policy
from small_envs import Small

import pysampler
from pysampler._actors import watcher
from pysampler._actors.watcher_policy import EPISODE, _append
from pysampler._workers.exceptions import Raised
from pysampler.errors import BusyError, ClosedError, StopActors, WaitTimeoutError

# Its reward is the action; episodes have three steps.
RewardsAction = functools.partial(
    Small,
    3,
    reward=lambda env, action: action[0],
    picture=lambda env: np.full((32, 32, 3), 80 * env.steps, np.uint8),
)


def is_asleep(pid):
    return psutil.Process(pid).status() == psutil.STATUS_SLEEPING


def noise(env):
    """Return a picture that does not compress."""
    return env.np_random.integers(0, 256, (128, 128, 3), np.uint8)


class ConstantPolicy:
    """Its action is its weight."""

    def __init__(self):
        self.weight = np.zeros(())

    def state_dict(self):
        return {"weight": self.weight}

    def load_state_dict(self, weights):
        self.weight = weights["weight"].copy()

    def __call__(self, observations, *, scale=1.0):
        return np.full((len(observations), 1), self.weight) * np.reshape(scale, (-1, 1))


@pytest.mark.slow
def test_episodes_that_do_not_fit_into_the_ring_cause_a_warning(monkeypatch):
    monkeypatch.setattr(watcher, "_SLOTS", 4)
    with pysampler.Watcher(ConstantPolicy(), RewardsAction, repeat=True) as watching:
        wait_until(lambda: watching._state.episodes >= 8)
        with pytest.warns(UserWarning, match=r"[1-9]\d* episodes are missing in the curve"):
            assert len(watching.curve) >= 4


def push_right(observations):
    return np.ones(len(observations), np.int64)


def niceness_of_a_watcher(nice):
    with pysampler.Watcher(push_right, "CartPole-v1", nice=nice) as watcher:
        watcher.wait(1)
        return os.getpriority(os.PRIO_PROCESS, watcher.envs._pool.pids[0])


@pytest.mark.slow
def test_the_worker_is_at_least_as_nice_as_the_program():
    assert niceness_of_a_watcher(10) == max(10, os.getpriority(os.PRIO_PROCESS, 0))

    def look(wait):
        wait()
        os.setpriority(os.PRIO_PROCESS, 0, 15)
        return niceness_of_a_watcher(10)

    assert Fork(look).result() == 15


def test_each_episode_uses_the_newest_weights():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        wait_until(lambda: len(watcher.curve) >= 1)
        for value in range(1, 6):
            version = watcher.publish({"weight": value}, at=100 * value)
            while value == 3 and watcher._state.episodes < value + 1:
                os.sched_yield()  # the episode ends before anyone waits for it
            episode = watcher.wait(1)[0]
            assert (episode["version"], episode["return"]) == (version, 3 * value)
            assert (episode["at"], episode["length"]) == (100 * value, 3)
        with pytest.raises(WaitTimeoutError):
            watcher.wait(1, timeout=0.05)  # no episode without new weights
        np.testing.assert_array_equal(watcher.curve["return"], 3.0 * np.arange(6))


def test_repeat_plays_episodes_without_new_weights():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction, repeat=True) as watcher:
        assert (watcher.wait(20)["version"] == 1).all()
    with pysampler.Watcher(policy, functools.partial(Scripted, "..t")) as watcher:
        watcher.wait(2)  # it has no weights
        with pytest.raises(TypeError, match="cannot publish weights"):
            watcher.publish()


def test_wait_returns_episodes_that_ended_before_a_refused_publish():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        wait_until(lambda: len(watcher.curve) >= 1)
        with pytest.raises(TypeError, match="cannot publish weights: int, expected a dict of"):
            watcher.publish(5)
        assert len(watcher.wait(1, float("inf"))) == 1


def test_a_watcher_follows_what_actors_publish():
    acting = ConstantPolicy()
    with (
        pysampler.Actors(RewardsAction, acting, num_envs=2, settings={"scale": 1.0}) as actors,
        pysampler.Watcher(actors, RewardsAction, settings={"scale": 2.0}) as watcher,
    ):
        seen = set()
        value = 0
        while len(seen) < 3:
            value += 1
            acting.weight = np.array(value / 1000)
            actors.publish(acting)
            actors.take(16)
            seen |= set(watcher.curve["return"].tolist()) - {0.0}
        curve = watcher.curve
        assert (np.diff(curve["at"]) >= 0).all()
        assert {round(one * 1000 / 6) for one in seen} <= set(range(1, value + 1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*the watcher has ended")
def test_full_disk_leaves_only_playable_videos(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos")
    with small_disk(tmp_path / "disk", 1 << 17) as disk:
        options = {"folder": disk, "repeat": True, "video_every": 1}
        noisy = functools.partial(RewardsAction, picture=noise)
        with (
            pysampler.Watcher(ConstantPolicy(), noisy, "rgb_array", **options) as watcher,
            pytest.raises(ClosedError, match="the watcher ended") as caught,
        ):
            watcher.wait(100)
        told = str(caught.value.__cause__)
        assert f"writing {disk}/episode-" in told
        assert "the video is incomplete" in told
        videos = [path for path in disk.iterdir() if path.suffix == ".mp4"]
        for path in videos:
            assert ffmpeg.count_frames_and_secs(path)[0] == 3
        assert not any(".part" in path.name for path in videos)


def test_full_disk_leaves_only_whole_csv_rows(tmp_path):
    path = tmp_path / "returns.csv"
    _append(path, np.zeros(1, EPISODE)[0])
    before = path.read_bytes()
    with full_after(len(before) + 3), pytest.raises(Raised, match=r"returns\.csv"):
        _append(path, np.zeros(1, EPISODE)[0])
    assert path.read_bytes() == before


@pytest.mark.slow
def test_a_watcher_writes_returns_and_complete_videos(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="videos")
    options = {"folder": tmp_path / "some" / "where", "video_every": 3, "repeat": True}
    with pysampler.Watcher(ConstantPolicy(), RewardsAction, "rgb_array", **options) as watcher:
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
    assert count == 3  # one before each step: the last step resets the env


def test_a_watcher_that_is_killed_is_replaced():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        for value in range(1, 3):
            watcher.publish({"weight": value})
            watcher.wait(1)
            os.kill(watcher.envs._pool.pids[0], signal.SIGKILL)
            watcher.publish({"weight": value + 0.5})
            while watcher.curve["return"][-1] != 3 * (value + 0.5):
                os.sched_yield()


def test_a_watcher_that_is_killed_while_it_waits_does_not_repeat_its_episode():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        watcher.wait(1)
        [pid] = watcher.envs._pool.pids
        os.kill(pid, signal.SIGKILL)
        while len(watcher.curve) and [pid] == watcher.envs._pool.pids:  # the curve replaces it
            os.sched_yield()
        wait_until(lambda: is_asleep(watcher.envs._pool.pids[0]))
        watcher.publish({"weight": 2})
        watcher.wait(1)
        assert watcher.curve["return"].tolist() == [0, 6]


@pytest.mark.slow
def test_wait_continues_with_the_replacement_of_a_killed_watcher():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction, repeat=True) as watcher:
        watcher.wait(1)
        for _ in range(2):
            os.kill(watcher.envs._pool.pids[0], signal.SIGKILL)
            assert len(watcher.wait(2000)) == 2000


def test_a_failing_watcher_warns_and_training_continues():
    failing = functools.partial(Mortal, "raise", 3)
    with (
        pysampler.Actors(Mortal, Sine(), num_envs=2) as actors,
        pysampler.Watcher(actors, failing) as watcher,
    ):
        with pytest.warns(UserWarning, match="the watcher has ended: env 0 .* raised ValueError"):
            read_curve_until_closed(watcher)
        assert len(watcher.curve) == 0  # its only episode never ended
        with pytest.raises(ClosedError, match="the watcher ended after 0 of 1"):
            watcher.wait(1)
        actors.publish()  # the actors continue
        assert len(actors.take(8)) > 0


def read_curve_until_closed(watcher):
    while not watcher.closed:
        watcher.curve  # noqa: B018


class Sine(ConstantPolicy):
    """Has a weight but ignores it."""

    def __call__(self, observations):
        return np.sin(observations[:, 1:])


def fail_in_the_third_episode(env):
    if env.episodes == 3:
        raise ValueError("told to")


def test_episodes_of_a_failed_watcher_stay_readable():
    fails_later = functools.partial(RewardsAction, before=fail_in_the_third_episode)
    with pysampler.Watcher(ConstantPolicy(), fails_later, repeat=True) as watcher:
        with pytest.warns(UserWarning, match="the watcher has ended: env 0 .* raised ValueError"):
            read_curve_until_closed(watcher)
        assert len(watcher.curve) == 2
        assert len(watcher.wait(2)) == 2
        assert watcher.publish({"weight": 5}) == 1
        watcher.film()
        with pytest.raises(ClosedError, match="the watcher ended after 0 of 1") as caught:
            watcher.wait(1)
        assert isinstance(caught.value.__cause__, ValueError)
    assert len(watcher.curve) == 2


def test_episodes_of_a_closed_watcher_stay_readable():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        wait_until(lambda: watcher._state.episodes >= 1 and len(watcher._ring) >= 1)
    assert watcher.curve["length"].tolist() == [3]
    with pytest.raises(ClosedError):
        watcher.publish({"weight": 1})
    with pytest.raises(ClosedError):
        watcher.film()


class Quits(ConstantPolicy):
    def __call__(self, observations):
        if self.weight == 1:
            raise StopActors
        return super().__call__(observations)


def test_wait_raises_once_no_episode_can_follow():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        watcher.wait(1)
        watcher.stop()
        with pytest.raises(ClosedError, match="the watcher ended after 0 of 3"):
            watcher.wait(3)
    with pysampler.Watcher(Quits(), RewardsAction) as watcher:
        watcher.wait(1)
        watcher.publish({"weight": 1})
        with pytest.raises(ClosedError, match="the watcher ended after 0 of 1"):
            watcher.wait(1)
        assert len(watcher.curve) == 1


def test_wait_raises_once_the_publishing_actors_are_closed():
    actors = pysampler.Actors(RewardsAction, ConstantPolicy(), num_envs=1)
    with pysampler.Watcher(actors, RewardsAction) as watcher:
        watcher.wait(1)
        actors.publish({"weight": 3})
        actors.close()
        assert watcher.wait(1)["version"].tolist() == [2]
        with pytest.raises(ClosedError, match="the watcher ended after 0 of 1"):
            watcher.wait(1)


@pytest.mark.slow
def test_threads_may_read_the_curve_while_others_publish():
    with (
        pysampler.Actors(RewardsAction, ConstantPolicy(), num_envs=2) as actors,
        pysampler.Watcher(actors, RewardsAction, repeat=True) as watcher,
    ):
        over = threading.Event()

        def wait():
            try:
                for _ in range(200):
                    watcher.wait(1, 10)
            finally:
                over.set()

        read = calling(lambda: watcher.curve, until=over)
        together(wait, calling(actors.publish, until=over), read, read)
        assert not watcher.closed
        assert (watcher.curve["length"] == 3).all()
        assert len(watcher.curve) >= 200


@pytest.mark.slow
def test_a_watcher_may_open_and_close_while_another_thread_publishes():
    def cycle():
        with pysampler.Watcher(actors, RewardsAction) as watcher:
            assert len(watcher.wait(1, 30)) == 1

    actors = pysampler.Actors(RewardsAction, ConstantPolicy(), num_envs=2)
    with actors, ThreadPoolExecutor(1) as pool:
        actors.begin()
        over = threading.Event()
        publishing = pool.submit(calling(actors.publish, until=over))
        try:
            for _ in range(8):
                cycle()
        finally:
            over.set()
        publishing.result()
        assert actors._followers == []


@pytest.mark.slow
def test_a_watcher_may_close_while_another_thread_reads_the_curve():
    for _ in range(10):
        with pysampler.Watcher(ConstantPolicy(), RewardsAction, repeat=True) as watcher:
            thread = threading.Thread(target=read_curve_until_closed, args=[watcher])
            thread.start()
            watcher.wait(1)
        thread.join()


def test_concurrent_publish_raises_busy_error():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        entered = watcher._publish_guard.entry("publish weights")
        told = "another thread is using the weights of a watcher"
        with ThreadPoolExecutor(1) as pool, entered, pytest.raises(BusyError, match=told):
            pool.submit(watcher.publish).result()
        watcher.publish()


@pytest.mark.slow
def test_a_raising_signal_handler_loses_no_episode():
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
        watcher.wait(1)
        for n in itertools.count(1):
            watcher.publish({"weight": n})
            wait_until(lambda: len(watcher._ring) > 0)
            reached, _, where = at_point(n, lambda: watcher.curve)
            assert watcher.curve["return"].tolist() == [3.0 * i for i in range(n + 1)], where
            if not reached:
                break


@pytest.mark.slow
def test_a_signal_handler_may_close_a_watcher_that_reads_the_curve():
    """The interrupted call ends, and no failure is reported."""
    for n in itertools.count(1):
        with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
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


def test_close_leaves_no_process():
    watcher = pysampler.Watcher(ConstantPolicy(), RewardsAction)
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
            pysampler.Watcher(ConstantPolicy(), RewardsAction, **options)
    with pysampler.Watcher(ConstantPolicy(), RewardsAction) as watcher:
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
        assert len(watcher.wait(1, float("inf"))) == 1


def test_missing_imageio_or_ffmpeg_is_reported_at_once(tmp_path, monkeypatch):
    options = {"folder": tmp_path / "films", "video_every": 2}
    for missing in ("imageio", "imageio_ffmpeg"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            with pytest.raises(ImportError, match="videos need imageio and its ffmpeg: pip"):
                pysampler.Watcher(ConstantPolicy(), RewardsAction, "rgb_array", **options)
    assert not options["folder"].exists()


def fail(env):
    raise ValueError("told to")


@pytest.mark.parametrize(
    ("picture", "told"),
    [
        (fail, r"env 0 in worker 0 .* raised ValueError in render\(\): told to"),
        (
            lambda env: ["a"],
            r"env 0 in worker 0 .* raised TypeError in render\(\): it returned list, expected",
        ),
    ],
)
def test_errors_in_render_are_reported_as_env_errors(tmp_path, picture, told):
    pytest.importorskip("imageio_ffmpeg", reason="videos")
    env = functools.partial(RewardsAction, picture=picture)
    options = {"folder": tmp_path, "video_every": 1}
    with pysampler.Watcher(ConstantPolicy(), env, "rgb_array", **options) as watcher:
        with pytest.warns(UserWarning, match=told):
            read_curve_until_closed(watcher)
        assert list(tmp_path.iterdir()) == []


def test_episodes_are_reported_only_after_their_csv_row_is_written(tmp_path):
    os.mkfifo(tmp_path / "returns.csv")  # Opening it waits for a reader.
    with pysampler.Watcher(ConstantPolicy(), RewardsAction, folder=tmp_path) as watcher:
        with pytest.raises(WaitTimeoutError, match="0 of 1 episodes ended"):
            watcher.wait(1, timeout=0.3)
        with pytest.warns(UserWarning, match="returns.csv"), (tmp_path / "returns.csv").open():
            read_curve_until_closed(watcher)


def test_a_deleted_folder_is_reported(tmp_path):
    folder = tmp_path / "some where"
    with pysampler.Watcher(ConstantPolicy(), RewardsAction, folder=folder) as watcher:
        watcher.wait(1)
        shutil.rmtree(folder)
        watcher.publish()
        told = "the env server in worker 0 .* raised FileNotFoundError writing .*/returns.csv"
        with pytest.warns(UserWarning, match=told):
            read_curve_until_closed(watcher)
        assert len(watcher.curve) == 2


def test_an_episode_begins_with_the_newest_statistics_and_state():
    class Echoes(ConstantPolicy):
        """Acts with the observation, plus a state that begins with its weight."""

        def initial_state(self, count):
            return np.full((count, 1), self.weight)

        def __call__(self, observations, state):
            return observations + state, {"state": state}

    normalizer = pysampler.Normalizer(rewards=False)

    def use(mean):
        parts = {"mean": np.array([mean]), "variance": np.ones(1), "count": np.array(10.0)}
        normalizer.load_state_dict({f"observations.{name}": one for name, one in parts.items()})

    one_step = functools.partial(
        Small,
        1,
        observe=lambda _: np.array([3.0]),
        reward=lambda env, action: float(action[0]),
    )
    use(0.0)
    with pysampler.Watcher(Echoes(), one_step, normalize=normalizer) as watcher:
        assert watcher.wait(1)["return"] == pytest.approx([3.0])
        use(3.0)
        watcher.publish({"weight": np.array(0.0)})
        assert watcher.wait(1)["return"] == pytest.approx([0.0], abs=1e-6)
        watcher.publish({"weight": np.array(7.0)})
        assert watcher.wait(1)["return"] == pytest.approx([7.0])
