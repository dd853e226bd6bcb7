"""What a policy did in some envs for some steps."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._numbers import fitting_array, is_real, plain_array
from pysampler._policies.trees import mapped
from pysampler._torch import tensor_from, to_array

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    import numpy.typing as npt

__all__ = ["Ended", "Episode", "Rollout", "gae", "wait_for_copies"]


@dataclass(frozen=True)
class Ended:
    """Episodes that ended during a rollout: a row for each, by env, then by time."""

    env: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]  # of the rollout, its last
    returns: npt.NDArray[np.float64]  # of all of it, also where it began in an earlier rollout
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.env)


@dataclass(frozen=True, repr=False)
class Episode:
    """An env's episode, or the part of it that lies in a rollout: views of its arrays."""

    env: int
    steps: slice  # of the rollout
    observations: Any
    actions: Any
    rewards: Any
    extras: dict[str, Any]
    # After the last step: what a truncated episode ended with, or one that goes on is at. None
    # where it terminated, and nothing comes after.
    last_observation: Any
    begins: bool  # or began in an earlier rollout
    terminated: bool
    truncated: bool

    def __len__(self) -> int:
        return self.steps.stop - self.steps.start  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        end = "terminated" if self.terminated else "truncated" if self.truncated else "not over"
        return f"<pysampler.Episode of env {self.env}: {len(self)} steps, {end}>"


@dataclass(frozen=True, repr=False)
class Rollout:
    """T steps of N envs. ``observations[t]`` is what ``actions[t]`` answer; all is ``[T, N, ...]``.

    The arrays are those that the workers wrote, not copies: they stay as they are until ``keep``
    further rollouts have been asked for. ``copy()`` has them for longer. Where observations or
    actions are dicts or tuples, so they are here.
    """

    observations: Any  # [T + 1, N, ...]: also after the last step
    actions: Any
    rewards: Any  # float64
    terminated: Any
    truncated: Any
    # The last of an episode, in the step that ended it; no more than room in all other places.
    final_observations: Any
    starts: Any  # [T + 1, N]: an episode begins with this observation
    # Whether that step was made: not where a worker was lost in it, nor, with whole=False, where
    # there was no time for it. Then the arrays hold nothing there.
    valid: Any
    lost: Any  # [T, N]: a worker was lost in this step
    lengths: npt.NDArray[np.int64]  # [N]: steps of each env; T but for whole=False
    extras: dict[str, Any]  # what the policy said
    state: Any  # the recurrent state it acted with; None if it has none
    # [T, N, ...], by key; a dict where the env gives a dict. 0 where an env gave none: see
    # ``info_masks``. Left out as long as no env has given any.
    infos: dict[str, Any]
    info_masks: dict[
        str, Any
    ]  # [T, N], like ``infos``: whether the env gave that info in that step
    options: Any  # [T + 1, N]: version of set_options that the episode began with; 0: none
    ended: Ended
    version: int  # of the policy: how often it was taken over before
    lag: int  # so many rollouts were handed out since that policy
    seconds: dict[str, float]  # "policy", "envs", "waiting", "learner": where the time went
    memory: npt.NDArray[np.uint8] = field(repr=False)  # where all arrays of frames lie

    def __repr__(self) -> str:
        steps, envs = self.terminated.shape
        return (
            f"<pysampler.Rollout of {steps} steps of {envs} envs, {len(self.ended)} episodes "
            f"ended, policy version {self.version}>"
        )

    @property
    def steps(self) -> int:
        """How many were made, by all envs: those that are ``valid``."""
        return int(to_array(self.valid).sum())

    @property
    def cut(self) -> tuple[Any, Any]:
        """(steps, envs) of truncated episodes, in the order of ``cut_observations``."""
        cut = to_array(self.truncated) & ~to_array(self.terminated)
        step, env = np.nonzero(cut & (to_array(self.valid) | to_array(self.lost)))
        return step, env

    @property
    def cut_observations(self) -> Any:
        """What truncated episodes ended with, whose value goes on from there: a row for each."""
        step, env = self.cut
        return mapped(lambda array: array[step, env], self.final_observations)

    @property
    def last_observations(self) -> Any:
        """What each env is at after its last step: a row for each."""
        lengths = self.lengths
        if (lengths == len(self.rewards)).all():
            return mapped(lambda array: array[-1], self.observations)
        envs = np.arange(len(lengths))
        return mapped(lambda array: array[lengths, envs], self.observations)

    def gae(
        self,
        values: Any,
        last_values: Any,
        cut_values: Any = (),
        *,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
    ) -> tuple[Any, Any]:
        """Advantages by generalised estimation, and returns: advantages + values.

        ``values`` are those of the observations acted on, [T, N], ``last_values`` of
        ``last_observations``, ``cut_values`` of ``cut_observations``. Tensors make tensors.
        """
        results = gae(
            to_array(self.rewards),
            to_array(values),
            to_array(last_values),
            to_array(self.terminated),
            to_array(self.truncated),
            to_array(cut_values),
            valid=to_array(self.valid),
            cut=self.cut,
            lengths=self.lengths,
            gamma=gamma,
            gae_lambda=gae_lambda,
        )
        if isinstance(values, np.ndarray):
            return results
        advantages, returns = (tensor_from(array).to(values) for array in results)
        return advantages, returns

    def episodes(self) -> Iterator[Episode]:
        """Env by env, each episode or the part of it that lies in here.

        One whose worker was lost ends truncated before the step that was not made.
        """
        over = to_array(self.terminated) | to_array(self.truncated)
        starts, lost = to_array(self.starts), to_array(self.lost)
        for env, length in enumerate(self.lengths.tolist()):
            ends = (np.flatnonzero(over[:length, env]) + 1).tolist()
            begin = 0
            for end in [*ends, *([length] if not ends or ends[-1] < length else [])]:
                stop = end - bool(lost[end - 1, env])
                if stop > begin:
                    yield self._episode(env, slice(begin, stop), end, bool(starts[begin, env]))
                begin = end

    def _episode(self, env: int, steps: slice, end: int, begins: bool) -> Episode:  # noqa: FBT001
        terminated = bool(self.terminated[end - 1, env])
        truncated = bool(self.truncated[end - 1, env])
        last = None
        if truncated and not terminated:
            last = mapped(lambda array: array[end - 1, env], self.final_observations)
        elif not terminated:
            last = mapped(lambda array: array[end, env], self.observations)

        def part(tree: Any) -> Any:
            return mapped(lambda array: array[steps, env], tree)

        return Episode(
            env,
            steps,
            part(self.observations),
            part(self.actions),
            part(self.rewards),
            part(self.extras),
            last,
            begins,
            terminated,
            truncated,
        )

    def torch(self, device: Any = None) -> Self:
        """With tensors in the place of arrays: the same memory, or copies on a device.

        To a GPU each array goes as one asynchronous copy; where the memory could be registered
        with CUDA that runs beside the CPU; what is done with the tensors waits for it, and so does
        the rollout that is to be written to the same memory.
        """
        import torch  # noqa: PLC0415 - only where it is asked for

        to_gpu = device is not None and torch.device(device).type == "cuda"
        if to_gpu:
            _register(self.memory)

        tensor = functools.partial(tensor_from, device=device, non_blocking=True)
        converted = self._converted(tensor)
        if to_gpu and self.memory.ctypes.data in _registered:
            _copying[self.memory.ctypes.data] = torch.cuda.current_stream(device).record_event()
        return converted

    def copy(self) -> Self:
        """With arrays of its own, which stay as they are."""
        own = self._converted(lambda array: array.copy())
        return dataclasses.replace(own, memory=np.zeros(0, np.uint8))

    def _converted(self, function: Callable[[Any], Any]) -> Self:
        kept = {"ended", "version", "lag", "seconds", "lengths", "memory"}
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return dataclasses.replace(
            self,
            **{
                name: mapped(function, tree)
                for name, tree in fields.items()
                if name not in kept and tree is not None
            },
        )


_registered: dict[int, int] = {}  # with CUDA: address and size
_copying: dict[int, Any] = {}  # by address, the event at the end of the last copy of a rollout


def wait_for_copies(memory: npt.NDArray[np.uint8]) -> None:
    """Wait until a GPU has read what ``Rollout.torch`` told it to: the memory is written again."""
    address = memory.ctypes.data
    if (event := _copying.get(address)) is not None:
        event.synchronize()
        _copying.pop(address, None)


def _register(memory: npt.NDArray[np.uint8]) -> None:
    """Let CUDA copy from this memory by itself. Where it will not, copies are just slower."""
    import torch  # noqa: PLC0415

    address, size = memory.ctypes.data, memory.nbytes
    if size == 0 or _registered.get(address) == size:
        return
    cudart = torch.cuda.cudart()
    # Read-write, mapped into every context: 0 is the default of cudaHostRegister.
    if int(cudart.cudaHostRegister(address, size, 0)) == 0:
        _registered[address] = size
        weakref.finalize(memory, _unregister, address)


def _unregister(address: int) -> None:
    import torch  # noqa: PLC0415

    _copying.pop(address, None)
    if _registered.pop(address, None) is not None:
        torch.cuda.cudart().cudaHostUnregister(address)


def _marks(name: str, got: Any, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    array = fitting_array("estimate advantages", name, got, np.dtype(np.bool_))
    if array.shape != shape:
        raise ValueError(
            f"cannot estimate advantages: {name} of shape {array.shape}, expected {shape}"
        )
    return array


def gae(
    rewards: npt.NDArray[Any],
    values: npt.NDArray[Any],
    last_values: npt.NDArray[Any],
    terminated: npt.NDArray[np.bool_],
    truncated: npt.NDArray[np.bool_],
    cut_values: npt.NDArray[Any] = np.zeros(0),  # noqa: B008 - not written to
    *,
    valid: npt.NDArray[np.bool_] | None = None,
    cut: tuple[Any, Any] | None = None,
    lengths: npt.NDArray[np.int64] | None = None,
    gamma: float = 0.99,
    gae_lambda: float = 0.95,
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Advantages by generalised estimation, and returns, of ``[T, N]`` arrays.

    Envs are reset in the step that ends their episode: ``values[t + 1]`` is then of another one.
    What came after a truncated one (``cut``: where that was, by default all that did not terminate)
    is worth ``cut_values``; after the last step it is ``last_values``. Where a step is not valid,
    both results are 0, and nothing of it reaches those before. An env with fewer ``lengths`` has
    its last step there.

    >>> ones = np.ones((3, 1))
    >>> never = np.zeros((3, 1), bool)
    >>> gae(ones, 0 * ones, np.array([8.0]), never, never, gamma=0.5, gae_lambda=1.0)[0].ravel()
    array([2.75, 3.5 , 5.  ])
    """
    doing = "estimate advantages"
    for name, value in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not (is_real(value, 0) and value <= 1):
            raise ValueError(f"cannot {doing}: {name} {value!r}, expected 0 to 1")
    rewards, values, last_values, cut_values = (
        plain_array(doing, name, one)
        for name, one in (
            *(("rewards", rewards), ("values", values)),
            *(("last_values", last_values), ("cut_values", cut_values)),
        )
    )
    if rewards.ndim != 2:
        raise ValueError(f"cannot {doing}: rewards of shape {rewards.shape}, expected [T, N]")
    steps, envs = shape = rewards.shape
    if values.shape != shape or last_values.shape != (envs,):
        raise ValueError(
            f"cannot {doing}: values of shape {values.shape} and last_values of "
            f"{last_values.shape}, expected {shape} and {(envs,)}"
        )
    terminated = _marks("terminated", terminated, shape)
    truncated = _marks("truncated", truncated, shape)
    if valid is not None:
        valid = _marks("valid", valid, shape)
    if cut is None:
        step, env = np.nonzero(truncated & ~terminated)
        cut = step, env
    if cut_values.shape != (len(cut[0]),):
        raise ValueError(
            f"cannot {doing}: cut_values of shape {cut_values.shape}, expected ({len(cut[0])},): "
            "those of cut_observations"
        )
    kind = np.result_type(values.dtype, np.float32)
    after = np.empty((steps, envs), kind)  # the value of what came after each step
    after[:-1] = values[1:]
    after[-1] = last_values
    if lengths is not None and (lengths < steps).any():
        some = np.flatnonzero((lengths < steps) & (lengths > 0))
        after[lengths[some] - 1, some] = last_values[some]
    after[terminated] = 0
    after[cut] = cut_values
    keep = (~(terminated | truncated)).astype(kind) * kind.type(gamma * gae_lambda)
    advantages = (rewards + gamma * after - values).astype(kind)
    if valid is not None:
        advantages[~valid] = 0
    for t in range(steps - 2, -1, -1):
        advantages[t] += keep[t] * advantages[t + 1]
    returns = advantages + values
    if valid is not None:
        advantages[~valid] = 0
        returns[~valid] = 0
    return advantages, returns
