"""A worker writes garbage to all memory it shares: the parent neither crashes nor hangs."""

from pathlib import Path

import pytest
from programs import completed

PROGRAM = """
import ctypes, faulthandler, os, random, sys, threading, warnings
import gymnasium as gym, numpy as np
import pysampler
from pysampler.errors import PysamplerError

warnings.simplefilter("ignore")
faulthandler.enable()
seed, asynchronous, restart = (int(argument) for argument in sys.argv[1:])


class Hostile(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, hostile):
        self.hostile = hostile
        self.began = False

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {"x": 1.0}

    def step(self, action):
        if self.hostile and not self.began:
            self.began = True
            threading.Thread(target=write, daemon=True).start()
        return np.zeros(2, np.float32), 1.0, False, False, {"x": 1.0, "n": 2, "text": "abc"}


def write():
    dice = random.Random(seed)
    areas = []
    for line in open("/proc/self/maps"):
        if "memfd:pysampler" in line and " rw-s " in line:
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            areas.append((first, last))
    first, last = max(areas, key=lambda area: area[1] - area[0])
    while True:
        for _ in range(50):
            at = dice.randrange(first, last - 8) & ~7
            kind = dice.random()
            value = dice.getrandbits(64) if kind < 0.5 else dice.randrange(8)
            if kind > 0.9:
                value = ctypes.c_uint64.from_address(at).value + dice.choice([1, 4, -4])
            ctypes.c_uint64.from_address(at).value = value


fns = [lambda i=i: Hostile(i == 0) for i in range(6)]
envs = pysampler.VectorEnv(
    fns, num_workers=3, groups=2, on_worker_loss="restart" if restart else "raise",
    autoreset_mode="SameStep", step_timeout=5,
)
raised = set()
try:
    envs.reset()
    for turn in range(300):
        try:
            if asynchronous:
                if not envs.pending:
                    envs.send(np.zeros(6, np.int64))
                ids = envs.recv(min_envs=1, timeout=0.01)[4]["env_id"]
                if len(ids):
                    envs.send(np.zeros(len(ids), np.int64), ids)
            else:
                envs.step_async(np.zeros(6, np.int64))
                envs.step_wait(timeout=0.5)
        except (PysamplerError, TimeoutError, ValueError) as error:
            raised.add(type(error).__name__)
            if envs.closed or len(raised) > 20 or not asynchronous:
                break
finally:
    if not envs.closed:
        envs.close(terminate=True)
print("through", sorted(raised))
"""


@pytest.mark.slow
@pytest.mark.parametrize("restart", [0, 1])
@pytest.mark.parametrize("asynchronous", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_parent_survives_garbage_in_shared_memory(seed, asynchronous, restart, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    arguments = map(str, (seed, asynchronous, restart))
    done = completed(program, *arguments, cwd=Path(__file__).parent)
    assert done.stdout.splitlines()[-1].startswith("through")
