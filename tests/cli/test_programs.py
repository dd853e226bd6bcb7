"""``pysampler dump`` and ``top`` show a program's workers without disturbing them."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from terminals import on_screen, plain

import pysampler
from pysampler._cli import programs
from pysampler._cli.main import main

HERE = str(os.getpid())


class Gated(gym.Env):
    """Its step waits while a file exists, then takes ``seconds`` more."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, gate=None, seconds=0.0):
        self.gate = gate
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        while self.gate is not None and self.gate.exists():
            time.sleep(0.001)  # poll: the test removes the file
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        return np.zeros(2, np.float32), 0.0, False, False, {}


class SlowProgram:
    """Steps envs, and computes for some milliseconds after each step."""

    def __init__(self, envs):
        self.envs = envs
        self.num_envs = envs.num_envs
        self.reset = envs.reset

    def step(self, actions):
        self.envs.step(actions)
        end = time.perf_counter() + 5e-3
        while time.perf_counter() < end:
            pass


@contextlib.contextmanager
def stepping(envs):
    """Step the envs in a thread during the block."""
    stop = threading.Event()
    actions = np.zeros(envs.num_envs, np.int64)
    envs.reset(seed=0)

    def run():
        while not stop.is_set():
            envs.step(actions)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def dumped(*arguments):
    """Return the command's JSON for the only pool of this process."""
    done = subprocess.run(
        [sys.executable, "-m", "pysampler", "dump", *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["pid"] == os.getpid()
    (pool,) = told["pools"]
    return pool


@pytest.mark.slow
def test_dump_shows_the_steps_of_each_worker():
    envs = pysampler.VectorEnv([functools.partial(Gated, None, 1e-4)] * 6, num_workers=2)
    with stepping(envs):
        pool = dumped(HERE, "--seconds", "0.3")
    assert pool["name"] == "Gated"
    assert len(pool["workers"]) == 2
    assert [worker["pid"] for worker in pool["workers"]] == envs._pool.pids
    for worker in pool["workers"]:
        assert worker["steps"] > 0
        assert worker["step_p99"] >= worker["step_p50"] > 5e-5
        assert 0 < worker["busy"] <= 1
    envs.close()


@pytest.mark.slow
def test_a_slow_env_or_a_slow_program_is_named():
    times = [1e-4, 1e-4, 1e-4, 5e-3]
    envs = pysampler.VectorEnv([functools.partial(Gated, None, t) for t in times], num_workers=2)
    with stepping(envs):
        assert dumped(HERE, "--seconds", "0.5")["verdict"].startswith("one env slow: 3 takes ")
    envs.close()
    envs = pysampler.VectorEnv([Gated] * 4, num_workers=2)
    with stepping(SlowProgram(envs)):
        verdict = dumped(HERE, "--seconds", "0.5")["verdict"]
    assert verdict.startswith("the program is the limit: it is busy elsewhere ")
    envs.close()


@pytest.mark.slow
def test_dump_accepts_the_pid_of_a_worker():
    envs = pysampler.VectorEnv([Gated] * 2, num_workers=2)
    pool = dumped(str(envs._pool.pids[1]), "--seconds", "0.01")
    assert pool["verdict"].startswith("the program has sent no command")
    assert [worker["env"] for worker in pool["workers"]] == [None, None]
    envs.close()


@pytest.mark.slow
def test_a_hanging_env_is_named_with_the_command_for_its_stack(tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    envs = pysampler.VectorEnv([Gated, Gated, functools.partial(Gated, gate), Gated], num_workers=2)
    envs.reset(seed=0)
    envs.step_async(np.zeros(4, np.int64))
    working = envs._pool._links.counters.at_work
    while working()[0].tolist() != [-1, 2]:
        time.sleep(0.001)  # poll: workers write it and wake no reader
    pool = dumped(HERE, "--seconds", "0.1")
    assert pool["workers"][1]["env"] == 2
    assert pool["workers"][1]["since"] >= 0.1
    assert pool["workers"][1]["busy"] == 1
    status, shown = on_screen("-m", "pysampler", "dump", HERE, "--seconds", "0.1", columns=60)
    assert status == 0
    lines = plain(shown).splitlines()
    assert max(map(len, lines[:-1])) <= 60
    assert lines[-1] == f"to see its Python stack: py-spy dump --pid {envs._pool.pids[1]}"
    gate.unlink()
    envs.step_wait()
    envs.close()


def test_observed_memory_is_mapped_read_only():
    envs = pysampler.VectorEnv([Gated] * 2, num_workers=1)
    program = programs.find(os.getpid())
    maps = Path("/proc/self/maps").read_text().splitlines()
    rights = [line.split()[1] for line in maps if "memfd:pysampler" in line]
    assert "r--s" in rights
    (pool,) = program.pools
    assert not pool.counters.envs.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        pool.counters.envs["steps"]["count"][0] = 1
    envs.close()


@pytest.mark.slow
def test_pools_of_one_program_have_different_names():
    """Numbers in the order of creation, until one is left."""

    def names():
        pools = programs.find(os.getpid()).pools
        return [(pool.name, pool.about.envs[-1][1]) for pool in pools]

    first = pysampler.VectorEnv([Gated] * 2, num_workers=1)
    assert names() == [("Gated", 2)]
    second = pysampler.VectorEnv([Gated] * 3, num_workers=1)
    assert names() == [("Gated (1)", 2), ("Gated (2)", 3)]
    first.close()
    assert names() == [("Gated", 3)]
    second.close()


@pytest.mark.slow
def test_an_ended_worker_is_reported():
    envs = pysampler.VectorEnv([Gated] * 2, num_workers=2)
    pid = envs._pool.pids[1]
    os.kill(pid, signal.SIGKILL)
    while any(pid in pool.workers.values() for pool in programs.find(os.getpid()).pools):
        time.sleep(0.001)  # poll: it is the child of another process
    pool = dumped(HERE, "--seconds", "0.01")
    assert pool["verdict"] == "worker 1 has ended"
    envs.close(terminate=True)


def refused(capsys, *arguments):
    """Return the one-line error of the command."""
    assert main(["dump", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


def test_an_unusable_pid_is_reported_in_one_line(capsys, monkeypatch):
    assert refused(capsys, "1") != ""
    assert refused(capsys, "4194305") == "pysampler: process not found: 4194305"
    sleeper = subprocess.Popen(["sleep", "60"])
    assert "has no pysampler workers" in refused(capsys, str(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    envs = pysampler.VectorEnv([Gated] * 2, num_workers=1)
    monkeypatch.setattr(programs, "LAYOUT", 99)
    for pid in (envs._pool.pids[0], os.getpid()):
        line = refused(capsys, str(pid))
        assert "it runs another version of pysampler; use the command pysampler of" in line
    envs.close()


@pytest.mark.slow
def test_top_needs_a_terminal():
    done = subprocess.run(
        [sys.executable, "-m", "pysampler", "top"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == ("pysampler: top needs a terminal; use pysampler dump, or dump --json\n")


@pytest.mark.slow
def test_top_ends_with_the_program(tmp_path):
    """Until then it shows the workers."""
    program = tmp_path / "program.py"
    gate = tmp_path / "gate"
    gate.touch()
    program.write_text(
        "import pathlib, time, gymnasium, numpy as np, pysampler\n"
        "envs = pysampler.make_vec('CartPole-v1', 4, vector_kwargs={'num_workers': 2})\n"
        "envs.reset(seed=0)\n"
        "print('ready', flush=True)\n"
        f"while pathlib.Path({str(gate)!r}).exists():\n"
        "    envs.step(envs.action_space.sample())\n"
        "envs.close()\n"
    )
    begun = [sys.executable, str(program)]
    with subprocess.Popen(begun, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        once = "4 envs in 2 workers", gate.unlink
        top = "-m", "pysampler", "top", str(child.pid), "--seconds", "0.2"
        status, shown = on_screen(*top, once=once)
    assert status == 0
    shown = plain(shown)
    assert "CartPole-v1, 4 envs in 2 workers" in shown
    assert shown.rstrip().endswith(f"program {child.pid} ended, or closed its vector envs")


@pytest.mark.slow
def test_top_waits_while_the_only_worker_is_replaced(tmp_path):
    """The replacement takes a while to make its envs, so meanwhile there is no worker."""
    program = tmp_path / "program.py"
    gate, done = tmp_path / "gate", tmp_path / "done"
    program.write_text(
        "import os, pathlib, time, gymnasium, numpy as np, pysampler\n"
        "from pysampler._workers import worker\n"
        f"gate = pathlib.Path({str(gate)!r})\n"
        "def make():\n"
        "    while worker.is_replacement and not gate.exists():\n"
        "        time.sleep(0.001)\n"
        "    return gymnasium.make('CartPole-v1')\n"
        "envs = pysampler.VectorEnv([make] * 4, num_workers=1, on_worker_loss='restart')\n"
        "envs.reset(seed=0)\n"
        "print(envs._pool.pids[0], flush=True)\n"
        f"while os.getppid() == {HERE} and not pathlib.Path({str(done)!r}).exists():\n"
        "    envs.step(np.zeros(4, int))\n"
        "envs.close()\n"
    )
    begun = [sys.executable, str(program)]
    with subprocess.Popen(begun, stdout=subprocess.PIPE, text=True) as child:
        worker = int(child.stdout.readline())

        def replace():
            os.kill(worker, signal.SIGKILL)
            threading.Timer(0.5, gate.touch).start()  # some looks later
            return "restarts", done.touch

        top = "-m", "pysampler", "top", str(child.pid), "--seconds", "0.05"
        status, shown = on_screen(*top, columns=100, once=("4 envs in 1 worker", replace))
    assert status == 0
    assert done.exists()
    assert "ended, or closed its vector envs" in plain(shown)


# -- containers ------------------------------------------------------------------------------------

STEPPING = """
import sys
import pysampler
if __name__ == "__main__":
    envs = pysampler.make_vec("CartPole-v1", 2, vector_kwargs={"num_workers": 1})
    envs.reset(seed=1)
    print("ready", flush=True)
    sys.stdin.read()
    envs.close()
"""


@contextlib.contextmanager
def in_container():
    """Run a program as process 1 of a new pid namespace; yield its pid in ours."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", STEPPING]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as outer:
        if outer.stdout.readline() != "ready\n":
            pytest.skip(f"no pid namespace can be made here: {outer.stderr.read()}")
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text()
        yield int(children)
        outer.stdin.close()


@pytest.mark.slow
def test_programs_in_different_containers_are_distinguished(capsys):
    with in_container() as one, in_container() as other:
        found = {program.pid: program for program in programs.programs()}
        assert {one, other} <= found.keys()
        assert 1 not in found
        for pid in (one, other):
            assert found[pid].nspid == (pid, 1)
            assert "make_vec" in found[pid].command
            (pool,) = found[pid].pools
            (worker,) = pool.workers.values()
            assert programs.find(worker).pid == pid
        assert main(["dump", str(one), "--seconds", "0.1"]) == 0
        told = capsys.readouterr().out
        assert told.startswith(f"program {one} (1 in its container): ")
        assert main(["dump", str(one), "--seconds", "0.1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["nspid"] == [one, 1]


@pytest.mark.slow
def test_a_container_with_the_hosts_proc_traces_its_own_program(tmp_path):
    trace = STEPPING.replace("1}", f'1, "trace": "{tmp_path / "run.json"}"}}')
    done = subprocess.run(
        ["unshare", "--pid", "--fork", sys.executable, "-c", trace],
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    if "unshare failed" in done.stderr:
        pytest.skip(f"no pid namespace can be made here: {done.stderr}")
    assert (done.returncode, done.stdout) == (0, "ready\n"), done.stderr


def made_up_proc(root, processes):
    """Write a /proc for processes given as (parent, namespace, NSpid, command) by pid."""
    for pid, (parent, namespace, nspid, command) in processes.items():
        folder = root / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "ns" / "pid").symlink_to(f"pid:[{namespace}]")
        (folder / "stat").write_text(f"{pid} (python) S {parent} 0 0")
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())
        told = "" if nspid is None else "NSpid:\t" + "\t".join(map(str, nspid)) + "\n"
        (folder / "status").write_text(f"Name:\tpython\nPid:\t{pid}\n{told}Threads:\t1\n")
    (root / "self").symlink_to(str(next(iter(processes))))


def test_creators_are_found_by_namespace_and_pid(tmp_path, monkeypatch):
    worker = "pysampler: worker 0/1 CartPole-v1"
    creators = {20: 7, 30: 7, 40: 7, 51: 50, 61: 7}
    made_up_proc(
        tmp_path,
        {
            1: (0, 10, [1], "init"),
            7: (1, 10, [7], "python here.py"),
            20: (7, 10, [20], worker),
            29: (1, 11, [29, 7], "python there.py"),
            30: (29, 11, [30, 9], worker),
            39: (1, 12, [39, 3, 7], "python nested.py"),
            40: (39, 12, [40, 4, 8], worker),
            50: (1, 10, [50], "python unshares.py"),
            51: (50, 13, [51, 1], worker),  # of a program whose children have a namespace
            60: (1, 14, [60, 1], "sh"),
            61: (60, 14, [61, 8], worker),  # its program has ended
        },
    )

    class SegmentManifest:
        main = False

    def attach(pid, name):
        pool = programs.Pool(pid, name, SegmentManifest, None, None, None, tmp_path)
        return creators[pid], pool

    monkeypatch.setattr(programs, "_PROC", tmp_path)
    monkeypatch.setattr(programs, "_attach", attach)
    found = {one.nspid: (one.command, one.pools[0].workers) for one in programs.programs()}
    assert found == {
        (7,): ("python here.py", {0: 20}),
        (29, 7): ("python there.py", {0: 30}),
        (39, 3, 7): ("python nested.py", {0: 40}),
        (50,): ("python unshares.py", {0: 51}),
    }
    assert programs.find(7).command == "python here.py"
    assert programs.find(29).command == programs.find(30).command == "python there.py"
    (tmp_path / "7" / "status").write_text("Name:\tpython\n")  # of a kernel without namespaces
    assert programs.find(7).nspid == (7,)
