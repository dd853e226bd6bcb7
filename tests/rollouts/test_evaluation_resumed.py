"""Evaluations that are interrupted and continued, their order and their progress."""

import errno
import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from small_envs import still

import pysampler
from pysampler import EpisodeSpec
from pysampler._rollouts.episodes import Start
from pysampler._rollouts.evaluation_file import EvaluationFile


class Steps(gym.Env):
    """Episodes of 1 + seed steps that return the seed plus the task; remembers seeds in a list."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    begun: ClassVar[list] = []

    def reset(self, *, seed=None, options=None):
        self.begun.append(seed)
        self.steps, self.seed = 0, seed
        self.task = (options or {}).get("task", 0)
        return np.full(1, float(seed)), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == 1 + self.seed
        reward = (self.seed + self.task) * over
        return np.full(1, float(self.seed)), reward, over, False, {"success": True}


@pytest.fixture(autouse=True)
def begun():
    Steps.begun = []
    return Steps.begun


@pytest.fixture
def arguments(tmp_path):
    return {"num_envs": 1, "num_workers": 0, "seed": 2, "resume": tmp_path / "file"}


class Interrupted:
    """A policy that Ctrl-C ends when it sees an env with this seed."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, observations):
        if (observations == self.seed).any():
            raise KeyboardInterrupt
        return still(observations)


SPECS = [EpisodeSpec(task=i) for i in range(9)]


def test_an_interrupted_evaluation_continues_with_the_missing_episodes(tmp_path, begun, arguments):
    for seed in (6, 9):
        with pytest.raises(KeyboardInterrupt) as caught:
            pysampler.evaluate(Steps, Interrupted(seed), SPECS, **arguments)
        told = f"{seed - 2} of 9 episodes are over and in {tmp_path / 'file'};"
        assert told in caught.value.__notes__[0]
    assert begun == [2, 3, 4, 5, 6, 6, 7, 8, 9]
    evaluation = pysampler.evaluate(Steps, still, SPECS, **arguments)
    assert begun[9:] == [9, 10]
    assert evaluation.returns.tolist() == [2 + 2 * i for i in range(9)]
    assert evaluation.episodes == pysampler.evaluate(Steps, still, SPECS, seed=2).episodes
    begun.clear()
    again = pysampler.evaluate(Steps, still, SPECS, **arguments)
    assert again.episodes == evaluation.episodes
    assert begun == []


def test_a_file_keeps_the_seed_of_its_evaluation(tmp_path):
    def policy(observations):
        assert (observations < 5000).all()
        return still(observations)

    arguments = {"num_workers": 0, "resume": tmp_path / "file"}
    first = pysampler.evaluate(Steps, still, [EpisodeSpec(seed=1)] * 2, **arguments)
    again = pysampler.evaluate(Steps, still, [EpisodeSpec(seed=1)] * 2, **arguments)
    assert first.episodes == again.episodes


def test_a_half_written_line_is_dropped(tmp_path, begun, arguments):
    file = tmp_path / "file"
    pysampler.evaluate(Steps, still, SPECS, **arguments)
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 10
    file.write_text("".join(lines[:4]) + lines[4][:20])
    begun.clear()
    evaluation = pysampler.evaluate(Steps, still, SPECS, **arguments)
    assert begun == [5, 6, 7, 8, 9, 10]
    assert len(evaluation.episodes) == 9
    assert file.read_text().startswith("".join(lines[:4]))
    assert sorted(file.read_text().splitlines()[4:])[0].startswith('{"index": 3,')
    begun.clear()
    again = pysampler.evaluate(Steps, still, SPECS, **arguments)
    assert again.episodes == evaluation.episodes
    assert begun == []


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"seed": 3}, "seed 2, got 3"),
        ({"episodes": SPECS[:4]}, "9, got 4"),
        ({"episodes": SPECS[::-1]}, "other seeds, options, tasks or states"),
    ],
)
def test_a_file_of_other_episodes_is_refused(tmp_path, other, why):
    arguments = {"episodes": SPECS, "seed": 2, "num_workers": 0, "resume": tmp_path / "file"}
    pysampler.evaluate(Steps, still, **arguments)
    with pytest.raises(
        ValueError, match=rf"cannot resume evaluation: .* has other episodes \({why}\)"
    ):
        pysampler.evaluate(Steps, still, **{**arguments, **other})


class Described:
    """Statistics with some names, as NumPy's numbers."""

    keep = ("rewards",)

    def __init__(self, *names):
        self.names = names

    def describe(self, episode):
        return {name: np.float32(len(episode)) for name in self.names}


def test_statistics_may_be_numbers_of_numpy(tmp_path):
    arguments = {"seed": 2, "num_workers": 0, "statistics": Described("length of it")}
    for _ in range(2):
        evaluation = pysampler.evaluate(Steps, still, 3, **arguments, resume=tmp_path / "file")
        assert [one.statistics for one in evaluation.episodes] == [
            {"length of it": 3.0 + i} for i in range(3)
        ]


@pytest.mark.parametrize("names", [["a"], ["b", "c"], []])
def test_a_file_with_other_statistics_is_refused(arguments, names):
    with pytest.raises(KeyboardInterrupt):
        pysampler.evaluate(Steps, Interrupted(4), 9, **arguments, statistics=Described("b"))
    statistics = Described(*names) if names else None
    with pytest.raises(ValueError, match=r"has the statistics \['b'\], expected"):
        pysampler.evaluate(Steps, still, 9, **arguments, statistics=statistics)


class Wider(Steps):
    """Envs with another space."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)


def test_a_file_with_results_of_other_envs_is_refused(tmp_path, arguments):
    with pytest.raises(KeyboardInterrupt):
        pysampler.evaluate(Steps, Interrupted(4), 9, **arguments)
    with pytest.raises(ValueError, match=r"with the function .*\.Steps, got .*\.Wider"):
        pysampler.evaluate(Wider, still, 9, **arguments)
    pysampler.evaluate(Steps, still, 9, **arguments)
    with (
        pysampler.VectorEnv([Wider], num_workers=0) as envs,
        pytest.raises(ValueError, match="has results of envs with the observation space"),
    ):
        pysampler.evaluate(envs, still, 9, seed=2, resume=tmp_path / "file")


def test_a_whole_file_with_results_of_another_id_is_refused(tmp_path):
    def policy(observations):
        return np.zeros(len(observations), int)

    arguments = {"num_workers": 0, "seed": 2, "resume": tmp_path / "file"}
    pysampler.evaluate("CartPole-v1", policy, 2, **arguments)
    with pytest.raises(ValueError, match="with the id CartPole-v1, got CartPole-v0"):
        pysampler.evaluate("CartPole-v0", policy, 2, **arguments)
    assert len(pysampler.evaluate("CartPole-v1", policy, 2, **arguments).episodes) == 2


@pytest.mark.parametrize("begun", ["", '{"pysampler eval', '{"pysampler evaluation": {"seed": 2'])
def test_a_file_without_a_whole_header_is_new(tmp_path, begun):
    file = tmp_path / "file"
    file.write_text(begun)
    for _ in range(2):
        pysampler.evaluate(Steps, still, 3, num_workers=0, seed=2, resume=file)
        assert len(file.read_text().splitlines()) == 4


class Unnamed:
    """A task whose repr has its address."""


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (EpisodeSpec(task=Unnamed()), "whose repr differs in the next run; expected Unnamed to"),
        (EpisodeSpec(options={"at": {(0, 1): 2}}), "keys must be str"),
    ],
)
def test_episodes_that_no_file_can_tell_apart_are_refused(tmp_path, spec, text):
    with pytest.raises(ValueError, match=f"cannot resume evaluation: .*{text}"):
        pysampler.evaluate(Steps, still, [spec], num_workers=0, resume=tmp_path / "file")


def test_a_fork_does_not_keep_a_file_from_others(arguments):
    end, other = os.pipe()

    def fork(_):
        if os.fork() == 0:
            os.close(other)
            os.read(end, 1)  # until the test ends
            os._exit(0)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pysampler.evaluate(Steps, still, 2, **arguments, progress=fork)
    assert len(pysampler.evaluate(Steps, still, 2, **arguments).episodes) == 2
    os.close(other)
    os.wait()
    os.close(end)


def test_a_complete_file_is_not_taken_for_envs_that_it_does_not_name(arguments):
    pysampler.evaluate(Steps, still, 2, **arguments)
    with pytest.raises(ValueError, match="has all results, of .*Steps.*got {'id': 'CartPole-v1'}"):
        pysampler.evaluate("CartPole-v1", still, 2, **arguments)


def test_only_one_evaluation_writes_to_a_file(arguments):

    def policy(observations):
        with pytest.raises(ValueError, match="another evaluation writes to .*file now"):
            pysampler.evaluate(Steps, still, 3, **arguments)
        return still(observations)

    assert len(pysampler.evaluate(Steps, policy, 3, **arguments).episodes) == 3


def test_a_file_system_may_lack_locks(tmp_path, monkeypatch):
    def flock(file, operation):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    pysampler.evaluate(Steps, still, 3, num_workers=0, seed=2, resume=tmp_path / "file")
    assert len((tmp_path / "file").read_text().splitlines()) == 4


def test_a_full_disk_is_told_once(tmp_path, arguments):
    expected = pysampler.evaluate(Steps, still, 3, **arguments)
    before = (tmp_path / "file").read_text()
    file = EvaluationFile(tmp_path / "file")
    file.open(2, [Start(i, 2 + i) for i in range(3)], Steps, None)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.add(0, expected.episodes[0])
        file.close()  # raises nothing: the lost line is told of already
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert (tmp_path / "file").read_text().startswith(before + '{"index": 0')
    assert pysampler.evaluate(Steps, still, 3, **arguments).episodes == expected.episodes


@pytest.mark.parametrize(
    "text", ["something\n", "something", "{}\n", '{"pysampler evaluation": 3}\n']
)
def test_other_files_are_refused(tmp_path, text):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match="is not the file of an evaluation"):
        pysampler.evaluate(Steps, still, 2, resume=tmp_path / "file")
    assert (tmp_path / "file").read_text() == text


DAMAGED = [
    *("half", "[]", "{}", '"text"', "1.0", "null", "\xff", "[" * 100_000),
    '{"index": -1, "seed": 2, "return_": 1.0, "length": 1, "terminated": true}',
    '{"index": 3, "seed": 2, "return_": 1.0, "length": 1, "terminated": true}',
    '{"index": 1, "seed": 2, "return_": "x", "length": 1, "terminated": true}',
]


@pytest.mark.parametrize("line", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_line_is_named(tmp_path, arguments, line):
    file = tmp_path / "file"
    expected = pysampler.evaluate(Steps, still, 3, **arguments)
    header, *results = file.read_text().splitlines(keepends=True)
    damaged = "".join([header, results[0], f"{line}\n", *results[2:]])
    file.write_text(damaged, encoding="latin-1")
    with pytest.raises(ValueError, match=r"is damaged: line 3 is no result; remove this line"):
        pysampler.evaluate(Steps, still, 3, **arguments)
    file.write_text("".join([header, results[0], *results[2:]]))
    assert pysampler.evaluate(Steps, still, 3, **arguments).episodes == expected.episodes


def test_file_with_other_line_ends_is_continued(tmp_path, arguments):
    file = tmp_path / "file"
    pysampler.evaluate(Steps, still, SPECS[:3], **arguments)
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    for _ in range(2):
        evaluation = pysampler.evaluate(Steps, still, SPECS[:5], **arguments)
        assert len(evaluation.episodes) == 5


def test_episodes_begin_in_the_order_of_earlier_lengths(begun):
    arguments = {"num_envs": 1, "num_workers": 0, "seed": 2}
    earlier = pysampler.evaluate(Steps, still, SPECS[:6], **arguments)
    begun.clear()
    evaluation = pysampler.evaluate(Steps, still, SPECS, **arguments, order=earlier)
    assert begun == [8, 9, 10, 7, 6, 5, 4, 3, 2]
    assert [one.seed for one in evaluation.episodes] == list(range(2, 11))


def test_progress_says_how_much_is_left(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # not installed
    pysampler.evaluate(Steps, still, SPECS, num_workers=0, seed=2, progress=True)
    assert "pysampler: 9 of 9 episodes, 0:00 left, mean return 10\n" in capsys.readouterr().err


def test_progress_is_a_line_every_tenth_without_a_bar(capsys):
    pysampler.evaluate(Steps, still, 35, num_workers=0, num_envs=1, seed=2, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == [
        *("4", "7", "11", "14", "18", "21", "25", "28", "32", "35"),
    ]


def test_progress_is_a_bar_of_tqdm(capsys, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    pysampler.evaluate(Steps, still, SPECS, num_workers=0, seed=2, progress=True)
    assert "9/9" in capsys.readouterr().err


def test_progress_is_told_to_a_function(capsys, arguments):
    over = []
    pysampler.evaluate(Steps, still, SPECS[:3], **arguments, progress=over.append)
    pysampler.evaluate(Steps, still, SPECS, **arguments, progress=over.append)
    assert over == [1] * 3 + [3] + [1] * 6
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("progress", ["yes", 1, None])
def test_other_progress_is_refused(progress):
    with pytest.raises(TypeError, match="cannot evaluate: progress .*, expected True, False or a"):
        pysampler.evaluate(Steps, still, SPECS, num_workers=0, seed=2, progress=progress)


def test_progress_is_dropped_without_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    pysampler.evaluate(Steps, still, SPECS, num_workers=0, seed=2, progress=True)


def test_progress_is_off_by_default(capsys):
    pysampler.evaluate(Steps, still, SPECS, num_workers=0, seed=2)
    assert capsys.readouterr().err == ""


SCRIPT = """
import sys, time
import gymnasium as gym
import numpy as np
import pysampler

class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        self.left = 3 + seed % 3
        return np.zeros(1, np.float32), {}
    def step(self, action):
        time.sleep(float(sys.argv[2]))
        self.left -= 1
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}

if __name__ == "__main__":
    evaluation = pysampler.evaluate(
        Slow, lambda o: np.zeros(len(o), int), 60, seed=0, num_envs=4, num_workers=2,
        resume=sys.argv[1], policy_in=sys.argv[3],
    )
    print(evaluation.lengths.tolist())
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["main", "workers"])
def test_ctrl_c_keeps_the_results_so_far(tmp_path, where):
    script, file = tmp_path / "script.py", tmp_path / "file"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(file)]
    with subprocess.Popen([*command, "0.1", where], stderr=subprocess.PIPE, text=True) as running:
        while not (file.exists() and len(file.read_text().splitlines()) > 3):
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()
    assert "KeyboardInterrupt" in errors
    assert "the same call runs the others" in errors
    before = file.read_text()
    assert 4 <= len(before.splitlines()) < 61
    done = subprocess.run([*command, "0", where], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([3 + seed % 3 for seed in range(60)])
    assert file.read_text().startswith(before)


def test_a_file_is_continued_with_more_episodes(tmp_path, begun, capsys, arguments):
    for episodes in (SPECS[:4], SPECS, SPECS):
        evaluation = pysampler.evaluate(Steps, still, episodes, **arguments, progress=True)
    assert begun == list(range(2, 11))
    assert evaluation.returns.tolist() == [2 + 2 * i for i in range(9)]
    told = capsys.readouterr().err
    assert f"pysampler: 4 of 9 episodes were read from {tmp_path / 'file'}\n" in told
    assert told.endswith(f"pysampler: 9 of 9 episodes were read from {tmp_path / 'file'}\n")
    with pytest.raises(ValueError, match=r"has other episodes \(9, got 4\)"):
        pysampler.evaluate(Steps, still, SPECS[:4], **arguments)
