"""evaluate: runs a policy for a list of episodes, whose results do not depend on how it runs."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pysampler._common.numbers import whole_number
from pysampler._policies.normalize import expect_normalizer
from pysampler._policies.predict import predict_policy
from pysampler._policies.sampler import makes_envs, vector_env_of
from pysampler._rollouts.episode_recorder import expect_describes
from pysampler._rollouts.episode_sampler import EpisodeSampler
from pysampler._rollouts.episodes import EpisodeSpec, longest_first, starts_of
from pysampler._rollouts.evaluation_file import EvaluationFile, identity_of
from pysampler._rollouts.evaluation_progress import Progress
from pysampler._rollouts.evaluation_results import Evaluation
from pysampler._rollouts.evaluation_videos import Videos
from pysampler._rollouts.options import RolloutOptions
from pysampler._rollouts.rollouts import Rollouts
from pysampler._vector.make import vector_options

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from typing import Unpack

    from pysampler._policies.normalize import Normalizer
    from pysampler._rollouts.episode_recorder import Describes
    from pysampler._rollouts.episodes import EpisodeResult, Start
    from pysampler._rollouts.evaluation_videos import Record
    from pysampler._rollouts.options import PolicyIn
    from pysampler._vector.options import VectorOptions

__all__ = ["evaluate"]


def evaluate(
    envs: Any,
    policy: Any,
    episodes: int | Iterable[EpisodeSpec],
    *,
    num_envs: int | None = None,
    vector_kwargs: dict[str, Any] | None = None,
    policy_in: PolicyIn = "main",
    min_envs: int | None = None,
    timeout: float | None = None,
    threads: int | None = 1,
    device: Any = None,
    leave_out: Sequence[str] = (),
    max_steps: int = 100_000,
    batch: int | None = None,
    chunk: int | None = None,
    statistics: Describes | None = None,
    normalize: Normalizer | None = None,
    videos: str | os.PathLike[str] | None = None,
    record: Record | None = None,
    order: Evaluation | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[int], Any] = False,
    seed: int | None = None,
    **options: Unpack[VectorOptions],
) -> Evaluation:
    """Run a policy for a list of episodes and return their results, in the order of the list.

    Envs take the next episode from the list as they end one; every episode that begins is finished
    and counted, and an env without an episode is not stepped. (Vector envs of other libraries step
    all of their envs: one without an episode then gets the action of another, and its results are
    dropped.) Each episode has its own seed, for the env and for the ``generators`` of the policy:
    its result is the same for any number of envs and workers, wherever the policy acts, and if a
    worker is lost. Results do depend on how you run them if the envs are not deterministic, if the
    policy draws other random numbers or keeps its own state between calls, and by rounding if it is
    a network; see ``batch``.

    Args:
        envs: The ``envs`` of :class:`pysampler.Rollouts`; or open rollouts, whose vector env is
            then used: their next rollout begins with a reset. Reset a vector env of yours before
            you step it again: its envs are left where their episodes ended. All of its envs are
            reset once, also those for which there is no episode. Wrappers that normalise use the
            statistics that they have, and do not update them.
        policy: A policy, as in :class:`pysampler.Rollouts`; or a model of Stable-Baselines3, whose
            ``predict`` is called with ``deterministic=True``, and with the states of
            ``RecurrentPPO``. If it was trained in ``VecNormalize``, it gets observations that are
            normalised with the statistics of ``model.get_vec_normalize_env()``.
        episodes: How many episodes, or a list of :class:`pysampler.EpisodeSpec`.
        num_envs: How many envs to make; by default one for each episode, up to 8.
        vector_kwargs: Options of the vector env in a dict, as ``gymnasium.make_vec`` takes them.
        policy_in: Where the policy acts, "main" or "workers", as in :class:`pysampler.Rollouts`.
        min_envs: Act as soon as this many envs are ready, instead of all that step.
        timeout: Act after this many seconds for the envs that are ready; None waits for
            ``min_envs``.
        threads: Threads that torch may use while a policy in "main" acts on the CPU; None leaves
            torch's setting unchanged.
        device: The torch device of a policy in "main", as in :class:`pysampler.Rollouts`.
        leave_out: Names of the parts of observations without a fixed shape, as in
            :class:`pysampler.Rollouts`; by default those of the open rollouts.
        max_steps: Raise ValueError if an episode takes more than this many steps: envs without a
            time limit may never end one.
        batch: Call the policy with exactly this many rows: larger batches are split, smaller ones
            padded with copies of a row. A network rounds differently for other sizes of its batch.
        chunk: The number of steps that the policy acts for at once, as in
            :class:`pysampler.Rollouts`: it returns actions ``[rows, chunk, ...]``. When an episode
            ends, the rest of its chunk is dropped. By default that of the open rollouts.
        statistics: A :class:`pysampler.EpisodeStatistics`: each episode gets its statistics. If it
            keeps "infos", each key that some step has is an array; where the info is missing, the
            value is 0, False or None.
        normalize: Normalise observations with the statistics of this
            :class:`pysampler.Normalizer`, without updating them; by default that of the open
            rollouts, if any. Returns sum the envs' own rewards, also if gymnasium's wrappers
            normalise, transform or clip them.
        videos: A directory for videos of some episodes. They run once more for this at the end, in
            envs with ``render_mode="rgb_array"``: envs of an id are made so, functions must make
            such envs, and a vector env must be pysampler's, without wrappers. If filming fails, you
            get a warning and the results. Needs ``imageio[ffmpeg]``.
        record: Which episodes to film: how many of the first ones (4), or a function of an
            :class:`pysampler.EpisodeResult`.
        order: An earlier evaluation with the same seeds: begin with the episodes that were longest
            in it, so that no long one is left for the end. The results keep their order.
        resume: A file to write the result of each episode to. If it exists, continue the evaluation
            in it: after Ctrl-C or a crash, the same call runs only the missing episodes. A file of
            other episodes, spaces or statistics is refused; another policy cannot be told.
        progress: Show how many episodes are over and the time that is left, on stderr: a bar if
            ``tqdm`` is installed and stderr is a terminal, otherwise a line every 10 %. Or a
            function that is called with the number of episodes that are over since its last call,
            such as ``tqdm(total=100).update``.
        seed: The seed of the first episode; the next ones count up from it. None: a random one.
        options: Options of :class:`pysampler.VectorEnv`, such as ``num_workers``, for the
            envs to make.

    Returns:
        The results of the episodes.

    Raises:
        TypeError: The policy is a model whose ``predict`` takes ``action_masks``.
        ValueError: An episode did not end within ``max_steps``, or the envs have a wrapper that
            would learn from the evaluation, because it has seen nothing yet.
        EnvError: An env raised an exception.
        WorkerLostError: A worker was lost, or, with ``on_worker_loss="restart"``, the worker of one
            episode more than ``max_restarts`` times.
        EnvTimeoutError: An env took longer than ``step_timeout``.

    The last three have an attribute ``episode``: the place of the episode in the list, or None if
    it may be one of several. Whatever ends an evaluation early, such as Ctrl-C, has an attribute
    ``evaluation``: the results of the episodes that were over.

    >>> def policy(observations):
    ...     return (observations[:, 2] > 0).astype(int)
    >>> evaluation = evaluate("CartPole-v1", policy, 10, seed=1, num_envs=4)
    >>> len(evaluation.returns), bool((evaluation.returns == evaluation.lengths).all())
    (10, True)
    """
    vector_kwargs = vector_options("evaluate", vector_kwargs, options, evaluate)
    file = None if resume is None else EvaluationFile(resume)
    if file is not None and seed is None:
        seed = file.seed
    specs, starts, seed = starts_of(episodes, seed)
    max_steps = whole_number("evaluate", "max_steps", max_steps, 1)
    if batch is not None:
        batch = whole_number("evaluate", "batch", batch, 1)
    if chunk is not None:
        chunk = whole_number("evaluate", "chunk", chunk, 1)
    if statistics is not None:
        expect_describes(statistics)
    if not (order is None or isinstance(order, Evaluation)):
        raise TypeError(
            f"cannot evaluate: order is a {type(order).__name__}, expected a pysampler.Evaluation"
        )
    if normalize is not None:
        expect_normalizer(normalize, "evaluate")
    if not (isinstance(progress, bool) or callable(progress)):
        raise TypeError(
            f"cannot evaluate: progress {progress!r}, expected True, False or a function"
        )
    if videos is None and record is not None:
        raise ValueError(
            f"cannot evaluate: record {record!r} without videos, expected a directory for them"
        )
    if (paused := envs if isinstance(envs, Rollouts) else None) is not None:
        if num_envs is not None or vector_kwargs:
            raise ValueError("cannot evaluate: num_envs and vector_kwargs are for envs to make")
        envs = paused.given_envs
        normalize = paused.normalizer if normalize is None else normalize
        leave_out = leave_out or paused.leave_out
        chunk = paused.chunk if chunk is None else chunk
    elif num_envs is None and makes_envs(envs):
        num_envs = min(len(starts), 8)
    if chunk is not None and not (min_envs is None and timeout is None):
        raise ValueError(
            "cannot evaluate: min_envs and timeout are for single steps, expected chunk=None"
        )
    if hasattr(policy, "predict") and not callable(policy):
        policy = predict_policy(policy)
        if normalize is not None and policy.vec_normalize is not None:
            raise ValueError(
                "cannot evaluate: normalize with a model that has the statistics of VecNormalize, "
                "expected one of them"
            )
    runs = _Runs(
        *(policy, specs, batch, max_steps, normalize and normalize.frozen(), leave_out),
        paused is not None,
        RolloutOptions(
            *(chunk or 1, policy_in, False, 1, min_envs, timeout, "call", False, False, ()),
            *(threads,),
            device=device,
            chunk=chunk,
        ),
    )
    record = 4 if record is None else record
    film = None if videos is None else Videos(videos, record, envs, vector_kwargs)
    found: dict[int, EpisodeResult] = {}
    if paused is not None:
        paused.pause()
    try:
        with ExitStack() as stack:
            if file is not None:
                stack.enter_context(file).open(seed, starts, envs, statistics)
                found |= {i: replace(one, task=specs[i].task) for i, one in file.results.items()}
            left = [start for start in starts if start.index not in found]
            if order is not None:
                left = longest_first(left, [(one.seed, one.length) for one in order.episodes])
            shows = progress is True and sys.stderr is not None
            silent = None if shows else _nothing
            if shows and file is not None and found:
                text = f"{len(found)} of {len(specs)} episodes were read from {file.path}"
                print(f"pysampler: {text}", file=sys.stderr)
            advance = progress if callable(progress) else silent
            over = stack.enter_context(Progress(advance, len(specs), len(found)))
            begin = [one.begin for one in (film, file) if one is not None]
            for index, result in runs.run(
                *(left, statistics, envs, num_envs, vector_kwargs), begin=begin
            ):
                found[index] = result
                if file is not None:
                    file.add(index, result)
                over.add(result.return_)
            if film is not None and (again := film.starts(starts, found)):
                films = runs.run(again, None, *film.envs(len(again)), **film.making)
                filmed = stack.enter_context(Progress(silent, len(again), noun="films"))
                for result in film.film(found, films, again):
                    filmed.add(result.return_)
        return _evaluation_of(found, envs)
    except BaseException as error:
        _keep_results(error, _evaluation_of(found, envs), len(specs), file)
        # After Ctrl-C, do not wait for an env in a long step: the next rollout does.
        paused = paused if isinstance(error, Exception) else None
        raise
    finally:
        if paused is not None:
            paused.resume()


@dataclass(frozen=True)
class _Runs:
    """Runs episodes of a policy, on one vector env or another."""

    policy: Any
    specs: Sequence[EpisodeSpec]
    batch: int | None
    max_steps: int
    normalize: Normalizer | None
    leave_out: Sequence[str]
    seen: bool
    options: RolloutOptions

    def run(
        self,
        starts: Sequence[Start],
        statistics: Describes | None,
        envs: Any,
        num_envs: int | None,
        vector_kwargs: dict[str, Any] | None,
        *,
        begin: Sequence[Callable[[Any], None]] = (),
        **making: Any,
    ) -> Generator[tuple[int, EpisodeResult]]:
        """Run episodes, and yield the place and the result of each when it is over.

        Each of ``begin`` gets the vector env before the first one.
        """
        if not starts:
            return
        with vector_env_of(
            *(envs, num_envs, vector_kwargs, "evaluate"),
            policy=self.policy,
            in_workers=self.options.policy_in == "workers",
            **making,
        ) as leasable:
            for each in begin:
                each(leasable.given)
            sampler = EpisodeSampler(
                *(leasable, self.policy, self.options),
                batch=self.batch,
                max_steps=self.max_steps,
                statistics=statistics,
                normalize=self.normalize,
                leave_out=self.leave_out,
                seen=self.seen and not leasable.owned,
            )
        with sampler, closing(sampler.run(starts)) as finished:
            if sampler.resets_itself:
                _expect_plain(self.specs)
            first = {start.index for start in starts[: sampler.envs.num_envs]}
            for one in finished:
                result, task = one.result, self.specs[one.index].task
                if sampler.resets_itself and one.index not in first:
                    result = replace(result, seed=None)
                yield one.index, result if task is None else replace(result, task=task)


def _nothing(_: int) -> None:
    """Show no progress."""


def _expect_plain(specs: Sequence[EpisodeSpec]) -> None:
    """Raise ValueError if an episode has what vector envs that reset themselves cannot get."""
    for index, spec in enumerate(specs):
        if any(value is not None for value in vars(spec).values()):
            raise ValueError(
                f"cannot evaluate: episode {index} is {spec}, but the vector env resets its envs "
                "itself, without seeds and options; expected a number of episodes, or "
                "autoreset_mode=DISABLED"
            )


def _evaluation_of(found: Mapping[int, EpisodeResult], envs: Any) -> Evaluation:
    return Evaluation([found[index] for index in sorted(found)], identity_of(envs).get("id"))


def _keep_results(
    error: BaseException, found: Evaluation, total: int, file: EvaluationFile | None
) -> None:
    """Let an error that ends an evaluation early have its results so far."""
    error.evaluation = found  # type: ignore[attr-defined]
    stopped = isinstance(error, KeyboardInterrupt)
    if not (found.episodes or stopped):
        return
    text = f"{len(found.episodes)} of {total} episodes are over"
    if file is not None:
        rest = "runs the others" if len(found.episodes) < total else "films"
        text += f" and in {file.path}" + f"; the same call {rest}" * stopped
    error.add_note(f"{text}; the attribute `evaluation` of this exception has their results")
