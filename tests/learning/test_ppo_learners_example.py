"""Several learners of examples/ppo_learners.py equal one learner, and end together."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import psutil
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("torch has no gloo", allow_module_level=True)

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = str(EXAMPLES / "ppo_learners.py")
WATCHDOG = 120  # seconds

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    before = set(sys.modules)
    yield importlib.import_module("ppo_learners")
    for name in {"ppo_learners", "ppo", "common"} - before:
        sys.modules.pop(name, None)


@pytest.fixture
def alone(example):
    """Learners with a world size of 1."""
    learners = example.Learners(
        *(4, torch.device("cpu")), store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield learners
    torch.distributed.destroy_process_group()


@contextlib.contextmanager
def started(*arguments, command=(SCRIPT,), **kwargs):
    """Run a program in a new session and check that no process of it is left."""
    process = subprocess.Popen(
        [sys.executable, *command, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **kwargs,
    )
    process.family = []
    try:
        yield process
        left = [*session(process), *process.family]
        _, alive = psutil.wait_procs(left, timeout=WATCHDOG)  # workers notice that theirs has died
        assert not alive
    finally:
        for one in [*session(process), *process.family]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.kill()
        process.communicate()


def session(process):
    """Return all other processes of the program's session."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            if os.getsid(one.pid) == process.pid and one.pid != process.pid:
                found.append(one)
    return found


def learners_of(process):
    """Return the processes of the learners, by their ranks."""
    children = psutil.Process(process.pid).children()
    spawned = [one for one in children if "--multiprocessing-fork" in one.cmdline()]
    return sorted(spawned, key=lambda one: (one.create_time(), one.pid))


def wait_until_it_shows(process, text):
    """Wait until the program has written ``text`` to stderr."""
    shown = ""
    while text not in shown:
        read = process.stderr.read(1)
        assert read, shown
        shown = (shown + read)[-2000:]
    # Workers of the learners are in other sessions.
    process.family = psutil.Process(process.pid).children(recursive=True)


# -- learning --------------------------------------------------------------------------------------

# Writes the parameters after each update to a file. In double precision, because rounding of floats
# would change an action within a few updates, and everything after it.
IN_DOUBLE = """
import sys
import torch

torch.set_default_dtype(torch.float64)
import ppo_learners

store, rank, count, out, *sys.argv[1:] = sys.argv[1:]
updates, learn = [], ppo_learners.learn

def recorded(net, *others):
    learn(net, *others)
    updates.append({name: tensor.clone() for name, tensor in net.state_dict().items()})

ppo_learners.learn = recorded
ppo_learners.learner(
    ppo_learners.read_options(),
    store=torch.distributed.FileStore(store, int(count)),
    rank=int(rank),
    world_size=int(count),
)
torch.save(updates, out)
"""


def updates_of(count, folder, *arguments):
    """Return the parameters of ``count`` learners after each update, and the first's result."""
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES), "GLOO_SOCKET_IFNAME": "lo"}
    options = ["--learners", str(count), "--quiet", "--json", *arguments]
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                started(
                    *(folder / f"store {count}", str(rank), str(count)),
                    *(folder / f"{rank} of {count}", *options),
                    command=("-c", IN_DOUBLE),
                    env=environment,
                )
            )
            for rank in range(count)
        ]
        outputs = [process.communicate(timeout=WATCHDOG) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    printed, *silent = [out for out, _ in outputs]
    assert not any(silent)
    updates = [torch.load(folder / f"{rank} of {count}") for rank in range(count)]
    return updates, json.loads(printed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", pytest.param("Pendulum-v1", marks=pytest.mark.long)]
)
def test_two_learners_equal_one(env_id, tmp_path):
    """Discrete and continuous actions, and shares of 2 and 3 envs."""
    arguments = ["--env", env_id, "--envs", "5", "--steps", "3200", "--workers", "1"]
    [one], result = updates_of(1, tmp_path, *arguments)
    (first, second), shared = updates_of(2, tmp_path, *arguments)
    assert len(one) == len(first) == len(second) == 4
    assert one[0].keys() == first[0].keys()
    for update, (expected, mine, theirs) in enumerate(zip(one, first, second, strict=True)):
        for name, tensor in expected.items():
            assert tensor.dtype == torch.float64
            assert torch.equal(mine[name], theirs[name])  # they sum the same numbers
            # Rounding of 2e-16, amplified by the 40 optimizer steps of each update.
            torch.testing.assert_close(mine[name], tensor, rtol=1e-8, atol=1e-8)
        if update > 0:
            assert not torch.allclose(expected["mean"], one[update - 1]["mean"])
    assert shared["steps"] == result["steps"] == 3200
    assert shared["return"] == pytest.approx(result["return"])


def test_a_minibatch_of_all_rows_learns_like_ppo(alone, example):
    import ppo

    settings = example.Settings(envs=4, horizon=16, batches=1, entropy=0.01)
    spaces = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
    learned = []
    for shared in (True, False):
        generator = torch.manual_seed(1)  # torch's global generator, which ppo.py uses
        net = example.SharedActorCritic(spaces, alone, generator).double()
        optimizer = torch.optim.Adam(net.parameters(), 1e-2)
        batch = ppo.Batch(
            *(torch.randn(16, 4, 3), torch.randint(2, (16, 4)), torch.randn(16, 4).double()),
            *(torch.randn(16, 4).double(), torch.randn(16, 4).double(), np.zeros(0), {}),
        )
        before = [param.detach().clone() for param in net.parameters()]
        if shared:
            example.learn(net, optimizer, batch, settings, alone)
        else:
            ppo.learn(net, optimizer, batch, settings)
        changed = [not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True)]
        assert all(changed[1:])  # discrete actions do not use the deviations
        learned.append(net.state_dict())
    for name, tensor in learned[0].items():
        # ppo.py computes observation statistics in single precision.
        near = {"rtol": 1e-5, "atol": 1e-6} if name in {"mean", "var"} else {}
        torch.testing.assert_close(tensor, learned[1][name], **near)


@pytest.mark.parametrize("discrete", [True, False])
def test_actions_depend_on_the_env_and_not_on_the_learner(example, discrete):
    actions = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1, 1, (2,))
    spaces = gym.spaces.Box(-1, 1, (4,)), actions
    seen = torch.rand(6, 4, generator=torch.manual_seed(1))
    drawn = []
    for own in (range(6), range(2), range(2, 6)):
        torch.manual_seed(1)
        learners = SimpleNamespace(envs=6, own=own)
        net = example.SharedActorCritic(spaces, learners, torch.Generator().manual_seed(7))
        drawn.append([net(seen[own])[0] for _ in range(3)])
    for all_of_them, low, high in zip(*drawn, strict=True):
        torch.testing.assert_close(torch.cat([low, high]), all_of_them)
    assert not torch.equal(drawn[0][0], drawn[0][1])


@pytest.mark.parametrize("discrete", [True, False])
def test_actions_are_drawn_from_the_distribution(example, discrete):
    actions = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1, 1, (2,))
    spaces = gym.spaces.Box(-1, 1, (4,)), actions
    learners = SimpleNamespace(envs=20_000, own=range(10_000, 20_000))
    net = example.SharedActorCritic(spaces, learners, torch.Generator().manual_seed(7))
    with torch.no_grad():
        if discrete:
            net.actor[-1].bias += torch.tensor([0.0, 1.0, 2.0])
        else:
            net.actor[-1].bias += torch.tensor([1.0, 2.0])
            net.log_std += torch.tensor([0.0, -1.0])
        seen = torch.zeros(10_000, 4)
        drawn, extras = net(seen)
        distribution = net.distribution(net.normalized(seen))
    torch.testing.assert_close(extras["log_prob"], distribution.log_prob(drawn))
    if discrete:
        frequencies = torch.bincount(drawn, minlength=3) / 10_000
        torch.testing.assert_close(frequencies, distribution.probs[0], atol=0.02, rtol=0)
    else:
        torch.testing.assert_close(drawn.mean(0), distribution.mean[0], atol=0.05, rtol=0)
        torch.testing.assert_close(drawn.std(0), distribution.stddev[0], atol=0.05, rtol=0)


# -- programs --------------------------------------------------------------------------------------


def result_of(process):
    out, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 0, errors
    [line] = out.splitlines()  # only the first learner prints
    return json.loads(line)


@pytest.mark.long
@pytest.mark.parametrize("by", ["itself", "torchrun"])
def test_two_learners_report_the_samples_of_both(by):
    arguments = ["--quiet", "--json", "--steps", "4096", "--workers", "1"]
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT)
    command = torchrun if by == "torchrun" else (SCRIPT,)
    with started(*arguments, command=command) as process:
        result = result_of(process)
    assert result["steps"] == 4096
    assert result["return"] > 15  # of ended episodes; a random policy gets about 20
    assert result["seconds_in"]["exchange"] > 0


@pytest.mark.long
def test_learners_resume_from_a_checkpoint(tmp_path):
    arguments = ["--quiet", "--json", "--workers", "0", "--checkpoints", str(tmp_path)]
    with started(*arguments, "--steps", "2048") as process:
        assert result_of(process)["resumed"] == 0
    with started(*arguments, "--steps", "4096") as process:
        result = result_of(process)
    assert result["resumed"] == 2048
    assert result["steps"] == 4096


def test_one_learner_starts_no_other_process(example, monkeypatch, capsys):
    arguments = ["--learners", "1", "--workers", "0", "--envs", "2", "--steps", "300"]
    monkeypatch.setattr(sys, "argv", [SCRIPT, "--quiet", "--json", *arguments])
    monkeypatch.setattr(example, "launch", lambda _: pytest.fail("it has launched others"))
    example.main()
    assert json.loads(capsys.readouterr().out)["steps"] == 512


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["--learners", "0"], {}, "argument --learners: 0, expected at least 1"),
        (["--learners", "3", "--envs", "2"], {}, "--envs: 2, expected at least one for each of 3"),
        (
            ["--learners", "3"],
            {"RANK": "0", "WORLD_SIZE": "2"},
            "--learners: 3, but torchrun started 2",
        ),
    ],
)
def test_bad_numbers_of_learners_are_refused(
    arguments, environment, expected, example, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", [SCRIPT, *arguments])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as error:
        example.main()
    assert error.value.code == 2
    assert expected in capsys.readouterr().err


# -- ends ------------------------------------------------------------------------------------------

ENDLESS = ["--steps", "100000000", "--until", "501", "--workers", "1"]

# Learner processes import this script again.
WITH_BAD_ENVS = """
import sys
import threading

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from ppo_learners import main

class Bad(CartPoleEnv):
    def __init__(self, render_mode=None, hangs=False):
        super().__init__(render_mode=render_mode)
        self.steps, self.hangs, self.bad = 0, hangs, False

    def reset(self, *, seed=None, options=None):
        self.bad |= seed == 8  # the last of 8 envs
        return super().reset(seed=seed, options=options)

    def step(self, action):
        self.steps += 1
        if self.bad and self.steps == 1100:  # in the ninth rollout
            if self.hangs:
                print("it hangs", file=sys.stderr, flush=True)
                threading.Event().wait()
            raise ValueError("too many steps")
        return super().step(action)

gym.register("Raises-v0", Bad)
gym.register("Hangs-v0", Bad, kwargs={"hangs": True})
if __name__ == "__main__":
    main()
"""


@pytest.fixture
def bad_envs(tmp_path):
    """Arguments of ``started`` for a program with bad envs."""
    script = tmp_path / "with_bad_envs.py"
    script.write_text(WITH_BAD_ENVS)
    return {"command": (script,), "env": {**os.environ, "PYTHONPATH": str(EXAMPLES)}}


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_killed_learner_ends_the_others_with_a_message(rank):
    with started(*ENDLESS) as process:
        wait_until_it_shows(process, "return=")
        learners = learners_of(process)
        assert len(learners) == 2
        learners[rank].kill()
        out, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 1
    assert f"learner {rank} (pid {learners[rank].pid}) lost: signal 9" in errors
    assert "Traceback" not in errors
    assert not out


@pytest.mark.long
def test_an_env_error_ends_all_learners(bad_envs):
    with started(*ENDLESS, "--env", "Raises-v0", **bad_envs) as process:
        _, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 1
    assert "ValueError: too many steps" in errors
    assert "learner 1 (pid " in errors
    assert "lost: status 1" in errors


@pytest.mark.long
@pytest.mark.parametrize("when", ["they start", "they learn"])
def test_ctrl_c_leaves_no_traceback(when):
    with started(*ENDLESS) as process:
        if when == "they learn":
            wait_until_it_shows(process, "return=")
        else:
            while not learners_of(process):
                assert process.poll() is None
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert "steps in" in out
    if when == "they learn":
        assert "return" in out


@pytest.mark.long
def test_a_second_ctrl_c_does_not_wait_for_an_env(bad_envs):
    with started(*ENDLESS, "--env", "Hangs-v0", **bad_envs) as process:
        wait_until_it_shows(process, "it hangs")
        os.killpg(process.pid, signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        os.killpg(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "Traceback" not in errors
    assert not out


@pytest.mark.slow
def test_learners_end_when_their_parent_dies():
    with started(*ENDLESS) as process:
        wait_until_it_shows(process, "return=")
        assert len(process.family) > 4  # learners and their workers
        process.kill()
        process.communicate(timeout=WATCHDOG)
    assert process.returncode == -signal.SIGKILL
