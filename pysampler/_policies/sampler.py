"""The base class of rollouts, actors and watchers, and the vector env that each of them uses.

A sampler leases a vector env and lays out frames that also hold the policy's outputs.
Nothing else can step the envs until the sampler gives the vector env back.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.vector_env import AutoresetMode
from gymnasium.vector.vector_env import VectorEnv as GymVectorEnv

from pysampler import _core
from pysampler._common.closing import Interruptible, Uncopyable
from pysampler._common.numbers import whole_number
from pysampler._common.torch import needs_torch
from pysampler._policies.frame_policy import FramePolicy
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.seeds import entropy_from
from pysampler._policies.signatures import takes_nothing
from pysampler._policies.warm_up import EpisodesSoFar, warm_up
from pysampler._vector import arguments
from pysampler._vector.core import FrameLayout
from pysampler._vector.env_maker import EnvMaker
from pysampler._vector.lease import Lease
from pysampler._vector.make import make_vec, vector_options
from pysampler._vector.transforms import Transforms, adopted, is_ours, unwrapped
from pysampler._vector.vector_env import VectorEnv, core_of
from pysampler._workers import fork_server
from pysampler.errors import ClosedError, EnvError, LostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler._frames.frames import Frames
    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import Outputs, PolicyCaller, PolicyOutputs
    from pysampler._policies.normalize import Normalization
    from pysampler.sync import Segment

__all__ = ["Leasable", "PreparedFrames", "Sampler", "makes_envs", "vector_env_of", "visible_spec"]


@dataclass(frozen=True)
class PreparedFrames:
    """Frames laid out for a policy, with the observations of a reset in the first frame.

    Attributes:
        frames: The frames.
        segment: The memory of the frames and of the further bytes that were requested.
        policy: The policy that acts on these frames.
        outputs: The policy's outputs for the observations of the reset.
        so_far: The episodes' returns and lengths after the warm-up.
    """

    frames: Frames
    segment: Segment
    policy: FramePolicy
    outputs: Outputs
    so_far: EpisodesSoFar


# What workers import to act.
_OF_POLICIES = "pysampler._policies.copying", "pysampler._policies.worker_policy"


class Sampler(Uncopyable, Interruptible):
    """Base class for samplers that use a vector env exclusively until they are closed."""

    # For errors: the sampler's purpose, its name, and the name of its work.
    _purpose = "sample rollouts"
    _name = "rollouts"
    _work_name = "a rollout"
    _resets_late = False  # whether frames may have steps that only reset an env
    _freezes = False  # whether the envs' wrappers stay as they are

    _closed = True  # until it is open
    _after = ""  # the error that has closed it, for the message of later calls

    def _lease_envs(self, envs: VectorEnv, *, owned: bool) -> None:
        """Lease a vector env, which is closed with the sampler if it is ``owned``."""
        core = core_of(envs)
        self.envs = envs
        self._core = core
        self._guard = _core.Guard(
            f"these {self._name}", f"cannot {self._purpose}: they are closed", ClosedError
        )
        self._owned = owned
        self._take_over()
        self._closed = False

    def _take_over(self) -> None:
        """Lease the vector env, which must be idle."""
        self._lease = Lease(self._name, self._work_name)
        self._core.lend(self._lease)

    @contextlib.contextmanager
    def calling_envs(self) -> Iterator[None]:
        """Let this sampler call methods of the vector env that it has leased."""
        lease = self._lease
        try:
            lease.owner_calls = True
            yield
        finally:
            lease.owner_calls = False

    @property
    def has_envs(self) -> bool:
        """Whether this sampler uses the vector env at present."""
        return not self._lease.over

    @property
    def closed(self) -> bool:
        """Whether the sampler or its vector env was closed."""
        return self._closed or self.envs.closed

    @property
    def _in_own_process(self) -> bool:
        """Whether this process made the vector env, rather than its parent before a fork."""
        return self._core.guard.mine

    def _enter(self, purpose: str) -> _core.Entry:
        """Return a context that admits one thread; raise ClosedError if the sampler is closed."""
        self._expect_open()
        return self._guard.entry(purpose)

    def _expect_open(self) -> None:
        if not self._in_own_process:
            raise ClosedError(f"cannot {self._purpose}: made by another process, this is a fork")
        if self.closed:
            raise ClosedError(f"cannot {self._purpose}: they are closed{self._after}")

    # -- beginning -------------------------------------------------------------------------------

    def _shared_bytes(self, weights: Mapping[str, npt.NDArray[Any]] | None) -> int:
        """Return the number of bytes for the weights and the workers' progress."""
        board = sum(array.nbytes + 8 for array in (weights or {}).values()) * 3
        return board + WorkerProgress.size_of(len(self._core.groups)) + (1 << 16)

    def _prepare_frames(
        self,
        caller: PolicyCaller,
        seed: int | list[int | None] | None,
        count: int,
        spare_bytes: Callable[[PolicyOutputs], int],
        *,
        reserved: int = 0,
        infos: Literal["all", "final", "none"] = "none",
        transforms: Transforms | None = None,
        normalization: Normalization | None = None,
        warm_up_steps: int = 0,
        autoreset: AutoresetMode = AutoresetMode.SAME_STEP,
        options: list[dict[str, Any] | None] | None = None,
    ) -> PreparedFrames:
        """Reset the envs, call the policy once, and lay out frames for its outputs.

        Args:
            caller: Calls the policy.
            seed: Seed of the reset.
            count: The number of frames.
            spare_bytes: Returns the number of bytes to add to the segment, given the policy's
                outputs.
            reserved: The number of further frames, which get memory later.
            infos: The infos that the frames have columns for.
            transforms: The transforms of wrappers around the vector env.
            normalization: The normalization of the envs' results.
            warm_up_steps: The maximum number of random steps of each env.
            autoreset: When the envs reset themselves on these frames.
            options: Options of the reset.
        """
        envs, core, lease = self.envs, self._core, self._lease
        with self.calling_envs():
            envs.reset(seed=seed, options=options)
            try:
                so_far = warm_up(envs, warm_up_steps, entropy_from(seed))
            except EnvError as error:
                error.add_note("warm_up resets single envs; warm_up=0 does not")
                raise
        results = core.results
        received = [leaf[results.frame].copy() for leaf in results.frames.observations]
        if normalization is not None:
            received = normalization.observations(received)
        versions = results.frames.options_versions[results.frame].copy()
        everyone = slice(0, envs.num_envs)
        observations = received
        if transforms is not None:
            observations = transforms.observations([array.copy() for array in received])
        copies = [array.copy() for array in observations]  # the policy may write to its arguments
        # The policy may keep both arrays, and write to them in a later call.
        initial = copy.deepcopy(caller.initial_state(envs.num_envs))
        caller.seed_generators(None, envs.num_envs)
        returned = copy.deepcopy(caller(copies, copy.deepcopy(initial), everyone))
        outputs = caller.describe(*returned)
        spare = spare_bytes(outputs)
        lease.laid_out = True
        hidden = () if normalization is None else normalization.fields
        fields = *outputs.fields, *hidden
        layout = FrameLayout(
            *(count, autoreset, infos, fields, spare, reserved, self._resets_late),
            frozen=self._freezes,
        )
        frames, segment = core.lay_out(layout)
        for leaf, rows in zip(frames.observations, received, strict=True):
            leaf[0] = rows
        frames.options_versions[0] = versions
        policy = FramePolicy(caller, outputs, frames, transforms)
        policy.normalization = normalization
        for leaf, rows in zip(policy.observations, observations, strict=True):
            leaf[0] = rows
        policy.begin_episodes(0, everyone, initial)
        return PreparedFrames(frames, segment, policy, returned, so_far)

    # -- ending ----------------------------------------------------------------------------------

    def _request_stop(self) -> None:
        """Ask the current work to stop, without waiting and without a lock."""
        raise NotImplementedError

    def _end(self) -> bool:
        """End the current work; return True if nothing but the pool may still be busy."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Drop the current work, and wait until it has ended."""
        self._core.drop_work(self._work_name, stopped=self._end())

    def _give_back(self) -> None:
        """Give the vector env back, so that it can be used unless another thread is in a call."""
        self._lease.over = True
        if self._interrupted:  # do not wait for a long step: the next call of the vector env does
            self._request_stop()
            return
        self._core.take_back(self._lease, stopped=self._end())

    def let_go(self) -> None:
        """Close the sampler, but leave the vector env open for other use."""
        if self._closed or not self._in_own_process:
            return
        self._lease.over = True  # first: if an interrupt follows, the vector env does the rest
        self._closed = True
        with contextlib.suppress(LostError, EnvError):
            self._give_back()

    def close(self) -> None:
        """Close the sampler, and its vector env if the sampler made it."""
        if not hasattr(self, "envs"):
            return
        self.let_go()
        if self._in_own_process and self._owned and not self.envs.closed:
            self.envs.close(terminate=self._interrupted)

    def __del__(self, suppress: Any = contextlib.suppress) -> None:
        # Finalizers may run anywhere, so this only marks the lease: the vector env takes its envs
        # back in its next call. While the program ends, modules may be empty.
        lease = getattr(self, "_lease", None)
        if lease is None or not self._in_own_process:
            return
        lease.over = True
        with suppress(Exception):
            self._request_stop()
        with suppress(Exception):
            if self._owned:
                self._core.pool.kill(wait=0)


@dataclass(frozen=True)
class Leasable:
    """A vector env to lease, with the transforms of its wrappers.

    Attributes:
        envs: The vector env.
        owned: Whether it was made for the sampler, and is closed with it.
        transforms: The transforms of its wrappers, if it has any.
        given: The vector env with its wrappers.
    """

    envs: VectorEnv
    owned: bool
    transforms: Transforms | None
    given: GymVectorEnv[Any, Any, Any]

    def expect_chunks(self, purpose: str, normalize: Any) -> None:
        """Raise ValueError if a sampler cannot let the envs make several steps in a row."""
        self.expect_no_wrappers(purpose, "they would not see each step of a chunk")
        why = core_of(self.envs).why_no_chunks
        if normalize is not None:
            why = "normalize follows single steps, so wrap each env instead"
        if why is not None:
            raise ValueError(f"cannot {purpose}: {why}, expected chunk=None")

    def expect_no_wrappers(self, purpose: str, why: str) -> None:
        """Raise ValueError if the vector env is wrapped, with the reason ``why``."""
        if self.transforms is not None:
            raise ValueError(
                f"cannot {purpose}: the vector env is wrapped in {self.transforms.names}, and "
                f"{why}; wrap each env instead"
            )


def visible_spec(
    purpose: str, envs: VectorEnv, leave_out: Sequence[str], *, vector_rewards: bool = False
) -> Spec:
    """Return the spaces of an env as a policy sees them.

    Args:
        purpose: The sampler's purpose, for errors: "sample rollouts".
        envs: The vector env.
        leave_out: The names of the parts of observations to hide from the policy: exactly those
            without a fixed shape.
        vector_rewards: Whether a reward may have several numbers.
    """
    if envs.reward_space is not None and not vector_rewards:
        raise ValueError(
            f"cannot {purpose}: a reward has {envs.reward_space.shape[0]} numbers, expected one; "
            "wrap each env to make one of them, in a wrapper with reward_space = None. Rollouts "
            "take such envs as they are"
        )
    if isinstance(leave_out, str) or not isinstance(leave_out, Collection):
        raise ValueError(
            f"cannot {purpose}: leave_out {leave_out!r}, expected a list of names: [{leave_out!r}]"
        )
    spec = core_of(envs).spec
    unshaped = spec.unshaped_parts
    if spec.unshaped_actions or (unshaped and not spec.observations):
        raise ValueError(
            f"cannot {purpose}: {envs.single_observation_space} and {envs.single_action_space} "
            "have parts without a fixed shape, which do not fit into arrays"
        )
    for name in leave_out:
        if name not in unshaped:
            raise ValueError(
                f"cannot {purpose}: leave_out has {name!r}, expected names of parts of the "
                f"observations without a fixed shape, which are {unshaped}"
            )
    for name in unshaped:
        if name not in leave_out:
            raise ValueError(
                f"cannot {purpose}: part {name!r} of the observations has no fixed shape; leave it "
                f"out with leave_out={unshaped}"
            )
    return spec.shaped


def makes_envs(envs: Any) -> bool:
    """Return whether ``envs`` can make any number of envs: an id, a spec or a function."""
    return not isinstance(envs, (GymVectorEnv, list, tuple))


def _expect_workers_alone(envs: VectorEnv, purpose: str) -> None:
    """Raise ValueError if this process takes part in steps for which there are workers."""
    if spares := envs.division.spare_envs:
        raise ValueError(
            f"cannot {purpose} with spare_envs={spares}: the workers do not put spares into slots; "
            'expected none, or Rollouts with policy_in="main"'
        )
    if envs.num_workers > 0 and (own := envs.division.main_envs) > 0:
        raise ValueError(
            f"cannot {purpose} with a policy in the workers: {own} of the envs live in this "
            "process (main_envs, or num_workers='auto')"
        )


@contextlib.contextmanager
def vector_env_of(
    envs: Any,
    num_envs: int | None,
    vector_kwargs: dict[str, Any] | None,
    purpose: str,
    *,
    policy: Any = None,
    in_workers: bool = False,
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = (),
    env_kwargs: Mapping[str, Any] | None = None,
) -> Iterator[Leasable]:
    """Yield the vector env that a user gave to a sampler, or make one.

    If an exception ends the block, a vector env that was made here is closed.

    Args:
        envs: A vector env, a list of functions that each make an env, or an id, a spec or a
            function that makes any number.
        num_envs: How many envs to make.
        vector_kwargs: Options of the vector env to make.
        purpose: The sampler's purpose, for errors: "sample rollouts".
        policy: The sampler's policy.
        in_workers: Whether the policy acts in the workers.
        wrappers: Wrappers of each env that is made.
        env_kwargs: Arguments of each env that is made.
    """
    if not (env_kwargs is None or isinstance(env_kwargs, Mapping)):
        raise TypeError(f"cannot {purpose}: env_kwargs {env_kwargs!r}, expected a dict")
    makes_one = takes_nothing(policy) and callable(envs) and not takes_nothing(envs)
    if makes_one or isinstance(policy, (str, EnvSpec, list, tuple, GymVectorEnv)):
        raise TypeError(
            f"cannot {purpose}: the policy is {policy!r}, expected a function of observations or a "
            "torch module; are the envs and the policy swapped?"
        )
    kwargs = dict(env_kwargs or {})
    given = ["num_envs"] * (num_envs is not None) + list(vector_kwargs or ())
    given += ["env_kwargs"] * bool(kwargs)
    if isinstance(envs, GymVectorEnv):
        if given:
            raise ValueError(f"cannot {purpose}: {given[0]} is for envs to make, not for {envs}")
        if not is_ours(envs):
            if in_workers:
                raise ValueError(
                    f"cannot {purpose} with a policy in the workers: {envs} is in this process; "
                    "pass functions that each make one"
                )
            yield Leasable(adopted(envs), owned=False, transforms=None, given=envs)
            return
        inner, around = unwrapped(envs, purpose)
        if in_workers:
            _expect_workers_alone(inner, purpose)
        transforms = Transforms(around, core_of(inner).spec) if around else None
        yield Leasable(inner, owned=False, transforms=transforms, given=envs)
        return
    # False allows spaces unknown to gymnasium: the sampler leaves them out, or raises itself.
    options = {"shared_memory": False, **vector_options(purpose, vector_kwargs)}
    clean = options.get("context") in (None, "forkserver") and options.get("num_workers") != 0
    if in_workers and clean and options.get("preload") is None:  # once, not in every worker
        fork_server.preload([*_OF_POLICIES, *["torch"] * needs_torch(policy)])
    if makes_envs(envs):
        if num_envs is None:
            raise ValueError(
                f"cannot {purpose}: num_envs is missing, expected how many envs to make"
            )
        made = make_vec(envs, num_envs, vector_kwargs=options, wrappers=wrappers, **kwargs)
    else:
        functions = arguments.env_fns(envs)
        if num_envs is not None and whole_number(purpose, "num_envs", num_envs, 1) != len(envs):
            raise ValueError(f"cannot {purpose}: num_envs {num_envs}, but {len(envs)} functions")
        made = VectorEnv([EnvMaker(env_fn, kwargs, wrappers) for env_fn in functions], **options)
    try:
        if not isinstance(made, VectorEnv):
            raise TypeError(f"cannot {purpose}: {type(made).__name__}, expected a VectorEnv")
        if in_workers:
            _expect_workers_alone(made, purpose)
        yield Leasable(made, owned=True, transforms=None, given=made)
    except BaseException:
        made.close()
        raise
