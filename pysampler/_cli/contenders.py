"""The contenders of bench and tune: vector envs and samplers, each in a process that steps them.

``main`` is the program of such a process: it answers each line of JSON with another. The kernel
ends the process, and all that it forks, with the process that started it, even after a crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space

from pysampler import _core
from pysampler._cli.hangs import report_hangs
from pysampler._cli.programs import AttachError, find
from pysampler._cli.recorder import Recorder
from pysampler._cli.rounds import means_of, rounds_of
from pysampler._cli.sources import CHECKED, SourceError, line_of, source_of
from pysampler._policies.trees import mapped
from pysampler._rollouts.rollouts import Rollouts
from pysampler._vector.env_calls import is_several
from pysampler._vector.isolation.check import check_envs
from pysampler._vector.vector_env import VectorEnv, core_of
from pysampler.errors import EnvError
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from pysampler._cli.sources import EnvSource

__all__ = ["BusyPolicy", "main", "plain_loop"]

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_BUSY = 0.7  # an env that uses less of a CPU may wait for something else
_BATCHES = 16  # of actions, drawn in advance
_LONGEST_LINE = 300  # characters of an error
_HORIZON = 16  # steps of a rollout
_MODE: dict[str, Any] = {"autoreset_mode": "SameStep"}  # like a plain loop


def _run(step: Callable[[], int], seconds: float) -> tuple[int, float]:
    """Call ``step``, which returns its number of env steps, for some seconds."""
    begun = time.perf_counter()
    steps, took = 0, 0.0
    while steps == 0 or took < seconds:
        steps += step()
        took = time.perf_counter() - begun
    return steps, took


# -- the ideal -------------------------------------------------------------------------------------


class Ideal:
    """Processes that each step their share of the envs in a plain loop, and never communicate.

    Args:
        source: Makes the envs.
        envs: The number of envs.
        workers: The number of processes.

    Attributes:
        about: Its description of itself, for the report.
    """

    def __init__(self, source: EnvSource, envs: int, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        for index in range(workers):
            ours, theirs = context.Pipe()
            own = [source.function] * ((index + 1) * envs // workers - index * envs // workers)
            context.Process(target=_step_alone, args=(own, theirs), daemon=True).start()
            theirs.close()
            self._pipes.append(ours)
        for pipe in self._pipes:
            self._answer(pipe)
        self.about: dict[str, Any] = {"processes": workers}

    def _answer(self, pipe: Connection) -> Any:
        try:
            answer = pipe.recv()
        except EOFError:
            raise RuntimeError("a process of the ideal ended") from None
        if isinstance(answer, str):
            raise SourceError(answer)
        return answer

    def run(self, seconds: float, only: int | None = None) -> tuple[float, float]:
        """Step, in the first ``only`` processes or in all of them.

        Returns:
            The number of env steps, with a fraction since processes end at other times, and their
            duration.
        """
        pipes = self._pipes[:only]
        for pipe in pipes:
            pipe.send(seconds)
        parts = [self._answer(pipe) for pipe in pipes]
        return sum(steps / took for steps, took in parts) * seconds, seconds

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()


def _step_alone(functions: list[Callable[[], gym.Env[Any, Any]]], pipe: Connection) -> None:
    """Step these envs for each duration received from the pipe."""
    # The envs may start processes, too, which end with this one.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    try:
        step = plain_loop([function() for function in functions])
        pipe.send([])
        while True:
            pipe.send(_run(step, pipe.recv()))
    except EOFError:
        pass
    except Exception as error:
        pipe.send(_error_line(error))


def plain_loop(envs: list[gym.Env[Any, Any]]) -> Callable[[], int]:
    """Reset envs, and return a function that steps each of them once."""
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        env.action_space.seed(seed)
    drawn = [[env.action_space.sample() for env in envs] for _ in range(_BATCHES)]
    batches = itertools.cycle(drawn)

    def step() -> int:
        for env, action in zip(envs, next(batches), strict=True):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return len(envs)

    return step


# -- vector envs and samplers ----------------------------------------------------------------------


class BusyPolicy:
    """Returns actions that were drawn in advance, after a fixed time of computing.

    Args:
        actions: A batch of actions.
        seconds: The duration of a call, independent of the batch size.
    """

    def __init__(self, actions: Any, seconds: float) -> None:
        self._actions = actions
        self._seconds = seconds

    def wait(self) -> None:
        """Compute for the duration of a call."""
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            pass

    def __call__(self, observations: Any) -> Any:
        """Return actions for a batch of observations."""
        self.wait()
        actions = _taken(self._actions, slice(_rows_in(observations)))
        return (actions, {}) if isinstance(actions, tuple) else actions


def _rows_in(tree: Any) -> int:
    while isinstance(tree, (dict, tuple)):
        tree = next(iter(tree.values() if isinstance(tree, dict) else tree))
    return len(tree)


def _taken(tree: Any, rows: Any) -> Any:
    return mapped(lambda part: np.asarray(part)[rows], tree)


class Stepper:
    """A vector env whose envs are stepped all together, some at a time, or by rollouts.

    Args:
        make: Makes the vector env.
        recv: Arguments of ``recv``; None steps all envs together.
        policy_in: Where rollouts call the policy; None makes no rollouts.
        policy_seconds: The duration of a call of the policy.

    Attributes:
        about: Its description of itself, for the report.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        recv: dict[str, Any] | None = None,
        policy_in: Any = None,
        policy_seconds: float = 0.0,
    ) -> None:
        self._envs = envs = make()
        self.about: dict[str, Any] = {}
        if isinstance(envs, VectorEnv):
            self.about = {
                "num_workers": envs.division.num_workers,
                "main_envs": envs.division.main_envs,
                "native": envs.stats().native,
                "described": envs.describe(),
            }
        envs.action_space.seed(0)
        self._actions = [envs.action_space.sample() for _ in range(_BATCHES)]
        self._batches = itertools.cycle(self._actions)
        self._resets = 0  # envs that the next step only resets
        self._recv = recv
        self._policy = BusyPolicy(self._actions[0], policy_seconds)
        if policy_in is not None:
            rollouts = Rollouts(envs, self._policy, _HORIZON, policy_in=policy_in, seed=0)
            self._rollouts = iter(rollouts)
            self._step = self._walk
        else:
            envs.reset(seed=0)
            self._step = self._step_all if recv is None else self._step_some

    def _step_all(self) -> int:
        self._policy.wait()
        stepped = self._envs.step(next(self._batches))
        steps = int(self._envs.num_envs) - self._resets
        if self._envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP:
            self._resets = int((stepped[2] | stepped[3]).sum())
        return steps

    def _step_some(self) -> int:
        assert self._recv is not None
        ids = self._envs.recv(**self._recv)[4]["env_id"]
        self._policy.wait()
        if core_of(self._envs).spec.unshaped_actions:
            actions = batch_space(self._envs.single_action_space, len(ids)).sample()
        else:
            actions = _taken(next(self._batches), ids)
        self._envs.send(actions, ids)
        return len(ids)

    def _walk(self) -> int:
        return int(next(self._rollouts).terminated.size)

    def run(self, seconds: float, only: int | None = None) -> tuple[float, float]:  # noqa: ARG002
        """Step for some seconds; no env is at work before and after."""
        begun = time.perf_counter()
        if self._recv is not None:
            self._envs.send(self._actions[0])
        steps, took = _run(self._step, seconds)
        if self._recv is not None:
            steps += len(self._envs.recv(self._envs.pending)[1])
            took = time.perf_counter() - begun
        return steps, took

    def parts(self, seconds: float) -> dict[str, float]:
        """Return the duration of each part of a round, in seconds; empty without workers."""
        try:
            (pool,) = find(os.getpid()).pools
            recorder = Recorder(pool)
        except AttachError:
            return {}
        # As many at a time as the track has room for their slices.
        rounds = max(2, _core.Track.SLICES // (4 * self._envs.num_envs))
        end = time.perf_counter() + seconds
        read, reading = list[Any](), list[tuple[int, int]]()
        with recorder:
            while not read or time.perf_counter() < end:
                began = now()
                read.append(recorder.read())
                reading.append((began, now()))  # no part of a round
                for _ in range(rounds):
                    self._step_all()
            read.append(recorder.read())
        *workers, parent = (np.concatenate(slices) for slices in zip(*read, strict=True))
        holes = sorted([*recorder.holes, *reading])
        return means_of(rounds_of(parent, workers, sum(map(len, pool.about.groups)), holes))

    def close(self) -> None:
        """End the workers."""
        self._envs.close(**({"terminate": True} if self._recv is not None else {}))


def _made(source: EnvSource, order: dict[str, Any]) -> Ideal | Stepper:
    """Make the contender of an order."""
    kind, count = order["kind"], order["envs"]
    if kind == "ideal":
        return Ideal(source, count, order["workers"])
    if kind == "pysampler":
        options = {**_MODE, **order["options"]}
        how = {k: order[k] for k in ("recv", "policy_in", "policy_seconds") if k in order}
        return Stepper(lambda: source.vector_env(count, **options), **how)
    of_gymnasium = {"sync": SyncVectorEnv, "async": AsyncVectorEnv}[kind]
    return Stepper(lambda: of_gymnasium([source.function] * count, **_MODE))


def _looked_at(source: EnvSource) -> dict[str, Any]:
    """Make one env and step it; return its description for ``Setting``."""
    env = source.function()
    for name in ("reset", "step", "action_space"):
        if not hasattr(env, name):
            raise SourceError(f"{type(env).__name__} is not a gymnasium env: it has no {name}")
    if is_several(env):
        raise SourceError(f"{type(env).__name__} steps many envs; pass a function that makes one")
    step = plain_loop([env])
    _run(step, 0.01)
    before = resource.getrusage(resource.RUSAGE_SELF)
    steps, took = _run(step, 0.05)
    after = resource.getrusage(resource.RUSAGE_SELF)
    on_cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # An env that only computes may be preempted, but does not give up its CPU voluntarily.
    gave_up = after.ru_nvcsw - before.ru_nvcsw
    env.close()
    return {
        "call": source.call._asdict(),
        "step_seconds": took / steps,
        "vector": source.has_vector_class,
        "waits": on_cpu < _BUSY * took and gave_up >= steps / 2,
    }


def _checked(source: EnvSource, *, threads: bool) -> dict[str, Any]:
    """Return whether envs may share a process, or step in threads, for ``Setting``."""
    try:
        checks = check_envs([source.function] * CHECKED, threads=(False, True)[: 1 + threads])
    except Exception as error:
        verdict = f"the check whether envs may share a process failed: {_error_line(error)}"
        return {"isolated": None, "verdict": verdict, "reasons": []}
    names = "isolated", "verdict", "reasons"
    found = [{name: getattr(one, name) for name in names} for one in checks]
    return found[0] | ({"threads": found[1]} if threads else {})


# -- the process -----------------------------------------------------------------------------------


def _end_with(parent: int) -> None:
    """Have the kernel end this process with its parent, and its own forks with this process."""
    follow = functools.partial(ctypes.CDLL(None).prctl, _SET_DEATH_SIGNAL, signal.SIGKILL)
    follow()
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
    os.register_at_fork(after_in_child=follow)


def _error_line(error: BaseException) -> str:
    """Return an exception as one line; for an ``EnvError``, the exception of the env."""
    if isinstance(error, EnvError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return line_of(error, _LONGEST_LINE)


def main() -> None:
    """Answer requests; the arguments are the pid of the parent and the source of the envs."""
    _end_with(int(sys.argv[1]))
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # keep the output of envs out of the answers
    report_hangs(lambda place: os.write(out.fileno(), f"{json.dumps({'hangs': place})}\n".encode()))
    text = sys.argv[2]
    sys.argv[1:] = []  # a file that is imported may parse them
    source: EnvSource | None = None
    contender: Ideal | Stepper | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            source = source or source_of(text)
            if request["do"] == "look":
                answer = _looked_at(source)
            elif request["do"] == "check":
                answer = _checked(source, threads=request["threads"])
            elif request["do"] == "make":
                if contender is not None:
                    with contextlib.suppress(Exception):  # the next contender has other envs
                        contender.close()
                    contender = None
                contender = _made(source, request)
                contender.run(request["warm"])
                answer = contender.about
            elif request["do"] == "parts":
                assert isinstance(contender, Stepper)
                answer = contender.parts(request["seconds"])
            else:
                assert contender is not None
                steps, took = contender.run(request["seconds"], request.get("only"))
                answer = {"steps": steps, "seconds": took}
        except Exception as error:
            answer = {"error": _error_line(error)}
        print(json.dumps(answer), file=out)
    os._exit(0)
