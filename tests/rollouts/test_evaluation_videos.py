"""Videos of episodes of an evaluation."""

import functools
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Small, still

import pysampler
from pysampler import EpisodeSpec

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
pytest.importorskip("imageio")
# imageio_ffmpeg does not close its pipes.
QUIET = "ignore::pytest.PytestUnraisableExceptionWarning"
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(QUIET, "ignore::ResourceWarning")]


def task_of(env):
    return env.options.get("task", 0)


# Episodes of 1 + seed % 10 steps, whose return is the task; its pictures count the steps.
Shown = functools.partial(
    Small,
    lambda env: 1 + env.seed % 10,
    reward=lambda env, _: task_of(env) / env.length,
    info=lambda env: {"is_success": task_of(env) > 2},
    picture=lambda env: np.full((32, 32, 3), 20 * env.steps, np.uint8),
    render_mode="rgb_array",
)


SPECS = [EpisodeSpec(task=task) for task in (3, 1, 4, 1, 5, 9, 2, 6)]


def pictures_of(path):
    reader = imageio_ffmpeg.read_frames(path)
    width, height = next(reader)["size"]
    return [np.frombuffer(one, np.uint8).reshape(height, width, 3) for one in reader]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def evaluate(tmp_path):
    return functools.partial(pysampler.evaluate, seed=0, videos=tmp_path)


@pytest.mark.parametrize(
    ("record", "filmed"),
    [
        (3, [0, 1, 2]),
        (lambda result: result.length == 4, [3]),
        (0, []),
    ],
)
def test_the_chosen_episodes_are_filmed(tmp_path, evaluate, record, filmed):
    evaluation = evaluate(Shown, still, SPECS, num_workers=1, record=record)
    assert [i for i, one in enumerate(evaluation.episodes) if one.video] == filmed
    assert len(names(tmp_path)) == len(filmed)
    plain = pysampler.evaluate(Shown, still, SPECS, seed=0, num_workers=1)
    assert evaluation.episodes == plain.episodes


@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_video_shows_every_step(tmp_path, evaluate, where):
    evaluation = evaluate(Shown, still, SPECS, num_workers=1, record=8, policy_in=where)
    for i, one in enumerate(evaluation.episodes):
        steps = [round(float(picture.mean()) / 20) for picture in pictures_of(one.video)]
        assert steps == list(range(2 + i))
    assert names(tmp_path)[0] == "episode-0-seed-0-return-3-success.mp4"
    assert names(tmp_path)[1] == "episode-1-seed-1-return-1-failure.mp4"


class Skipping(Small):
    """Renders the same picture again while its observations are not read."""

    unseen = False

    def skip_frames(self, unseen):
        self.unseen = unseen

    def render(self):
        if not self.unseen:
            self.shown = super().render()
        return self.shown


@pytest.mark.filterwarnings("error:pysampler")
@pytest.mark.parametrize("where", ["main", "workers"])
def test_a_video_of_chunks_shows_every_step(evaluate, where):
    make = functools.partial(Skipping, *Shown.args, **Shown.keywords)
    options = {"chunk": 4, "num_workers": 1, "record": 8, "policy_in": where}
    evaluation = evaluate(make, lambda o: np.zeros((len(o), 4, 1)), SPECS, **options)
    for i, one in enumerate(evaluation.episodes):
        steps = [round(float(picture.mean()) / 20) for picture in pictures_of(one.video)]
        assert steps == list(range(2 + i))


def test_envs_of_an_id_are_made_to_be_filmed(evaluate):
    pytest.importorskip("pygame")
    evaluation = evaluate("CartPole-v1", lambda o: np.ones(len(o), int), 4, seed=1, record=1)
    assert len(pictures_of(evaluation.episodes[0].video)) == 1 + evaluation.lengths[0]


def test_envs_of_a_vector_env_are_made_again_to_be_filmed(tmp_path):
    with pysampler.VectorEnv([Shown] * 2, num_workers=1) as envs:
        pysampler.evaluate(envs, still, SPECS, seed=0, videos=tmp_path, record=2)
    assert len(names(tmp_path)) == 2


def never_called(observations):
    pytest.fail("an episode began")


def test_an_env_without_pictures_is_refused_before_the_first_episode(tmp_path):
    make = functools.partial(Shown, render_mode=None)
    with pytest.raises(ValueError, match="its render_mode is None, expected 'rgb_array'"):
        pysampler.evaluate(make, never_called, 2, seed=0, num_workers=0, videos=tmp_path)
    with (
        pysampler.VectorEnv([make], num_workers=0) as envs,
        pytest.raises(ValueError, match="its render_mode is None, expected 'rgb_array'"),
    ):
        pysampler.evaluate(envs, never_called, 2, seed=0, videos=tmp_path)


class Texts(Small):
    """An env that cannot render pictures."""

    metadata = {"render_modes": ["ansi"]}  # noqa: RUF012


@pytest.fixture
def ids():
    gym.register("PicturesForEvaluations-v0", functools.partial(Shown, render_mode=None))
    gym.register("TextsForEvaluations-v0", Texts)
    yield
    gym.registry.pop("PicturesForEvaluations-v0")
    gym.registry.pop("TextsForEvaluations-v0")


@pytest.mark.usefixtures("ids")
def test_an_id_without_pictures_is_refused_before_the_first_episode(evaluate):
    with pytest.raises(ValueError, match=r"its render_modes are \['ansi'\], expected 'rgb_array'"):
        evaluate("TextsForEvaluations-v0", never_called, 2, seed=None, num_workers=0)


def test_rollouts_made_from_an_id_are_filmed(tmp_path, ids):
    with pysampler.Rollouts(
        *("PicturesForEvaluations-v0", still, 4), num_envs=2, num_workers=0, seed=1
    ) as rollouts:
        pysampler.evaluate(rollouts, still, 2, seed=0, videos=tmp_path)
    assert len(names(tmp_path)) == 2


def broken(env):
    """Render, except in episode 2."""
    if env.length == 3:
        raise RuntimeError("EGL is gone")
    return Shown.keywords["picture"](env)


def test_the_results_survive_when_filming_fails(tmp_path, evaluate):
    make = functools.partial(Shown, picture=broken)
    with pytest.warns(UserWarning, match="cannot film all episodes: .*EGL is gone"):
        evaluation = evaluate(make, still, 4, num_envs=1, num_workers=0)
    assert evaluation.lengths.tolist() == [1, 2, 3, 4]
    assert all("-return-" in name for name in names(tmp_path))


def test_a_function_that_chooses_is_called_once_for_each_episode(evaluate):
    seen = []
    evaluate(Shown, still, SPECS, num_workers=0, record=seen.append)
    assert len(seen) == len(SPECS)


@pytest.mark.filterwarnings("error:pysampler")
def test_films_have_the_options_of_their_vector_env(tmp_path):
    """The rewards come from np.random and from what worker_init sets."""

    def set_scale():
        np.random.scale = 5.0

    make = functools.partial(Shown, reward=lambda env, _: np.random.random() * np.random.scale)
    with pysampler.VectorEnv(
        [make] * 2, num_workers=1, seed_globals=True, worker_init=set_scale
    ) as envs:
        pysampler.evaluate(envs, still, 4, seed=3, videos=tmp_path)
    assert len(names(tmp_path)) == 4


@pytest.mark.filterwarnings("error:pysampler")
def test_fewer_envs_may_be_filmed_than_the_main_process_steps(tmp_path, evaluate):
    evaluate(Shown, still, 4, num_envs=4, num_workers=1, main_envs=2, seed=3, record=1)
    assert len(names(tmp_path)) == 1


class Optional(Small):
    """Ends at once unless it has options, even if they are empty."""

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed, options=options)
        self.length = 1 if options is None else 3
        return result


@pytest.mark.filterwarnings("error:pysampler")
def test_films_of_empty_options_and_of_nan_go_the_same_way(tmp_path, evaluate):
    make = functools.partial(Optional, **{**Shown.keywords, "reward": np.nan})
    evaluation = evaluate(make, still, [EpisodeSpec(options={}), EpisodeSpec()], num_workers=0)
    assert evaluation.lengths.tolist() == [3, 1]
    assert len(names(tmp_path)) == 2


def test_episodes_that_go_another_way_are_told_of(tmp_path):
    make = functools.partial(Shown, reward=lambda env, _: np.random.random())
    with pytest.warns(UserWarning, match="pysampler: 2 of 2 filmed episodes went another way"):
        pysampler.evaluate(make, still, 2, seed=3, videos=tmp_path)


@pytest.mark.parametrize("record", [-1, 1.5, {"best": 1}, "best"])
def test_bad_choices_are_refused(tmp_path, record):
    with pytest.raises(ValueError, match="cannot evaluate: record"):
        pysampler.evaluate(Shown, still, 2, seed=0, videos=tmp_path, record=record)


class Stopping:
    """A policy that Ctrl-C ends in the third step of films of episodes of 1 to 4 steps."""

    def __init__(self):
        self.calls = 0

    def __call__(self, observations):
        self.calls += 1
        if self.calls == 4 * 5 // 2 + 3:
            raise KeyboardInterrupt
        return still(observations)


def test_ctrl_c_while_filming_keeps_the_results_and_whole_films(tmp_path, capsys):
    folder = tmp_path / "films"
    arguments = {"seed": 0, "num_envs": 1, "num_workers": 1, "resume": tmp_path / "results"}
    with pytest.raises(KeyboardInterrupt) as info:
        pysampler.evaluate(Shown, Stopping(), 4, **arguments, videos=folder, progress=True)
    assert info.value.evaluation.lengths.tolist() == [1, 2, 3, 4]
    videos = [one.video for one in info.value.evaluation.episodes]
    assert names(folder) == [Path(one).name for one in videos if one]
    assert videos[0]
    assert not videos[2]
    assert "pysampler: 1 of 4 films, 0:" in capsys.readouterr().err
    assert "; the same call films;" in info.value.__notes__[-1]
    again = pysampler.evaluate(Shown, still, 4, **arguments, videos=folder)
    assert all(one.video for one in again.episodes)


def test_a_second_video_of_an_episode_gets_another_name(tmp_path, evaluate):
    make = functools.partial(Shown, reward=-2.5)
    for take in ("", "-take-2", "-take-3"):
        evaluation = evaluate(make, still, 1, seed=2, num_workers=0, record=1)
        name = f"episode-0-seed-2-return-minus-7.5-failure{take}.mp4"
        assert evaluation.episodes[0].video == str(tmp_path / name)
    assert len(names(tmp_path)) == 3


def test_a_choice_without_a_directory_is_refused():
    with pytest.raises(ValueError, match="cannot evaluate: record 3 without videos, expected a"):
        pysampler.evaluate(Shown, still, 2, seed=0, record=3)


@pytest.mark.parametrize("native", ["auto", True])
def test_films_do_not_log_that_they_are_stepped_in_python(evaluate, caplog, native):
    pytest.importorskip("pygame")
    options = {"num_envs": 16, "num_workers": 0, "native": native, "record": 1}
    evaluation = evaluate("CartPole-v1", lambda o: np.ones(len(o), int), 16, **options)
    assert evaluation.episodes[0].video
    assert "Filmed" not in caplog.text
