"""EpisodeSampler: envs take episodes from a queue, and a policy acts for those that have one.

A round acts for the groups that are ready and steps them, then waits until groups come back. An env
whose episode ended takes the next one: its group resets it before its next step, while the other
groups go on. Once the queue is empty, envs rest: steps leave them alone, and a group that only
rests is not stepped at all.

With the policy in the workers, a round is a job of a group: it acts until one of its episodes ends.

With chunks, a round is a chunk of steps. An env whose episode ends makes none of the others, and
takes the next episode when the chunk is over.

Groups walk the frames together, or each by itself if the policy is in the workers. Frame 0 follows
the last one: observations are copied there, and so are those of a group that has fallen behind.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from gymnasium.vector.vector_env import AutoresetMode

from pysampler._common.torch import get_torch_threads, set_torch_threads
from pysampler._frames.frames import LOST
from pysampler._policies.calling import PolicyCaller
from pysampler._policies.copying import for_first_call, pickled, source_of
from pysampler._policies.fixed_batch import FixedBatchCaller
from pysampler._policies.normalize import normalization_of
from pysampler._policies.progress import WorkerProgress
from pysampler._policies.sampler import Leasable, Sampler, visible_spec
from pysampler._rollouts.episode_jobs import (
    EpisodeSetup,
    EpisodesJob,
    EpisodesReport,
    TakeEpisodePolicy,
    infos_in,
)
from pysampler._rollouts.episode_rows import EpisodeRows, Finished
from pysampler._rollouts.episodes import name_episodes
from pysampler._vector.frozen import FrozenNames
from pysampler._vector.jobs import FreezeWrappers, Reset, Rest
from pysampler._vector.partial import BatchWait
from pysampler._vector.results import first
from pysampler._workers.jobs import Failure
from pysampler.errors import EnvError, EnvTimeoutError, WorkerLostError
from pysampler.sync import now

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence

    from pysampler._policies.frame_policy import Span
    from pysampler._policies.normalize import Normalizer
    from pysampler._rollouts.episode_recorder import Describes
    from pysampler._rollouts.episodes import Start
    from pysampler._rollouts.options import RolloutOptions
    from pysampler._workers.jobs import Answer

__all__ = ["EpisodeSampler"]

# The steps from frame 0 to the last one. With many, workers act for long without the main process;
# observations that are pictures may take this many bytes.
_MOST_FRAMES = 256
_BYTES = 1 << 25


class EpisodeSampler(Sampler):
    """Runs a queue of episodes on a vector env.

    Args:
        leasable: The vector env.
        policy: The policy, as in ``Rollouts``.
        options: The options of ``evaluate`` that ``Rollouts`` has too.
        batch: The number of rows of each call of the policy; None: one for each env.
        max_steps: The largest number of steps of an episode.
        statistics: Statistics of each episode; None: no further ones.
        normalize: The normalizer of the policy's observations.
        leave_out: Names of the parts of observations without a fixed shape.
        seen: Whether the statistics of wrappers count as complete, even if they are empty.
    """

    _purpose = "evaluate"
    _name = "an evaluation"
    _work_name = "an episode"
    _resets_late = True
    _freezes = True

    def __init__(
        self,
        leasable: Leasable,
        policy: Any,
        options: RolloutOptions,
        *,
        batch: int | None,
        max_steps: int,
        statistics: Describes | None,
        normalize: Normalizer | None,
        leave_out: Sequence[str],
        seen: bool,
    ) -> None:
        if leasable.envs.division.spare_envs:
            raise ValueError(
                "cannot evaluate: the vector env has spare_envs, whose episodes have other seeds; "
                "expected one without. With more envs than CPUs, some step while others reset"
            )
        self._in_workers = options.policy_in == "workers"
        if self._in_workers:
            leasable.expect_no_wrappers(self._purpose, "the policy acts in the workers")
        if normalize is not None:
            leasable.expect_no_wrappers(self._purpose, "`normalize` applies to the envs' results")
        if options.as_ready or leave_out:
            leasable.expect_no_wrappers(self._purpose, "the policy does not act for all together")
        if options.chunk is not None:
            leasable.expect_chunks(self._purpose, normalize)
        self._policy = policy
        self._options = options
        self._batch = batch
        self._max_steps = max_steps
        self._statistics = statistics
        self._seen = seen
        self._transforms = leasable.transforms
        self._spec = visible_spec(self._purpose, leasable.envs, leave_out)
        self._normalization = normalization_of(normalize, self._spec, self._purpose)
        if self._transforms is not None:
            self._spec = self._transforms.spec
            self._transforms.learns = False
        self._caller = self._make_caller(policy)
        self._lease_envs(leasable.envs, owned=leasable.owned)
        row = sum(
            math.prod(field.shape) * field.dtype.itemsize for field in self._spec.observations
        )
        frames = min(_MOST_FRAMES, max(8, _BYTES // (row * leasable.envs.num_envs + 1)))
        self._steps = options.chunk or 1
        self._horizon = max(1, frames // self._steps) * self._steps
        # Otherwise the envs may skip the frames of all steps but the last one of a chunk.
        reads_all = statistics is not None and {"observations", "infos"} & {*statistics.keep}
        self._reads_last = not reads_all
        self._pool = self._core.pool
        self._groups = self._core.groups
        # A vector env steps all of its envs, so those whose episodes end are reset at once. Unless
        # its mode is DISABLED it does that itself, and episodes begin without a seed.
        own = self._core.own_autoreset
        self._autoreset = AutoresetMode.DISABLED if own is None else AutoresetMode.SAME_STEP
        self.resets_itself = own not in (None, AutoresetMode.DISABLED)

    def _make_caller(self, policy: Any) -> PolicyCaller:
        arguments = {"device": self._options.device, "chunk": self._options.chunk}
        if self._batch is None:
            return PolicyCaller(policy, self._spec, **arguments)
        return FixedBatchCaller(policy, self._spec, **arguments, batch=self._batch)

    def run(self, starts: Sequence[Start]) -> Generator[Finished]:
        """Run these episodes, and yield the result of each when it is over."""
        threads = get_torch_threads()
        try:
            set_torch_threads(self._options.threads)
            with self._enter("evaluate"):
                self._queue = deque(starts)
                self._pool.may_renew = False  # episodes would have to begin again
                yield from self._run()
        except Exception as error:
            if isinstance(error, (EnvError, EnvTimeoutError, WorkerLostError)):
                self._name_episode(error)
            if self._owned and isinstance(error, EnvTimeoutError):
                self.envs.close(terminate=True)  # do not wait again for an env that is late
            else:
                self._core.drop_work(self._work_name, stopped=self._end())
            raise
        except BaseException:
            self._interrupted = True  # do not wait for an env in a long step
            raise
        finally:
            self._pool.may_renew = True
            if self._options.threads is not None:
                set_torch_threads(threads)

    def _run(self) -> Generator[Finished]:
        self._prepare(self._queue)
        ready = list(range(len(self._groups)))
        while True:
            with self._core.enter("evaluate"):
                if self._may_step_together(ready):
                    finished = self._step_together(ready)
                else:
                    self._advance(ready)
                    if not self._pool.pending:
                        return
                    ready, finished = self._receive()
                    ready += [group for group in self._paused if group not in ready]
                for env in dict.fromkeys(one.env for one in finished):
                    # Unless it is in a spare episode, or begins that again.
                    if env not in self._rows.starts | self._starts.get(self._group_of[env], {}):
                        self._assign([env])
            yield from finished
            if self._failure is not None:
                raise self._failure

    # -- beginning -------------------------------------------------------------------------------

    def _prepare(self, queue: deque[Start]) -> None:
        """Reset the envs for the first episodes, and lay out frames for the policy."""
        caller, envs = self._caller, self.envs.num_envs
        if self._in_workers:
            caller = self._make_caller(
                for_first_call(self._policy, in_processes=self._pool.in_processes)
            )
        caller.find_device()
        caller.follow_weights()
        begun = [queue[env] if env < len(queue) else None for env in range(envs)]
        # The outputs of the first call, if the policy would get the same arguments again.
        full = len(queue) >= envs and not (self._in_workers or caller.uses_generators)
        entropy = queue[0].entropy
        self._frame_of = [0] * len(self._groups)  # by group
        self._group_of = {env: group for group, envs in enumerate(self._groups) for env in envs}
        self._starts: dict[int, dict[int, Start]] = {}  # by group, the episodes to begin
        self._rests: dict[int, list[int]] = {}  # by group, the envs to leave alone
        self._spares: dict[int, list[Start]] = {}  # by group, those of its job
        self._resetting: set[int] = set()  # groups that reset envs
        self._paused: list[int] = []  # groups that wait for those, if all must act together
        self._losses: Counter[int] = Counter()  # by episode, how often its worker was lost
        self._failure: EnvError | WorkerLostError | None = None  # raised after a round's results
        self._running: dict[int, Start] = {}  # by env, the episode that it is in
        self._assign(range(envs))
        self._freeze_wrappers()
        prepared = self._prepare_frames(
            caller,
            [None if start is None else start.seed for start in begun],
            self._horizon + 1,
            lambda _: self._shared_bytes(None),
            infos="all" if self._statistics and "infos" in self._statistics.keep else "final",
            transforms=self._transforms,
            normalization=self._normalization,
            autoreset=self._autoreset,
            options=[None if start is None else start.options for start in begun],
        )
        self._act = prepared.policy
        self._follows = self._act.needs_after_step and self._options.chunk is None
        self._rows = EpisodeRows(
            *(prepared.policy, prepared.frames, self._max_steps, self._statistics),
            begins_late=self.resets_itself,
        )
        self._running = self._rows.starts
        self._has_final = prepared.frames.has_final
        self._outputs = prepared.outputs if full else None
        self._was_reset = True  # the envs are in their first episodes
        self._frame = 0  # with the newest results, if the policy acts here
        if self._in_workers:
            self._progress = WorkerProgress(prepared.segment, len(self._groups))
            setup = EpisodeSetup(
                source_of(self._policy, in_processes=self._pool.in_processes),
                *(prepared.policy.outputs, self._progress.place, list(entropy)),
                chunk=self._options.chunk,
                batch=self._batch,
                max_steps=self._max_steps,
                begins_late=self.resets_itself,
                described_by=pickled(self._statistics),
            )
            TakeEpisodePolicy.send(self._pool, setup)

    def _freeze_wrappers(self) -> None:
        """Freeze the envs' wrappers until the next layout; raise if some must not be there."""
        self._lease.laid_out = True  # so that there is one, whatever happens
        found = self._frozen(self._core.all_groups)
        if self._transforms is not None:
            found.append(FrozenNames(self._transforms.unseen, []))
        for names in found:
            _expect_usable(names, seen=self._seen)
        self._have_learned = not any(names.unseen for names in found)

    def _frozen(self, groups: Iterable[int]) -> list[FrozenNames]:
        """Freeze the wrappers of idle groups; return those that an evaluation may not use."""
        jobs = dict.fromkeys(groups, FreezeWrappers())
        self._pool.request([(group, 0) for group in jobs], jobs)
        answers = self._pool.wait_for([*jobs])
        self._pool.take([*jobs])
        failures = [(group, result) for group, result in answers if isinstance(result, Failure)]
        if failures:
            raise self._pool.error_of(*first(failures))
        return [names for answer in answers for names in answer.result]

    def _assign(self, envs: Sequence[int]) -> None:
        """Give the next episodes to envs, or let them rest."""
        for env in envs:
            group = self._group_of[env]
            if self._queue:
                self._starts.setdefault(group, {})[env] = self._queue.popleft()
            else:
                self._rests.setdefault(group, []).append(env)

    # -- a round ---------------------------------------------------------------------------------

    def _may_step_together(self, ready: Sequence[int]) -> bool:
        """Return whether all groups step now: the usual case, made fast."""
        return (
            not (self._in_workers or self._options.as_ready or self._starts or self._rests)
            and self._options.chunk is None
            and len(ready) == len(self._groups)
            and all(map(self._rows.runs, self._groups))
        )

    def _step_together(self, groups: Sequence[int]) -> list[Finished]:
        """Act and step all groups; return the episodes that ended."""
        at, everyone = self._next_frame(groups), range(self.envs.num_envs)
        self._act_on(self._rows.spans(at, everyone))
        self._frame = at + 1
        if answers := self._pool.round(at + 1):
            return self._took(groups, answers)
        self._frame_of = [at + 1] * len(groups)
        if self._follows:
            self._act.after_step(at + 1, slice(None))
        return self._rows.after_step(at + 1, everyone, {})

    def _act_on(self, spans: list[Span]) -> None:
        outputs, self._outputs = self._outputs, None
        if outputs is None:
            self._act.act(spans)
        else:
            self._act.write(0, slice(None), *outputs)

    def _advance(self, ready: Sequence[int]) -> None:
        """Command the groups that are ready, except those without an episode."""
        self._paused = []
        resets = not (self._was_reset or self.resets_itself)
        if self._in_workers:
            self._request_jobs(ready, resets=resets)
            self._was_reset = False
            return
        begun = [group for group in ready if group in self._starts]
        if rests := [env for group in ready for env in self._rests.pop(group, ())]:
            self._pool.note(lambda envs: _rest_of(envs, rests))
        if resets and begun:
            jobs = {group: self._reset_of(group, self._starts[group]) for group in begun}
            self._resetting.update(jobs)
            self._pool.request([(g, self._frame_of[g]) for g in jobs], jobs)
            ready = [group for group in ready if group not in self._resetting]
            if self._transforms is not None:
                self._paused = ready
                return
        else:
            self._was_reset = False
            for group in begun:
                self._rows.begin(self._frame_of[group], self._starts.pop(group))
        stepping = [group for group in ready if self._rows.runs(self._groups[group])]
        if not stepping:
            return
        at = self._next_frame(stepping)
        self._frame = at + self._steps
        self._act_on([span for g in stepping for span in self._rows.spans(at, self._groups[g])])
        group_frames = [(group, at + 1) for group in stepping]
        steps = None if self._options.chunk is None else self._steps
        self._pool.step_some(group_frames, steps, last=self._reads_last)

    def _next_frame(self, groups: Sequence[int]) -> int:
        """Return the frame from which groups step next, with their newest observations.

        Groups that have waited for a reset are some frames behind, and the last frame is followed
        by the first one.
        """
        at = self._frame if self._frame < self._horizon else 0
        for group in groups:
            if (last := self._frame_of[group]) != at:
                self._act.carry(last, at, self._rows_of(group))
                self._frame_of[group] = at
        return at

    def _reset_of(self, group: int, starts: Mapping[int, Start]) -> Reset:
        chosen = [starts.get(env) for env in self._groups[group]]
        return Reset(
            [None if start is None else start.seed for start in chosen],
            [None if start is None else start.options for start in chosen],
            [start is not None for start in chosen],
        )

    def _request_jobs(self, ready: Sequence[int], *, resets: bool) -> None:
        jobs = {}
        for group in ready:
            starts = self._starts.pop(group, {})
            rests = self._rests.pop(group, [])
            self._rows.starts.update(starts)
            if not any(env in self._rows.starts for env in self._groups[group]):
                continue
            last = self._frame_of[group]
            self._frame_of[group] = last % self._horizon
            # Few enough that no group holds episodes for which envs of others wait. None after a
            # loss, so that this process knows which episode lost the next worker.
            count = min(len(self._groups[group]), len(self._queue) // (2 * self.envs.num_envs))
            count *= not self._losses
            self._spares[group] = [self._queue.popleft() for _ in range(count)]
            jobs[group] = EpisodesJob(
                *(last, self._horizon - last % self._horizon, starts, resets, rests),
                *(self._spares[group], not self.resets_itself, self._normalization),
                self._reads_last,
            )
        if jobs:
            self._pool.request([(group, self._frame_of[group]) for group in jobs], jobs)

    def _receive(self) -> tuple[list[int], list[Finished]]:
        """Wait for groups; return them, and the episodes that ended."""
        groups, answers = self._wait().wait(self._pool)
        self._pool.take(groups)
        return groups, self._took(groups, answers)

    def _took(self, groups: Sequence[int], answers: Sequence[Answer]) -> list[Finished]:
        """Process the results of groups, and return the episodes that ended."""
        by_group = {answer.group: answer for answer in answers}
        failures = self._failures_in(answers)
        failed = {group for group, _ in failures if not self._in_workers}
        finished: list[Finished] = []
        for group in groups:
            if group in failed:
                continue
            answer, envs = by_group.get(group), self._groups[group]
            spares = self._spares.pop(group, [])
            if answer is not None and self._were_lost(group, answer):
                self._resetting.discard(group)
                lost = {**self._rows.forget(envs), **self._starts.get(group, {})}
                self._rests[group] = [env for env in envs if env not in lost]
                loss = self._pool.last_loss(group)
                if self._have_learned:
                    _expect_learned(self._frozen([group]), loss)
                self._begin_again(group, lost, loss)
                self._queue.extendleft(reversed(spares))
            elif self._in_workers:
                assert answer is not None
                if isinstance(answer.result, EpisodesReport):
                    finished += self._reported(group, answer.result, spares)
            elif group in self._resetting:
                self._resetting.remove(group)
                at = self._frame_of[group]
                self._act.after_step(at, self._rows_of(group))
                self._rows.begin(at, self._starts.pop(group))
            else:
                at = self._frame_of[group] + 1
                self._frame_of[group] += self._steps
                if self._follows:
                    self._act.after_step(at, self._rows_of(group))
                infos = {} if answer is None else infos_in(answer.result)
                for k in range(self._steps):
                    finished += self._rows.after_step(at + k, envs, infos.get(k, {}))
            if self._rows.lost:
                lost, self._rows.lost = self._rows.lost, {}
                self._begin_again(group, lost, WorkerLostError("it was one of a vector env's own"))
        if failures:
            self._failure = self._pool.error_of(*first(failures))
        return finished

    def _reported(self, group: int, report: EpisodesReport, spares: list[Start]) -> list[Finished]:
        """Process a report; return unused spares to the queue, and the episodes that ended."""
        self._frame_of[group] += report.steps
        for one in report.finished:
            self._rows.starts.pop(one.env, None)
        self._rows.starts.update(report.begun)
        used = {one.index for one in report.finished} | {one.index for one in report.begun.values()}
        self._queue.extendleft(one for one in reversed(spares) if one.index not in used)
        self._rows.lost = {env: self._rows.starts.pop(env) for env in report.lost}
        return report.finished

    def _rows_of(self, group: int) -> slice:
        return slice(self._groups[group].start, self._groups[group].stop)

    def _wait(self) -> BatchWait:
        """Return when to act next: no group waits for another one's resets, or for its job."""
        options, everyone = self._options, self.envs.num_envs
        pending = [group for group in range(len(self._groups)) if self._pool.is_pending(group)]
        least = 1
        if not self._in_workers:
            waited = [g for g in pending if self._transforms or g not in self._resetting]
            least = max(1, sum(len(self._groups[group]) for group in waited))
        if isinstance(options.min_envs, int):
            least = min(least, options.min_envs)
        limit = options.timeout_ns
        return BatchWait(least, everyone, None if limit is None else now() + limit, or_first=True)

    # -- faults ----------------------------------------------------------------------------------

    def _failures_in(self, answers: Sequence[Answer]) -> list[tuple[int, Failure]]:
        failures: list[tuple[int, Failure]] = []
        for answer in answers:
            if isinstance(answer.result, EpisodesReport):
                failures += [(answer.group, failure) for failure in answer.result.failures]
            else:
                failures += self._core.results.failed([answer])
        return failures

    def _name_episode(self, error: EnvError | EnvTimeoutError | WorkerLostError) -> None:
        """Let an error name the episode in which an env failed, or those that it may be."""
        several: Sequence[int] = error.envs if isinstance(error, WorkerLostError) else []
        envs = several if error.env is None else [error.env]
        starts = []
        for group in dict.fromkeys(self._group_of[env] for env in envs):
            begun = {**self._running, **self._starts.get(group, {})}
            starts += [begun[env] for env in envs if env in self._groups[group] and env in begun]
            starts += self._spares.get(group, [])
        name_episodes(error, starts, seeded=not self.resets_itself)

    def _were_lost(self, group: int, answer: Answer) -> bool:
        """Return whether a group's envs replace lost ones."""
        if self._in_workers:
            return isinstance(answer.result, EpisodesReport) and answer.result.replaced
        at = self._frame_of[group] + (group not in self._resetting)
        return LOST in self._has_final[at, self._rows_of(group)].tobytes()  # faster than any()

    def _begin_again(self, group: int, lost: Mapping[int, Start], loss: WorkerLostError) -> None:
        """Let a group begin the episodes of lost envs again; raise if one is lost too often."""
        if self.resets_itself:
            raise WorkerLostError(
                "cannot evaluate: a worker was lost, and its vector envs reset themselves, so that "
                "their episodes cannot begin again"
            )
        self._starts[group] = {**self._starts.get(group, {}), **lost}
        most = self._pool.max_restarts
        for env, start in lost.items():
            self._losses[start.index] += loss.env in (None, env)
            if (count := self._losses[start.index]) > most:
                limit = f"expected at most {most} (max_restarts)"
                loss.args = (f"its worker was lost {count} times, {limit}; {loss.args[0]}",)
                loss.env = env
                self._failure = loss
                return

    # -- ending ----------------------------------------------------------------------------------

    def _request_stop(self) -> None:
        """Let workers end their jobs at the current step; other commands end by themselves."""
        if hasattr(self, "_progress"):
            self._progress.stop()

    def _end(self) -> bool:
        self._request_stop()
        return True


def _expect_learned(found: Sequence[FrozenNames], loss: WorkerLostError) -> None:
    """Raise the loss of a worker if wrappers of the envs that replace its own know nothing."""
    if unseen := [name for names in found for name in names.unseen]:
        why = f"{loss.args[0]}, and with it what {unseen[0]} had learned"
        loss.args = (f"cannot evaluate: {why}; leave it out and pass normalize=",)
        raise loss


def _expect_usable(names: FrozenNames, *, seen: bool) -> None:
    """Raise ValueError if the results of envs with these wrappers would be wrong."""
    if names.in_vectors:
        raise ValueError(
            f"cannot evaluate: {names.in_vectors[0]} around a vector env changes the rewards of "
            "its envs, whose sums are the returns; expected a vector env without it"
        )
    if names.unseen and not seen:
        raise ValueError(
            f"cannot evaluate: {names.unseen[0]} of the envs has seen nothing yet, so its results "
            "would depend on what this evaluation shows it; pass the rollouts or the vector env "
            "that you train with, make envs with the statistics of the training, or leave the "
            "wrapper out and pass normalize=, a pysampler.Normalizer"
        )


def _rest_of(envs: range, rests: Sequence[int]) -> Rest | None:
    chosen = [env for env in rests if env in envs]
    return Rest(chosen) if chosen else None
