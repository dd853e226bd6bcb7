"""LayeredBlock: runs the layers of wrappers around a block of envs.

The inner block writes to the frames of the vector env, except for results that layers change:
observations and rewards, which it writes to memory of the layered block. After each call the layers
change all rows at once, and the results are written to the frames.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler import _core
from pysampler._frames.frames import BEGUN, FINAL, FINAL_BY_MAIL, LOST, SKIPPED
from pysampler._frames.spec import spec_of
from pysampler._vector.blocks import GivenActions, Overflow, WholeBlock, copied_info
from pysampler._vector.wrapped.layers import Rows
from pysampler._workers.jobs import is_users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._vector.wrapped.layers import Layer

    Array = npt.NDArray[Any]

__all__ = ["LayeredBlock"]

_INFO, _FINAL_OBS = _core.EnvBlock.INFO, _core.EnvBlock.FINAL_OBS
_ERROR, _UNLIKE = _core.EnvBlock.ERROR, _core.EnvBlock.UNLIKE
_OTHER_TYPE = (
    "an observation was not of its space's type, or a reward of a type that layers would change"
)
_CHUNK = "it was sent a chunk of steps"


class _InnerFrames:
    """The frames for an inner block: with other memory for rewards and, if needed, observations.

    All frames share this memory, since the layers read it before the next step.
    """

    def __init__(self, frames: Frames, space: Any) -> None:
        self._frames = frames

        def every_frame(shape: tuple[int, ...], dtype: Any) -> Array:
            one = np.zeros((frames.envs, *shape), dtype)
            strides = 0, *one.strides
            return np.lib.stride_tricks.as_strided(one, (frames.count, *one.shape), strides)

        self.rewards = every_frame((), np.float64)
        if space is not None:
            tree = spec_of(space, space).observation_tree
            self.spec = types.SimpleNamespace(
                observation_tree=tree, action_tree=frames.spec.action_tree
            )
            self.observations = [every_frame(space.shape, space.dtype)]
            self.final_observations = [
                every_frame(space.shape, space.dtype) for _ in frames.final_observations
            ]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frames, name)


class LayeredBlock(WholeBlock):
    """A block with layers that replace the wrappers of its envs.

    Args:
        inner: The block of the envs within the wrappers.
        layers: The layers, the outermost first.
        space: The observation space of the envs within the wrappers.
        outer_space: The observation space of the wrapped envs.
        leave: Called with a reason, makes a block that steps the envs one by one from now on.
    """

    def __init__(
        self,
        inner: Any,
        layers: Sequence[Layer],
        space: Any,
        outer_space: Any,
        leave: Callable[[str], Any],
    ) -> None:
        super().__init__(inline=False)
        self.inner = inner
        self._is_batch = isinstance(inner, _core.BatchBlock)
        self.layers = layers
        self.count, self.first = inner.count, inner.first
        self._leave = leave
        self._successor: Any = None
        self._given: dict[int, Any] = {}  # by frame, the actions of its step within the layers
        self._stopped: Array | None = None  # in a chunk, the envs that make no more steps
        self._acting = [layer for layer in layers if layer.acts]
        self._outwards = list(reversed(layers))
        self.observes = any(layer.observes for layer in layers)
        self._space = space if self.observes else None
        self._everyone: Array = np.arange(self.count)
        # Envs whose results had types that layers cannot handle. Their wrappers have their state.
        self.in_wrappers: set[int] = set()
        if self.observes:
            # For resets that leave an env unchanged: its old frame may be overwritten.
            self.last = np.zeros((self.count, *outer_space.shape), outer_space.dtype)

    def use(self, frames: Frames, infos: _core.Infos, autoreset: str, keep: str) -> None:
        """Use these frames from now on; the envs do not change."""
        envs = slice(self.first, self.first + self.count)
        inner: Any = _InnerFrames(frames, self._space)
        self.inner.use(inner, infos, autoreset, keep)
        self._infos, self._same_step, self._keep = infos, autoreset == "SAME_STEP", keep
        self._rewards = frames.rewards[:, envs]
        self._terminated, self._truncated = frames.terminated[:, envs], frames.truncated[:, envs]
        self._inner_rewards = inner.rewards[0, envs]
        if self._acting:
            self._actions = GivenActions(frames, self.first, self.count)
        self._has_final = frames.has_final[:, envs]
        if self.observes:
            self._observations = frames.observations[0][:, envs]
            self._inner_observations = inner.observations[0][0, envs]
            if self._same_step:
                self._finals = frames.final_observations[0][:, envs]
                self._inner_finals = inner.final_observations[0][0, envs]

    # -- called by workers -----------------------------------------------------------------------

    def step(self, frame: int, actions: Sequence[Any] | None = None) -> bool:
        """Step every env, or reset it if its episode has ended.

        Returns:
            Whether there is overflow.
        """
        if self._successor is None and (why := self._why_leave(frame, actions)) is not None:
            self._successor = self._leave(why)
        if self._successor is not None:  # a loop in C++ may still hold this block
            return self._successor.step(frame, actions)
        return self._step_here(frame)

    def _step_here(self, frame: int) -> bool:
        ended = self.inner.ended
        self._overflow = []
        with self._blaming():
            self._step(frame, ended.copy() if ended.any() else None)
        return bool(self._overflow)

    @property
    def fresh(self) -> bool:  # type: ignore[override]
        return self.inner.fresh

    def step_chunk(self, frame: int, steps: int, last: bool) -> bool:  # noqa: FBT001
        """Let every env make several steps, from the frame on, until its episode ends."""
        if self._successor is None:
            whys = (self._why_leave(frame + k, None) for k in range(steps))
            if why := next(filter(None, whys), "" if self._is_batch else _CHUNK):
                self._successor = self._leave(why)
        if self._successor is not None:
            return self._successor.step_chunk(frame, steps, last)
        overflow: Overflow = []
        stopped = self.inner.resting.copy()
        try:
            for k in range(steps):  # with fewer and fewer envs
                at = frame + k
                self._stopped = stopped.copy() if stopped.any() else None
                self.inner.set_stopped(self._stopped)
                self._step_here(at)
                if self._stopped is not None:
                    self._skip(at, self._stopped)
                stopped |= self._terminated[at] | self._truncated[at] | self.inner.failed
                stopped |= self._has_final[at] == BEGUN
                for kind, env, value in self._overflow:
                    stopped[env - self.first] |= kind == _ERROR
                    # The next step may write to arrays of these infos.
                    overflow.append((kind, env, copied_info(value) if kind == _INFO else value, k))
        finally:
            self._stopped = None
            self.inner.set_stopped(None)
        self._overflow = overflow
        return bool(overflow)

    def _skip(self, frame: int, envs: Array) -> None:
        """Write the rows of envs that have stopped."""
        self._has_final[frame, envs] = SKIPPED
        self._rewards[frame, envs] = 0
        self._terminated[frame, envs] = self._truncated[frame, envs] = False

    def _why_leave(self, frame: int, actions: Sequence[Any] | None) -> str | None:
        """Return why the layers cannot run in this step; None if they can."""
        if self.in_wrappers:
            return _OTHER_TYPE
        if any(layer.stale() for layer in self.layers):
            return "a variable that its wrappers read was changed"
        given: Any = actions
        if self._acting:
            if actions is not None or self._actions.were_python(frame):
                return "actions were given that are not arrays"
            try:
                given = self._actions.of(frame)
                for layer in self._acting:
                    given = layer.act(given)
            except Exception as error:  # the wrappers of each env tell whose actions raise
                return f"a wrapper of actions raised {type(error).__name__}"
        self._given[frame] = given
        return self.inner.why_leave(frame, given) if self._is_batch else None

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Report an exception of the layers (FloatingPointError) as an error of the first env."""
        try:
            yield
        except BaseException as error:
            if is_users(error, inline=False):
                raise
            self._overflow.append((_ERROR, self.first, error))
            others = range(self.first + 1, self.first + self.count)
            self._overflow += [(_core.EnvBlock.NO_RESULTS, env, None) for env in others]

    def _step(self, frame: int, begins: Array | None) -> None:
        were_fresh = self.inner.fresh
        self.inner.step(frame, self._given.pop(frame))
        failed, unlike = self._take_inner_overflow()
        if begins is None and not (failed or unlike or were_fresh) and self._stopped is None:
            self._stepped(frame, self._everyone, slice(None))
            return
        if begins is None:
            begins = np.zeros(self.count, bool)
        stepped = ~begins
        if self._stopped is not None:
            begins = begins & ~self._stopped
            stepped = ~(begins | self._stopped)
        if were_fresh:
            lost = self._has_final[frame] == LOST
            self._rewards[frame, lost] = 0
            stepped[lost], begins[lost] = False, self._same_step
        # In SAME_STEP an env may have made its step before its reset raised.
        reset_failed = [i for i in failed if self._same_step and self._has_final[frame, i]]
        for chosen in (begins, stepped):
            chosen[failed] = False
            chosen[list(unlike)] = False
        if reset_failed:
            self._stepped(frame, *(np.array(reset_failed),) * 2, begin=False)
        if stepped.any():
            self._stepped(frame, *(np.flatnonzero(stepped),) * 2)
        if begins.any():
            self._began(frame, np.flatnonzero(begins))
        for i, results in unlike.items():
            self._through_wrappers(frame, i, results)

    def _take_inner_overflow(self) -> tuple[list[int], dict[int, list[Any]]]:
        """Take the overflow of the inner block.

        Returns:
            The envs that raised, and results of types that layers cannot handle: (observation,
            reward) of a step, (observation,) of a reset.
        """
        overflow: Overflow = self.inner.take_overflow()
        if not overflow:
            return [], {}
        unlike: dict[int, list[Any]] = {}
        for kind, env, value in overflow:
            if kind == _UNLIKE:
                unlike.setdefault(env - self.first, []).append(value)
            elif kind != _FINAL_OBS or not self.observes:  # otherwise layers change the observation
                self._overflow.append((kind, env, value))
        if self.inner.failed:
            return list(range(self.count)), {}
        failed = [env - self.first for kind, env, _ in overflow if kind == _ERROR]
        return failed, {i: results for i, results in unlike.items() if i not in failed}

    def _stepped(self, frame: int, ids: Array, at: Any, *, begin: bool = True) -> None:
        """Run the layers on the results of a step of some envs, and write them to the frame."""
        terminated, truncated = self._terminated[frame, at], self._truncated[frame, at]
        over = terminated | truncated if self._same_step else np.zeros(0, bool)
        observations = None
        if self.observes:
            observations = self._inner_observations[at].copy()
            if over.any():
                observations[over] = self._inner_finals[at][over]
        rewards, doubles = self._inner_rewards[at].copy(), self.inner.double_rewards
        if doubles is not True:
            doubles = doubles[at]
        rows = Rows(ids, at, observations, rewards, terminated, truncated, doubles)
        for layer in self._outwards:
            layer.step(rows)
        self._rewards[frame, at] = rows.rewards
        if self.observes:
            self._write(frame, at, rows.observations)
        for i, info in rows.infos:
            self._leave_info(frame, i, info)
        if over.any():
            if rows.observations is not None:
                self._finals[frame, ids[over]] = rows.observations[over]
            if begin:
                self._began(frame, ids[over], clear=False)

    def _began(self, frame: int, ids: Array, *, clear: bool = True) -> None:
        """Run the layers on first observations of episodes, and write them to the frame."""
        none = np.zeros(len(ids), bool)
        observations = self._inner_observations[ids] if self.observes else None
        rows = Rows(ids, ids, observations, np.zeros(len(ids)), none, none)
        for layer in self._outwards:
            layer.begin(rows)
        if self.observes:
            self._write(frame, ids, rows.observations)
        if clear:
            self._rewards[frame, ids] = 0

    def _write(self, frame: int, at: Any, observations: Any) -> None:
        self.last[at] = observations
        self._observations[frame, at] = observations

    def _through_wrappers(self, frame: int, i: int, results: list[Any]) -> None:
        """Let the real wrappers of env ``i`` process its results, and write these.

        From then on the wrappers hold the env's state, until the next step ends the batch.

        Args:
            frame: The frame.
            i: The env.
            results: Its results of unusual types, see ``_take_inner_overflow``.
        """
        one = np.array([i])
        ends = bool(self._terminated[frame, i]), bool(self._truncated[frame, i])
        over = self._same_step and any(ends)
        if over and len(results) == 1 and len(results[0]) == 2:  # the reset after it was usual
            results.append((self._inner_observations[i].copy() if self.observes else None,))
        for result in results:
            if len(result) == 2:
                returned = (*result, *ends, {})
                action = self._actions.of(frame)[i] if self._acting else None
                call = functools.partial(_step, action)
                observation, reward, _, _, info = self._with_results(i, call, returned)
                self._rewards[frame, i] = reward
                if self.observes:
                    (self._write_final if over else self._write)(frame, i, observation)
                if info:
                    self._leave_info(frame, i, info)
            else:
                if over and len(results) == 1:  # the last step of the episode had usual results
                    self._stepped(frame, one, one, begin=False)
                first, _ = self._with_results(i, lambda env: env.reset(), (result[0], {}))
                if self.observes:
                    self._write(frame, i, first)
                if not over:
                    self._rewards[frame, i] = 0

    def _with_results(self, i: int, call: Callable[[Any], Any], returned: Any) -> Any:
        """Call the wrappers of env ``i`` around an env that returns these results."""
        if i not in self.in_wrappers:
            for layer in self.layers:
                layer.store(i)
            self.in_wrappers.add(i)
        innermost = self.layers[-1].wrappers[i]
        env = innermost.env
        try:
            innermost.env = _Returning(env, returned)
            return call(self.layers[0].wrappers[i])
        finally:
            innermost.env = env

    def _write_final(self, frame: int, i: int, observation: Any) -> None:
        self._finals[frame, i] = observation
        own = self._finals[frame, i]
        same = isinstance(observation, np.ndarray) and (observation.dtype, observation.shape) == (
            own.dtype,
            own.shape,
        )
        self._has_final[frame, i] = FINAL if same else FINAL_BY_MAIL
        if not same:
            self._overflow.append((_FINAL_OBS, self.first + i, observation))

    def _leave_info(self, frame: int, i: int, info: dict[str, Any]) -> None:
        """Write an info that a layer adds at the end of an episode."""
        if self._keep == "NONE":
            return
        env = self.first + i
        under = "final_info" if self._same_step else None
        rest = self._infos.store(frame, env, info, under)
        if rest is None:
            return
        for kind, other, value in self._overflow:
            if kind == _INFO and other == env and (under is None or under in value):
                (value if under is None else value[under]).update(
                    rest if under is None else rest[under]
                )
                return
        self._overflow.append((_INFO, env, rest))

    def reset(self, frame: int, calls: Sequence[tuple[int | None, Any] | None]) -> bool:
        """Reset each env with its (seed, options); leave it unchanged if that is None."""
        why = _OTHER_TYPE if self.in_wrappers else None
        if why is None and self._is_batch:
            why = self.inner.why_not_reset(calls)
        if why is not None:
            return self._leave(why).reset(frame, calls)
        self._overflow = []
        self.inner.reset(frame, calls)
        lost = self._has_final[frame] == LOST
        chosen = [i for i, call in enumerate(calls) if call is not None or lost[i]]
        failed, unlike = self._take_inner_overflow()
        if self.observes:
            self._observations[frame] = self.last
        with self._blaming():
            usual = [i for i in chosen if i not in failed and i not in unlike]
            if usual:
                self._began(frame, np.array(usual, np.int64))
            for i, results in unlike.items():
                self._through_wrappers(frame, i, results)
        return bool(self._overflow)

    def replace(self, seeds: Sequence[int | None], over: Sequence[bool]) -> None:
        """Let the envs replace others; ``seeds`` are for their next resets."""
        self.inner.replace(seeds, over)

    def set_options(self, i: int, options: Any, version: int) -> None:
        """Use these options for resets of env ``i`` from now on."""
        self.inner.set_options(i, options, version)

    def rest(self, i: int) -> None:
        """Let steps leave env ``i`` alone until it is reset, unless all envs step together."""
        self.inner.rest(i)

    # -- states ----------------------------------------------------------------------------------

    def _state_arrays(self) -> dict[str, Array]:
        layers = {
            f"{at}_{name}": array
            for at, layer in enumerate(self.layers)
            for name, array in layer.arrays.items()
        }
        return {**layers, "observation": self.last} if self.observes else layers

    def states(self, ids: Sequence[int]) -> Array:
        """Return the states of envs and their wrappers, one row each."""
        inner = self.inner.states(ids)
        arrays = self._state_arrays()
        kinds = [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()]
        states = np.zeros(len(ids), [("env", inner.dtype), *kinds])
        states["env"] = inner
        for name, array in arrays.items():
            states[name] = array[ids]
        return states

    def set_states(self, ids: Sequence[int], states: Array) -> None:
        """Set the states of envs and their wrappers."""
        arrays = self._state_arrays()
        names = states.dtype.names or ()
        kinds = [(name, array.dtype, array.shape[1:]) for name, array in arrays.items()]
        if names[:1] != ("env",) or states.dtype != np.dtype([("env", states.dtype[0]), *kinds]):
            raise ValueError("cannot set state: it belongs to other envs, or to other wrappers")
        self.inner.set_states(ids, states["env"])
        for name, array in arrays.items():
            array[ids] = states[name]
        for layer in self.layers:
            layer.arrays_set(ids)


class _Returning:
    """An env that returns the results of a step or reset made before."""

    def __init__(self, env: Any, returned: Any) -> None:
        self._env, self._returned = env, returned

    def step(self, _: Any) -> Any:
        return self._returned

    def reset(self, **_: Any) -> Any:
        return self._returned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def _step(action: Any, env: Any) -> Any:
    return env.step(action)
