"""A worker that acts by itself: as an actor, or to show how well a policy does."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.records import Packer
from pysampler._closing import Closing
from pysampler._policies.worker_policy import RolloutReport, TakePolicy, WorkerPolicy
from pysampler._workers.jobs import Repeated
from pysampler._workers.remote import Raised
from pysampler.errors import StopActors
from pysampler.sync import now, sleep_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import gymnasium as gym
    import numpy.typing as npt

    from pysampler import _core
    from pysampler._actors.records import Described
    from pysampler._frames.frames import Frames
    from pysampler._policies.worker_policy import PolicySetup
    from pysampler._vector.host import EnvHost, Leftovers
    from pysampler.sync import Segment

    # The blocks of a worker, each with what takes what it left over.
    Crew = Sequence[tuple[_core.EnvBlock, Callable[[], Leftovers]]]

__all__ = ["EPISODE", "ActOn", "Alone", "Errand", "Show", "ShowEpisodes", "TakePolicyAlone"]

# Records wait for others to be handed over with them, but no more ns than this.
_SOON = 5_000_000
# How often who waits looks whether that is wanted, in seconds.
_LOOK = 0.05
# An episode that was shown. ``at`` is how far the learner was when it began.
EPISODE = np.dtype(
    [("at", "<i8"), ("version", "<i8"), ("length", "<i8"), ("return", "<f8"), ("seconds", "<f8")]
)


def _number(at: int) -> Any:
    def get(self: Shown) -> int:
        return int(self._numbers[at])

    def put(self: Shown, value: int) -> None:
        self._numbers[at] = value

    return property(get, put)


@dataclass(frozen=True)
class Errand:
    """What a worker must know beside its role to act by itself, and hand over records."""

    ring: Any  # its place
    described: Described
    begun: int  # where the numbers of records are counted
    most: int | None  # steps, or for ever
    share: float  # of its time, at most, to take over weights in
    max_lag: int | None  # versions, beyond which it takes them over whatever that costs


@dataclass(frozen=True)
class Show:
    """What a worker must know beside its role to show how the policy does."""

    ring: Any  # of episodes: its place
    state: int  # where the parent says how far the learner is, and how many videos it wants
    folder: Path | None  # of what is written
    every: int | None  # episodes, of which one is filmed
    fps: int
    nice: int
    repeat: bool  # without waiting for newer weights


class Alone(WorkerPolicy):
    """Acts in a worker that gets no further commands."""

    def __init__(
        self,
        setup: PolicySetup,
        frames: Frames,
        segment: Segment,
        before: Alone | None,
        *,
        replacement_seeds: Sequence[int],
    ) -> None:
        super().__init__(setup, frames, segment, before, replacement_seeds=replacement_seeds)
        self._segment = segment
        self._refresh_at = 0
        self._ring: Any = None
        self._packer: Packer | None = None
        self._at = 0  # the frame that the envs have come to
        self._packed = 0  # and the one up to which records have been handed over

    def _ready(self, errand: Errand, group: int) -> bool:
        """To begin a record: where there is no room for it, it would be old before it is read."""
        progress, ring = self._progress, self._ring
        # It looks again: a quicker actor may have filled the ring, or all are paused.
        while errand.most is None and not progress.stopped:
            if not progress.paused and len(ring) < ring.high:
                break
            began = now()
            progress.blocked[group] = True
            if ring.wait_drained(timeout=_LOOK) and progress.paused:
                sleep_until(now() + _SOON)  # the learner works on copies
            self._unblocked(began, group)
        self._keep_up(errand, group)
        return not progress.stopped

    def _unblocked(self, began: int, group: int) -> None:
        self._progress.blocked[group] = False
        self._progress.blocked_ns[group] += now() - began
        self._refresh_at = 0  # the learner has learned meanwhile

    def _keep_up(self, errand: Errand, group: int) -> None:
        """Take over weights, unless that was done just now and takes long."""
        if self._board is None or (behind := self._board.version - self._version) == 0:
            return
        began = now()
        if began < self._refresh_at and (errand.max_lag is None or behind <= errand.max_lag):
            return
        self.refresh()
        took = now() - began
        self._refresh_at = began + int(took / errand.share)
        self._progress.refreshing_ns[group] += took

    def _begin_anew(self, crew: Crew, envs: slice, report: RolloutReport) -> bool:
        """The envs take the place of lost ones, at the first frame; False if one raised."""
        failed = False
        for block, take in crew:
            block.restore(1)
            failed = report.add_leftovers(1, take()) or failed
        self.carry(1, 0, envs)
        self._policy.begin_episodes(0, envs)
        if failed:
            self._stop_if_told(report)
        return not failed

    def _step(self, crew: Crew, at: int, report: RolloutReport) -> bool:
        """Let the envs step; False if one raised."""
        failed = False
        for block, take in crew:
            if block.step(at):
                failed = report.add_leftovers(at, take()) or failed
        if failed:
            self._stop_if_told(report)
        return not failed

    def _stop_if_told(self, report: RolloutReport) -> None:
        """By what an env raised, which is no error then."""
        raised = [one for one in report.leftovers if not isinstance(one[3].error, StopActors)]
        if len(raised) < len(report.leftovers):
            self._progress.stop()
            report.leftovers = raised

    def act_on(
        self,
        crew: Crew,
        envs: slice,
        group: int,
        errand: Errand,
        *,
        again: bool,
    ) -> RolloutReport:
        """Act for all envs until told to stop, and hand over records.

        ``again``: they take the place of lost ones.
        """
        if self._packer is None:
            self._ring = errand.ring.attach(self._segment)
            _, begun = self._segment.array((self._frames.envs,), np.dtype(np.int64), errand.begun)
            self._packer = Packer(errand.described, self._policy, self._frames, envs, begun)
        packer, progress, steps = self._packer, self._progress, errand.described.steps
        report = RolloutReport()
        if again:
            if not self._begin_anew(crew, envs, report):
                return report
            packer.forget()
            self._at = self._packed = 0
        made = 0
        end = self._frames.count - 1
        handed = now()
        while not progress.stopped and (errand.most is None or made < errand.most):
            at = self._at
            if (steps is None or at == 0) and not self._ready(errand, group):
                break
            packer.versions[at] = self._version
            try:
                took = self._act(at, envs)
            except StopActors:
                progress.stop()
                break
            report.policy_ns += took
            progress.acting_ns[group] += took
            if not self._step(crew, at + 1, report):
                break
            self._at = at = at + 1
            made += 1
            self._policy.after_step(at, envs)
            packer.count(at)
            if at == end or (steps is None and now() - handed > _SOON):
                first, self._packed = self._packed, at
                if not self._hand_over(packer.pack(first, at), group):
                    return report
                handed = now()
            if at == end:
                self.carry(at, 0, envs)
                self._at = self._packed = 0
        if steps is None and self._at > self._packed:
            self._hand_over(packer.pack(self._packed, self._at), group)
            self.carry(self._at, 0, envs)
            self._at = self._packed = 0
        return report

    def _hand_over(self, records: npt.NDArray[Any], group: int) -> bool:
        """Push them, however long that takes; False if they are not wanted any more."""
        began = now()
        sent = self._ring.push_many(records, timeout=0)
        if sent == len(records):
            return True
        self._progress.blocked[group] = True
        while sent < len(records):
            if self._progress.dropped:
                return False
            sent += self._ring.push_many(records[sent:], timeout=_LOOK)
        self._unblocked(began, group)
        return True

    def show(
        self, crew: Crew, envs: slice, env: gym.Env[Any, Any], show: Show, *, again: bool
    ) -> RolloutReport:
        """Episodes of the newest weights, one after the other, until told to stop."""
        os.setpriority(os.PRIO_PROCESS, 0, show.nice)
        ring = show.ring.attach(self._segment)
        state = Shown(*self._segment.array((4,), np.dtype(np.int64), show.state))
        report = RolloutReport()
        if again and not self._begin_anew(crew, envs, report):
            return report
        while not self._progress.stopped:
            wanted = state.wanted > state.filmed
            board = self._board
            if not (wanted or show.repeat or board is None or board.version > self._version):
                board.wait(self._version, timeout=_LOOK)
                continue
            self.refresh()
            episode = np.zeros(1, EPISODE)
            episode["at"], episode["version"] = state.at, self._version
            began = now()
            filmed = wanted or (show.every is not None and state.shown % show.every == 0)
            film = _Film()
            if filmed and show.folder is not None:
                path = show.folder / f"episode-{state.shown:06}.mp4"
                film = _Video(env, envs.start, path, show.fps)
            with film:
                if not self._show_one(crew, envs, episode, film, report):
                    return report
            episode["seconds"] = (now() - began) / 1e9
            state.shown += 1
            state.filmed += wanted
            ring.push_many(episode, timeout=0)
            if show.folder is not None:
                _append(show.folder / "returns.csv", episode[0])
        return report

    def _show_one(
        self,
        crew: Crew,
        envs: slice,
        episode: npt.NDArray[Any],
        film: _Film,
        report: RolloutReport,
    ) -> bool:
        """An episode, from the first frame to the second and back; False if it had no end."""
        frames = self._frames
        film.shoot()
        while not self._progress.stopped:
            try:
                self._act(0, envs)
            except StopActors:
                self._progress.stop()
                return False
            if not self._step(crew, 1, report):
                return False
            self._policy.after_step(1, envs)
            self.carry(1, 0, envs)
            episode["return"] += frames.rewards[1, 0]
            episode["length"] += 1
            if frames.terminated[1, 0] or frames.truncated[1, 0]:
                film.keep()
                return True
            film.shoot()
        return False


class TakePolicyAlone(TakePolicy):
    """The policy that acts on by itself for a worker's envs from now on."""

    policy_class = Alone


class _OnItsOwn(Repeated):
    """A job of a whole worker, given to its first group: the policy acts until told to stop."""

    doing = "acting"
    culprit = ("the policy", "acting")
    settles = "worker"


@dataclass(frozen=True)
class ActOn(_OnItsOwn):
    """The policy acts for all envs of a worker until it is told to stop, and hands over records."""

    group: int
    errand: Errand

    def run(self, host: EnvHost, block: int, frame: int) -> RolloutReport:  # noqa: ARG002
        """Do it in the worker."""
        acting, again = _alone(host)
        return acting.act_on(_crew(host), _everyone(host), self.group, self.errand, again=again)


@dataclass(frozen=True)
class ShowEpisodes(_OnItsOwn):
    """The policy runs episode after episode in the only env of a worker, until told to stop."""

    group: int
    show: Show

    def run(self, host: EnvHost, block: int, frame: int) -> RolloutReport:  # noqa: ARG002
        """Do it in the worker."""
        acting, again = _alone(host)
        return acting.show(_crew(host), _everyone(host), host.envs[0], self.show, again=again)


def _alone(host: EnvHost) -> tuple[Alone, bool]:
    """Return what acts, and whether the envs replaced lost ones, which is told once."""
    acting: Alone | None = host.acting
    assert acting is not None
    again, host.replaced = bool(host.replaced), set()
    return acting, again


def _crew(host: EnvHost) -> Crew:
    def taking(block: int) -> Callable[[], Leftovers]:
        return lambda: host.left_over(block)

    return [(one, taking(block)) for block, one in enumerate(host.blocks)]


def _everyone(host: EnvHost) -> slice:
    return slice(host.first, host.first + len(host.envs))


class Shown:
    """How far the learner is, and what has been shown: four numbers in a segment.

    The first two are the parent's to write, the others the worker's.
    """

    def __init__(self, offset: int, numbers: npt.NDArray[np.int64]) -> None:
        self.offset = offset
        self._numbers = numbers

    at = _number(0)  # of the learner's own counting
    wanted = _number(1)  # films that were asked for
    filmed = _number(2)  # of those
    shown = _number(3)  # episodes


class _Film(Closing):
    """No film: of an episode that is not filmed."""

    def shoot(self) -> None:
        """Take a picture of the env as it is now."""

    def keep(self) -> None:
        """Give the file its name: the episode is over."""

    def close(self) -> None:
        """Remove the file, if it has not been kept."""


class _Video(_Film):
    """What an env looks like, to a file that has its name when it is whole."""

    def __init__(self, env: gym.Env[Any, Any], index: int, path: Path, fps: int) -> None:
        import imageio  # noqa: PLC0415 - only where videos are asked for

        self._env, self._index, self._whole = env, index, path
        self._part = path.with_suffix(".part" + path.suffix)
        with _writing(path):
            self._writer: Any = imageio.get_writer(self._part, fps=fps, macro_block_size=1)

    def shoot(self) -> None:
        """Take a picture of the env as it is now."""
        try:
            picture = self._env.render()
            if not isinstance(picture, np.ndarray):
                raise TypeError(f"it returned {type(picture).__name__}, expected an array")
        except Exception as error:
            raise Raised(self._index, "render()") from error
        with _writing(self._whole):
            self._writer.append_data(picture)

    def keep(self) -> None:
        """Give the file its name: the episode is over."""
        with _writing(self._whole):
            self._writer.close()
            self._part.rename(self._whole)
        self._writer = None

    def close(self) -> None:
        """Remove the file, if it has not been kept."""
        if self._writer is not None:
            with contextlib.suppress(Exception):  # what went wrong before is told
                self._writer.close()
            self._part.unlink(missing_ok=True)


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell of an exception that it is not the policy's: this file could not be written."""
    try:
        yield
    except Exception as error:
        raise Raised(None, f"writing {path}") from error


def _append(path: Path, episode: npt.NDArray[Any]) -> None:
    """A line of a table, which begins with the names of the columns."""
    with _writing(path), path.open("a") as file:
        if file.tell() == 0:
            file.write(",".join(EPISODE.names or ()) + "\n")
        file.write(",".join(repr(value.item()) for value in episode) + "\n")
