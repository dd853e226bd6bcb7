"""RenewedServer: an env server whose envs can continue those of another process.

If a worker is renewed (see ``_workers/renewal.py``), the new process makes all envs, and asks the
old one to step those that are within an episode. Each block steps a ``Handed`` for each env, which
goes to the old env until its episode is over: a reset closes that, and resets the new one.

The new env continues the random generators of the old one (``np_random``, with ``seed_globals``
those of the process), so that its episodes are those that would have come without a renewal. What
else it draws from is not known here. So it is first reset once with a seed that follows from the
run's: then at least each run with this seed draws the same numbers.
"""

from __future__ import annotations

import copy
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import cloudpickle
import numpy as np

from pysampler._vector.env_server import EnvServer
from pysampler._workers.exceptions import Forwarded, Raised, report
from pysampler._workers.jobs import PREDECESSOR_LOST
from pysampler._workers.remote import dumps, dumps_by_value, loads

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    import gymnasium as gym

__all__ = ["RenewedServer"]


class Handed:
    """An env as its block steps it: the old env while that finishes its episode, or the new one.

    Args:
        env: The new env.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.old: OldEnv | None = None
        self._seed: int | None = None
        self._left: _Generators | None = None  # by an old env, for the next reset

    def __getattr__(self, name: str) -> Any:
        if name == "skip_frames" and _skips_frames(self.env):  # blocks look for it
            return self._skip_frames
        raise AttributeError(name)

    def _skip_frames(self, unseen: bool) -> None:  # noqa: FBT001 - as blocks call it
        if self.old is not None:
            self.old.ask("call", _skip_frames, (unseen,))
        else:
            _skip_frames(self.env, unseen)

    def step(self, action: Any) -> Any:
        """Step the env."""
        return (self.old or self.env).step(action)

    def reset(self, **kwargs: Any) -> Any:
        """Reset the new env; the old one has done its work."""
        if self.old is not None:
            self.leave_old()
        if kwargs.get("seed") is None:
            self.prepare(**copy.deepcopy(kwargs))
        self._left = None
        return self.env.reset(**kwargs)

    def take_over(self, old: OldEnv, seed: int) -> None:
        """Continue an old env. The seed is for the first reset of the new one."""
        self.old, self._seed = old, seed

    def leave_old(self) -> None:
        """Close the old env, and keep its generators for the new one."""
        assert self.old is not None
        self._left = _Generators(*self.old.ask("leave"))
        self.old = None

    def prepare(self, **kwargs: Any) -> None:
        """Let the new env draw the numbers that come next, once it has left the old one."""
        left = self._left
        if left is None:
            return
        self.env.reset(**{**kwargs, "seed": self._seed})
        if left.of_globals is not None:
            self.env.set_globals(left.of_globals)
        if left.own is not None:
            inner = self.env.unwrapped
            inner._np_random, inner._np_random_seed = left.own, left.seed
        self._left = None


class _Generators(NamedTuple):
    """The random generators of an env: gymnasium's, its seed, and those of the process."""

    own: np.random.Generator | None
    seed: int | None
    of_globals: Any  # None: the envs of the process share them


class OldEnv:
    """An env in the process that the worker replaces."""

    def __init__(self, server: RenewedServer, i: int) -> None:
        self._server = server
        self._i = i

    def ask(self, what: str, *arguments: Any) -> Any:
        """Return the answer of the old process; raise what its env raised."""
        connection = self._server.predecessor
        assert connection is not None
        try:
            connection.send_bytes(dumps_by_value((what, self._i, arguments)))
            raised, answer = loads(connection.recv_bytes())
        except (EOFError, OSError):
            # A loss like any other: this process is lost with its predecessor.
            env = self._server.first + self._i
            print(
                f"pysampler: the process that was renewed ended within an episode of env {env}",
                file=sys.stderr,
                flush=True,
            )
            os._exit(PREDECESSOR_LOST)
        if raised:
            raise Forwarded(answer)
        return answer

    def step(self, action: Any) -> Any:
        """Step the env."""
        return self.ask("step", action, self._server.kept_infos)

    def set_wrapper_attr(self, name: str, value: Any, *args: Any) -> None:
        """Set an attribute of the env."""
        self.ask("call", _set, (name, value, *args))


def _skips_frames(env: Any) -> bool:
    has = getattr(env, "has_wrapper_attr", None)
    return hasattr(env, "skip_frames") if has is None else has("skip_frames")


def _skip_frames(env: Any, unseen: bool) -> None:  # noqa: FBT001
    env.get_wrapper_attr("skip_frames")(unseen)


def _set(env: gym.Env[Any, Any], *args: Any) -> None:
    env.set_wrapper_attr(*args)


class RenewedServer(EnvServer):
    """The envs of a worker that may be renewed. Each function makes one env."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._handed: dict[int, Handed] = {}
        self.predecessor: Connection | None = None
        self._options: dict[int, tuple[Any, int]] = {}
        self._took_over = False  # and no other frames have come since
        super().__init__(*args, **kwargs)

    def stepped(self, i: int) -> Any:
        """Return what a block steps and resets as env ``i``."""
        if i not in self._handed:
            self._handed[i] = Handed(super().stepped(i))
        return self._handed[i]

    # -- the new process -------------------------------------------------------------------------

    def take_over(self, seeds: Sequence[int]) -> None:
        """Continue the envs of the predecessor."""
        assert self.predecessor is not None
        self.predecessor.recv_bytes()  # that it has retired
        for i, handed in self._handed.items():
            old = OldEnv(self, i)
            ended, resting, last, used = old.ask("places")
            block, place = self._places[i]
            if last is not None:
                block.set_last(place, last)
            block.set_ended(place, ended)
            if resting:
                block.rest(place)
            if i + self.first in self._options:
                block.set_options(place, *copy.deepcopy(self._options[i + self.first]), used)
            handed.take_over(old, int(seeds[i]))
        self.seeds = seeds
        self._took_over = True

    @property
    def kept_infos(self) -> str:
        """Which infos the blocks write."""
        return self._use[3]

    def attach(self, *args: Any) -> None:
        """Let the blocks use other frames; a policy that acts on them begins anew."""
        self._took_over = False
        super().attach(*args)

    def policy_of_lost(self) -> tuple[Sequence[int], Any]:
        if not self._took_over or self.predecessor is None:
            return super().policy_of_lost()
        return self.seeds, OldEnv(self, 0).ask("policy")

    def note_options(self, options: dict[int, tuple[Any, int]]) -> None:
        """Record the options of later resets, for ``take_over``."""
        self._options.update(options)

    def lend(self, i: int) -> Any:
        """Return env ``i`` to call it: the old one while that finishes its episode."""
        return self._old_of(i) or super().lend(i)

    def called(
        self,
        i: int,  # noqa: ARG002
        env: Any,
        function: Any,
        args: tuple[Any, ...],
        what: str,  # noqa: ARG002
    ) -> Any:
        if isinstance(env, OldEnv):
            return env.ask("call", function, args)
        return function(env, *args)

    def _old_of(self, i: int) -> OldEnv | None:
        return self._handed[i].old if i in self._handed else None

    def states(self, block: int, envs: Sequence[int]) -> Any:
        states = super().states(block, [i for i in envs if self._old_of(i) is None])
        return self._with_old(states, block, envs)

    def _with_old(self, states: Any, block: int, envs: Sequence[int]) -> Any:
        each = iter(states)
        found = np.empty(len(envs), object)
        for row, i in enumerate(envs):
            old = self._old_of(i)
            if old is None:
                found[row] = next(each)
                continue
            with self.blaming(i, "get_state()"):
                state, elapsed, _ = old.ask("state", block)
                env_block, place = self.env_block_of(i)
                found[row] = state, elapsed, env_block.ended(place)
        return found

    def set_states(self, block: int, envs: Sequence[int], states: Any) -> None:
        for i in envs:
            if self._old_of(i) is not None:
                with self.blaming(i, "reset()"):
                    self._handed[i].leave_old()
                    self._handed[i].prepare()
        super().set_states(block, envs, states)

    def close(self) -> None:
        for i in self._handed:
            if (old := self._old_of(i)) is not None:
                with self.blaming(i, "close()"):
                    old.ask("leave")
                self._handed[i].old = None
        super().close()

    # -- the old process -------------------------------------------------------------------------

    def serve_successor(self, connection: Connection) -> None:
        """Step envs for the worker in this one's place, until all episodes have ended."""
        connection.send_bytes(b"retired")
        while any(env is not None for env in self.envs):
            try:
                message = connection.recv_bytes()
            except (EOFError, OSError):  # the successor has ended
                return
            try:
                what, i, arguments = cloudpickle.loads(message)
                pickled = dumps((False, getattr(self, f"_answer_{what}")(i, *arguments)))
            except BaseException as error:  # also sys.exit(), as in a step of this process
                pickled = dumps((True, report(_cause_of(error))))
            with suppress(OSError):
                connection.send_bytes(pickled)

    def _answer_places(self, i: int) -> tuple[bool, bool, Any, int]:
        block, place = self._places[i]
        last = block.last(place)
        return block.ended(place), block.rests(place), last, block.options_used(place)

    def _answer_step(self, i: int, action: Any, keep: str) -> Any:
        results = self._handed[i].step(action)
        # Infos that the block drops may hold what cannot be pickled.
        if isinstance(results, tuple) and len(results) == 5:
            *others, _ = results
            if keep == "NONE" or (keep == "FINAL" and not (others[2] or others[3])):
                return *others, {}
        return results

    def _answer_call(self, i: int, function: Any, args: tuple[Any, ...]) -> Any:
        return function(self.envs[i], *args)

    def _answer_policy(self, _: int) -> Any:
        return None if self.acting is None else self.acting.random_state

    def _answer_state(self, i: int, block: int) -> Any:
        return self.states(block, [i])[0]

    def _answer_leave(self, i: int) -> _Generators:
        """Close an env; return its generators, for the env in its place."""
        env, inner = self.envs[i], self.envs[i].unwrapped
        left = _Generators(
            getattr(inner, "_np_random", None),
            getattr(inner, "_np_random_seed", None),
            getattr(self._handed[i].env, "globals_state", None),
        )
        self.envs[i] = None  # type: ignore[call-overload]
        with suppress(Exception):  # it is thrown away, like the process
            env.close()
        return left


def _cause_of(error: BaseException) -> BaseException:
    """Return the exception of an env, without the number that this process gave it."""
    return error.__cause__ or error if isinstance(error, Raised) else error
