"""Scarce resources give a clear error or correct results, and nothing is left behind."""

import os
import shutil
import subprocess

import pytest
from programs import completed

PROGRAM = """
import os, resource, sys
import gymnasium as gym, numpy as np, psutil
import pysampler
from pysampler._workers import processes

def limit(name, soft):
    resource.setrlimit(name, (soft, resource.getrlimit(name)[1]))

def use(**kwargs):
    envs = pysampler.make_vec("CartPole-v1", 8, vector_kwargs={"num_workers": 2, **kwargs})
    envs.reset(seed=1)
    for _ in range(5):
        envs.step(envs.action_space.sample())
    envs.close()
    return "works"

def attempt(**kwargs):
    try:
        return use(**kwargs)
    except (OSError, MemoryError, pysampler.errors.PysamplerError) as error:
        return f"{type(error).__name__}: {error}"

me = psutil.Process()
"""


def run(program, *prefix):
    return completed("-c", PROGRAM + program, prefix=prefix).stdout.strip().splitlines()[-1]


@pytest.mark.slow
def test_too_few_descriptors_raise_and_leak_nothing():
    """With any number of spare descriptors; it works once there are enough again."""
    out = run("""
processes.allow_workers = lambda count: None  # to reach the errors behind this check
use()
fds = me.num_fds()
out = set()
for spare in range(12):
    limit(resource.RLIMIT_NOFILE, fds + spare)
    out.add(attempt())
    assert me.num_fds() <= fds + 1, (spare, me.num_fds(), fds)
limit(resource.RLIMIT_NOFILE, 1000)
out.add(attempt())
print(sorted(t.split(":")[0] for t in out))
""")
    assert "'works'" in out
    assert "'OSError'" in out


@pytest.mark.slow
def test_open_file_limit_is_raised_in_the_parent_only():
    out = run("""
limit(resource.RLIMIT_NOFILE, me.num_fds() + 8)
before = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
envs = pysampler.make_vec("CartPole-v1", 8, vector_kwargs={"num_workers": 8})
after = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
theirs = envs.apply(lambda env: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
envs.close()
print(before < after, set(theirs) == {before})
""")
    assert out == "True True"


@pytest.mark.slow
def test_error_suggests_raising_the_hard_limit_on_open_files():
    told = run("""
resource.setrlimit(resource.RLIMIT_NOFILE, (me.num_fds() + 8,) * 2)
print(attempt())
""")
    assert told.startswith("OSError: [Errno 24] cannot start 2 workers: they need ")
    assert "raise it (ulimit -Hn), or pass a smaller num_workers" in told


@pytest.mark.slow
def test_too_little_memory_raises_and_leaves_no_workers():
    out = run("""
use()
limit(resource.RLIMIT_AS, me.memory_info().vms + (1 << 20))
out = {attempt(frames=10_000).split(":")[0]}
limit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[1])
out.add(attempt())
print(sorted(out), len([c for c in me.children() if "pysampler: worker" in " ".join(c.cmdline())]))
""")
    assert out in ("['MemoryError', 'works'] 0", "['OSError', 'works'] 0")


WITHOUT_PROC = """
import pysampler
from gymnasium.envs.classic_control import CartPoleEnv
for context in ("forkserver", "spawn", "fork"):
    try:
        pysampler.VectorEnv([CartPoleEnv], num_workers=1, context=context)
    except FileNotFoundError as error:
        print(error)
envs = pysampler.VectorEnv([CartPoleEnv], num_workers=0)
envs.reset()
envs.close()
"""


@pytest.mark.slow
def test_missing_proc_mount_raises_a_clear_error():
    """Runs in a new mount namespace, which only root can make."""
    hidden = 'mount -t tmpfs none /proc && exec "$0" "$@"'
    command = ["unshare", "-m", "sh", "-c", hidden]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this user cannot hide /proc")
    done = completed("-c", WITHOUT_PROC, prefix=command)
    told = done.stdout.splitlines()
    assert len(told) == 3
    assert all("cannot start workers: /proc is not mounted" in one for one in told)
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() == 0, reason="the limit on processes does not bind root")
def test_process_limit_raises_a_clear_error():
    out = run("""
limit(resource.RLIMIT_NPROC, 1)
print(attempt())
""")
    assert "cannot start worker: " in out
    assert " is 1 (ulimit -u)" in out


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
@pytest.mark.parametrize("context", ["forkserver", "spawn", "fork"])
def test_error_names_the_process_limit_wherever_it_is_met(context):
    """As a user without other processes, who may read the files of root."""
    told = run(
        f"""
for most in range(1, 50):
    pid = os.fork()  # a fork server keeps the limit with which it was started
    if pid == 0:
        limit(resource.RLIMIT_NPROC, most)
        told = attempt(context={context!r})
        print(told, flush=True)
        os._exit(told == "works" or 2 * (f" is {{most}} (ulimit -u)" not in told))
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if ended != 0:
        break
print(ended, most > 4)
""",
        *("setpriv", "--reuid", str(100_000 + os.getpid()), "--clear-groups"),
        *("--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"),
    )
    assert told == "1 True"


@pytest.mark.slow
@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare"
)
def test_workers_run_without_writable_directories():
    """/tmp, /dev/shm and the working directory are read-only; no file is needed."""
    mounts = " && ".join(
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
        for folder in ("/tmp", "/dev/shm")
    )
    allowed = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounts], check=False, capture_output=True
    )
    if allowed.returncode != 0:
        pytest.skip(f"cannot mount here: {allowed.stderr.decode().strip()}")
    shell = f'{mounts} && cd /tmp && exec "$@"'
    assert run("print(attempt())", "unshare", "--mount", "sh", "-c", shell, "sh") == "works"


@pytest.mark.slow
def test_one_cpu_gets_one_worker():
    out = run("""
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
envs = pysampler.VectorEnv([lambda: gym.make("CartPole-v1")] * 4)
print(envs.num_workers, attempt())
envs.close()
""")
    assert out == "1 works"


LARGE = """
class Large(gym.Env):
    observation_space = action_space = gym.spaces.Discrete(3)
    def reset(self, **kwargs):
        return 0, {}
    def step(self, action):
        return 0, 0.0, False, False, {}
    def large(self):
        return np.zeros(100_000_000, np.uint8)

envs = pysampler.VectorEnv([Large] * 2, num_workers=2)
envs.reset()
workers = [psutil.Process(pid) for pid in envs._pool.pids]
def refused(call):
    try:
        call()
    except (MemoryError, pysampler.errors.LayoutError) as error:
        return type(error).__name__
    return "nothing"
"""


def run_large(program):
    return run(LARGE + program)


@pytest.mark.slow
def test_answer_is_received_once_memory_is_available():
    out = run_large("""
limit(resource.RLIMIT_AS, me.memory_info().vms + (50 << 20))
print(refused(lambda: envs.call("large")), refused(envs.call_wait))
limit(resource.RLIMIT_AS, resource.getrlimit(resource.RLIMIT_AS)[1])
answers = envs.call_wait()
assert [len(answer) for answer in answers] == [100_000_000] * 2
envs.step([0, 0])
envs.close()
print("received")
""")
    assert out == "received"


@pytest.mark.slow
def test_answer_is_received_once_descriptors_are_available():
    out = run_large("""
before = me.num_fds()
limit(resource.RLIMIT_NOFILE, 3)  # below the open ones
assert refused(lambda: envs.call("large")) == "LayoutError"
limit(resource.RLIMIT_NOFILE, before + 100)
assert [len(answer) for answer in envs.call_wait()] == [100_000_000] * 2
assert me.num_fds() == before
envs.close()
print("received")
""")
    assert out == "received"


@pytest.mark.slow
def test_close_ends_workers_whose_answers_had_no_memory():
    out = run_large("""
limit(resource.RLIMIT_AS, me.memory_info().vms + (50 << 20))
assert refused(lambda: envs.call("large")) == "MemoryError"
envs.close()
assert envs.closed
psutil.wait_procs(workers)
print("closed")
""")
    assert out == "closed"
