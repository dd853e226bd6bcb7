"""The table of an evaluation, and its statistics."""

import csv
import functools
import json

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Small

import pysampler
from pysampler import EpisodeResult, Evaluation
from pysampler._rollouts import evaluation_results
from pysampler._rollouts.episode_rows import _success

evaluated = functools.partial(pysampler.evaluate, seed=0, num_workers=0)


def made(returns, **columns):
    rows = zip(*columns.values(), strict=True) if columns else [()] * len(returns)
    return Evaluation(
        [
            EpisodeResult(
                i, float(value), 2 * i, terminated=True, **dict(zip(columns, row, strict=True))
            )
            for i, (value, row) in enumerate(zip(returns, rows, strict=True))
        ]
    )


def test_the_interval_of_the_mean_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        low, high = made(rng.exponential(3, 60)).interval(0.8)
        covered += low <= 3 <= high
    assert 65 <= covered <= 92


def test_the_interval_of_the_mean_is_reproducible_and_grows_with_the_level():
    evaluation = made([1, 5, 2, 8, 3])
    assert evaluation.interval() == evaluation.interval()
    narrow, wide = evaluation.interval(0.5), evaluation.interval(0.99)
    assert wide.low < narrow.low < evaluation.mean < narrow.high < wide.high


def test_the_interval_of_a_success_rate_is_wilsons():
    """Values of Newcombe (1998), table I."""
    evaluation = made([0] * 263, success=[True] * 81 + [False] * 182)
    np.testing.assert_allclose(evaluation.success_interval(), (0.2553, 0.3662), atol=1e-4)
    evaluation = made([0] * 29, success=[True] + [False] * 28)
    np.testing.assert_allclose(evaluation.success_interval(), (0.0061, 0.1718), atol=1e-4)
    assert made([0] * 20, success=[False] * 20).success_interval().low == 0


def test_a_missing_success_is_a_failure_if_another_episode_has_one():
    assert made([1, 2]).success_rate is None
    missing = made([1, 2], success=[True, None])
    assert missing.successes.tolist() == [True, False]
    assert "], 1 without a success in their infos counted as failures" in str(missing)
    assert made([1, 2]).compare(made([1, 2]), "return").mean == 0
    assert missing.compare(made([1, 2], success=[False, False]), "success").mean == 0.5
    assert made([1, 2], success=[True, False]).success_rate == 0.5
    assert "success 50% [" in str(made([1, 2], success=[True, False]))


@pytest.mark.parametrize("level", [0, 1, 95, True, "0.9"])
def test_bad_levels_are_refused(level):
    with pytest.raises(ValueError, match="cannot compute interval: level"):
        made([1, 2]).interval(level)


def test_compared_evaluations_are_paired():
    rng = np.random.default_rng(1)
    difficulty, noise = rng.normal(0, 100, (2, 50))
    one, other = made(difficulty + 1 + noise / 1000), made(difficulty)
    comparison = one.compare(other)
    assert 0.9 < comparison.interval.low < comparison.mean < comparison.interval.high < 1.1
    assert comparison.counts == (50, 0, 0)
    assert "larger in 50, equal in 0, smaller in 0 of 50 episodes" in str(comparison)
    assert one.compare(one, "length").interval == (0, 0)
    with pytest.raises(ValueError, match="column 'speed', expected one of .*'return'"):
        one.compare(other, "speed")


def test_evaluations_of_other_seeds_are_not_compared():
    with pytest.raises(ValueError, match="they have 2 and 3 episodes, expected the same"):
        made([1, 2]).compare(made([1, 2, 3]))
    with pytest.raises(ValueError, match="expected the same seeds in the same order"):
        made([1, 2]).compare(Evaluation(made([1, 2]).episodes[::-1]))


def test_comparing_evaluations_of_other_envs_is_warned_of():
    evaluations = [
        pysampler.evaluate(name, lambda o: np.zeros(len(o), int), 2, seed=0, num_workers=0)
        for name in ("CartPole-v1", "Acrobot-v1")
    ]
    with pytest.warns(UserWarning, match="other envs: CartPole-v1 and Acrobot-v1"):
        evaluations[0].compare(evaluations[1])


def test_a_table_has_a_row_for_each_episode(tmp_path):
    evaluation = made([1, 2.5], task=[{"goal": 1}, None], statistics=[{"up": 3.0}, {"up": 4.0}])
    evaluation.to_csv(tmp_path / "table.csv")
    with (tmp_path / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["return"] for row in rows] == ["1.0", "2.5"]
    assert json.loads(rows[0]["task"]) == {"goal": 1}
    assert rows[1]["task"] == ""
    assert [row["up"] for row in rows] == ["3.0", "4.0"]


def test_a_data_frame_has_a_row_for_each_episode():
    pandas = pytest.importorskip("pandas")
    frame = made([1, 2]).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["return"].tolist() == [1, 2]


def test_a_plot_shows_the_mean(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    axes = made([1, 2, 4]).plot()
    assert axes.get_xlabel() == "return"
    assert [line.get_xdata()[0] for line in axes.lines] == [pytest.approx(7 / 3)]
    assert made([3]).plot(axes) is axes
    made([1, 2]).plot(tmp_path / "plot.png")
    made([1, 2]).plot(str(tmp_path / "plot.pdf"))
    assert all((tmp_path / f"plot.{kind}").stat().st_size for kind in ("png", "pdf"))


Steps = functools.partial(
    Small,
    lambda env: 3 + env.seed % 40,
    cut=True,
    reward=lambda env, action: action[0],
    info=lambda env: {"steps": env.steps, "success": env.steps == 3},
)


def describe(episode):
    assert episode.begins
    assert episode.truncated
    assert not episode.terminated
    count = len(episode)
    np.testing.assert_array_equal(episode.observations[:, 0], np.arange(count))
    np.testing.assert_array_equal(episode.actions[:, 0], np.arange(count) * 2)
    np.testing.assert_array_equal(episode.rewards, np.arange(count) * 2)
    np.testing.assert_array_equal(episode.extras["half"], np.arange(count) / 2)
    np.testing.assert_array_equal(episode.infos["steps"], np.arange(count) + 1)
    assert episode.last_observation == count
    return {"succeeded": episode.infos["success"].any(), "mean": episode.rewards.mean()}


def double(observations):
    return observations * 2, {"half": observations[:, 0] / 2}


@pytest.mark.parametrize("where", ["main", "workers"])
def test_statistics_describe_whole_episodes(where):
    keep = "observations", "actions", "rewards", "extras", "infos"
    statistics = pysampler.EpisodeStatistics(describe, keep=keep)
    evaluation = evaluated(Steps, double, 30, num_envs=4, policy_in=where, statistics=statistics)
    means = [one.statistics for one in evaluation.episodes]
    assert means == [{"succeeded": 1.0, "mean": 2.0 + i} for i in range(30)]
    assert evaluation.episodes[0].row["mean"] == 2.0
    assert evaluation.successes.tolist() == [True] + [False] * 29  # the last info


@pytest.mark.parametrize("where", ["main", "workers"])
@pytest.mark.parametrize("keep", ["actions", "extras", "infos"])
def test_parts_of_episodes_that_are_not_kept_are_none(where, keep):
    def describe(episode):
        parts = "observations", "last_observation", "actions", "rewards", "extras", "infos"
        assert [name for name in parts if getattr(episode, name) is not None] == [keep]
        return {"steps": len(episode)}

    statistics = pysampler.EpisodeStatistics(describe, keep=keep)
    evaluation = evaluated(Steps, double, 2, policy_in=where, statistics=statistics)
    assert [one.statistics["steps"] for one in evaluation.episodes] == [3, 4]


class Own:
    """Statistics by an object of the user."""

    def __init__(self, described, **attributes):
        self.described = described
        vars(self).update(attributes)

    def describe(self, episode):
        return self.described


@pytest.mark.parametrize(
    ("statistics", "error", "match"),
    [
        (describe, TypeError, "cannot evaluate: statistics is a function, expected a"),
        (Own({}), TypeError, "cannot evaluate: statistics is a Own, expected a"),
        (Own({}, keep=["speed"]), ValueError, "statistics keep 'speed', expected some of"),
        (Own({"return": 1.0}, keep=[]), ValueError, "a statistic is named 'return', expected none"),
    ],
)
def test_statistics_must_describe_episodes(statistics, error, match):
    with pytest.raises(error, match=match):
        pysampler.evaluate(Steps, double, 1, num_workers=0, statistics=statistics)


def test_statistics_cannot_have_the_name_of_a_column():
    every = EpisodeResult(0, 1.0, 1, True, True, "task", 1.0, {}, "video")  # noqa: FBT003
    assert tuple(every.row) == evaluation_results.COLUMNS


@pytest.mark.filterwarnings("error")
def test_infinite_returns_and_nan_are_shown():
    pytest.importorskip("matplotlib").use("Agg")
    for value in (np.inf, -np.inf, np.nan):
        evaluation = made([1, value, np.inf])
        assert "over 3 episodes" in str(evaluation)
        evaluation.plot()


@pytest.mark.parametrize(
    ("info", "success"),
    [({"is_success": None, "success": True}, True), ({"is_success": None}, None)],
)
def test_a_success_of_none_says_nothing(info, success):
    assert _success(info) is success


def test_evaluations_of_other_tasks_are_not_compared():
    one, other = made([1, 2], task=["a", "b"]), made([1, 2], task=["a", "c"])
    with pytest.raises(ValueError, match="the tasks of episode 1 are 'b' and 'c', expected the"):
        one.compare(other)
    assert one.compare(made([1, 2], task=["a", "b"])).mean == 0
    with pytest.raises(ValueError, match="column 'task' has 'a', expected numbers"):
        one.compare(one, "task")


def test_other_orders_are_refused():
    with pytest.raises(TypeError, match="order is a list, expected a pysampler.Evaluation"):
        pysampler.evaluate(Steps, double, 1, order=[3])


def test_results_have_the_time_of_their_episodes():
    evaluation = pysampler.evaluate(Steps, double, 3, seed=0, num_workers=0)
    assert all(one.seconds > 0 for one in evaluation.episodes)
    row = evaluation.episodes[1].row
    assert row["steps_per_second"] == pytest.approx(4 / row["seconds"])


@pytest.mark.parametrize("where", ["main", "workers"])
def test_statistics_get_infos_that_some_steps_lack(where):
    def last_info(env):
        over = env.steps == env.length
        return {"success": True, "text": "over", "goal": np.ones(2)} if over else {}

    def describe(episode):
        infos = episode.infos
        assert infos["success"].tolist() == [False] * (len(episode) - 1) + [True]
        assert infos["text"].tolist() == [None] * (len(episode) - 1) + ["over"]
        assert infos["goal"].sum() == 2
        return {"any": infos["success"].any()}

    statistics = pysampler.EpisodeStatistics(describe, keep=["infos"])
    make = functools.partial(Steps, info=last_info)
    evaluation = evaluated(make, double, 3, policy_in=where, statistics=statistics)
    assert [one.statistics for one in evaluation.episodes] == [{"any": 1.0}] * 3


def test_a_model_that_needs_action_masks_is_refused():
    class Masked:
        def predict(self, observations, *, deterministic, action_masks=None):
            raise AssertionError

    class Wrapped:
        def predict(self, observations, *, deterministic):
            action_masks = observations > 0
            return action_masks[:, 2].astype(int), None

    assert len(pysampler.evaluate("CartPole-v1", Wrapped(), 2).returns) == 2
    with pytest.raises(TypeError, match=r"Masked\.predict takes action_masks, and a policy "):
        pysampler.evaluate("CartPole-v1", Masked(), 2)


def test_a_model_with_predict_is_a_policy():
    class Model:
        def predict(self, observations, deterministic):
            assert deterministic
            return observations * 2, None

    evaluation = pysampler.evaluate(Steps, Model(), 3, seed=0, num_workers=0)
    assert evaluation.episodes == pysampler.evaluate(Steps, double, 3, seed=0).episodes


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 2])
def test_a_recurrent_model_keeps_its_state_until_the_episode_ends(batch):
    sb3_contrib = pytest.importorskip("sb3_contrib")
    nets = {"n_lstm_layers": 2, "lstm_hidden_size": 8}
    model = sb3_contrib.RecurrentPPO(
        "MlpLstmPolicy", "Pendulum-v1", policy_kwargs=nets, device="cpu", seed=1
    )
    env = gym.make("Pendulum-v1")
    expected = []
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        state, total, over = None, 0.0, False
        while not over:
            action, state = model.predict(observation, state, deterministic=True)
            observation, reward, _, over, _ = env.step(action)
            total += reward
        expected.append(total)
    evaluation = evaluated("Pendulum-v1", model, 4, num_envs=3, batch=batch)
    assert evaluation.returns == pytest.approx(expected)


class Reusing(Small):
    """Returns its own array as an info, and other infos of several shapes, or of some steps."""

    def __init__(self):
        super().__init__(4)
        self.own = np.zeros(2)

    def step(self, action):
        results = super().step(action)
        self.own[:] = self.steps
        info = {"own": self.own, "ragged": np.arange(self.steps)}
        if self.steps == 4:
            info["texts"] = ["a", "b"]
        return *results[:-1], info


@pytest.mark.parametrize(
    "options", [{"num_workers": 0}, {"num_workers": 1}, {"context": "threads"}]
)
@pytest.mark.parametrize("where", ["main", "workers"])
def test_infos_of_an_episode_are_those_of_each_step(where, options):
    def describe(episode):
        infos = episode.infos
        assert [len(one) for one in infos["ragged"]] == [1, 2, 3, 4]
        assert infos["texts"].tolist() == [None, None, None, ["a", "b"]]
        return {"first": infos["own"][0, 0], "last": infos["own"][-1, 0]}

    statistics = pysampler.EpisodeStatistics(describe, keep="infos")
    found = pysampler.evaluate(
        *(Reusing, double, 2), seed=0, policy_in=where, statistics=statistics, **options
    )
    assert [one.statistics for one in found.episodes] == [{"first": 1, "last": 4}] * 2
