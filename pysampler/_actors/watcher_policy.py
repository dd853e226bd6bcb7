"""WatcherPolicy: runs episode after episode in a watcher's worker, and films some of them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._actors.free_running_policy import CHECK_SECONDS, FreeRunningPolicy, envs_of
from pysampler._policies.worker_policy import RolloutReport, TakePolicy
from pysampler._vector.video import NoVideo, Video, naming_file
from pysampler.errors import StopActors
from pysampler.sync import now

if TYPE_CHECKING:
    import numpy.typing as npt

    from pysampler._vector.env_server import EnvServer
    from pysampler.sync import Segment

__all__ = ["EPISODE", "TakeWatcherPolicy", "WatcherSetup", "watcher_state"]

# An episode of a watcher. ``at`` is the learner's count when it began.
EPISODE = np.dtype(
    [("at", "<i8"), ("version", "<i8"), ("length", "<i8"), ("return", "<f8"), ("seconds", "<f8")]
)


@dataclass(frozen=True)
class WatcherSetup:
    """The data that a watcher's worker needs in addition to its policy.

    Attributes:
        ring: The place of the ring that episodes are pushed to.
        state: The place of ``watcher_state`` in the segment.
        folder: The directory to write files to.
        video_every: Film every n-th episode, beginning with the first.
        fps: Frames per second of videos.
        nice: The nice value of the worker.
        repeat: Whether to run episodes without waiting for newer weights.
    """

    ring: Any
    state: int
    folder: Path | None
    video_every: int | None
    fps: int
    nice: int
    repeat: bool


# Numbers in a segment. The parent writes the learner's count (``at``) and the videos requested by
# ``film()``; the worker the version of the weights of its last episode (``shown``), how many videos
# it made, the episodes that have ended, and how many of these found the ring full.
_NUMBERS = "at shown videos_requested videos_made episodes missing"
_STATE = np.dtype([(name, "<i8") for name in _NUMBERS.split()])


def watcher_state(segment: Segment, offset: int | None = None) -> tuple[int, Any]:
    """Return the place of a watcher's numbers in a segment, and the numbers by name."""
    offset, numbers = segment.array((1,), _STATE, offset)
    return offset, numbers.view(np.recarray)[0]


class WatcherPolicy(FreeRunningPolicy):
    """Runs episodes in a worker's only env, each with the newest weights."""

    _raw: Any = ()  # the first observation of the next episode, an array for each leaf

    def run(
        self,
        server: EnvServer,
        group: int,  # noqa: ARG002
        setup: WatcherSetup,
        *,
        is_replacement: bool,
    ) -> RolloutReport:
        """Run one episode after the other until stopped."""
        # Only root may lower it.
        os.setpriority(os.PRIO_PROCESS, 0, max(setup.nice, os.getpriority(os.PRIO_PROCESS, 0)))
        ring = setup.ring.attach(self._segment)
        _, state = watcher_state(self._segment, setup.state)
        report = RolloutReport()
        if is_replacement and not self._restore(server, report):
            return report
        while not self.progress.stopped:
            requested = state.videos_requested > state.videos_made
            board = self._board
            if not (requested or setup.repeat or board is None or board.version > state.shown):
                board.wait(int(state.shown), timeout=CHECK_SECONDS)
                continue
            self.refresh()
            self.refresh_statistics()
            if self._raw:  # the episode before has begun this one, with its weights and statistics
                for leaf, raw in zip(self._frames.observations, self._raw, strict=True):
                    leaf[0] = raw
                self._policy.after_reset(0, envs_of(server))
            episode = np.zeros(1, EPISODE)
            episode["at"], episode["version"] = state.at, self._version
            began, video = now(), NoVideo()
            number, every = state.episodes, setup.video_every
            if setup.folder is not None and (requested or (every and number % every == 0)):
                path = setup.folder / f"episode-{number:06}.mp4"
                video = Video(server.envs[0], server.first, path, setup.fps)
            with video:
                if not self._run_episode(server, episode, video, report):
                    return report
            episode["seconds"] = (now() - began) / 1e9
            state.episodes += 1
            state.shown = self._version
            state.videos_made += requested
            try:
                if setup.folder is not None:  # first, so that the table has every reported episode
                    _append(setup.folder / "returns.csv", episode[0])
            finally:
                state.missing += 1 - ring.push_many(episode, timeout=0)
        return report

    def _run_episode(
        self, server: EnvServer, episode: npt.NDArray[Any], video: NoVideo, report: RolloutReport
    ) -> bool:
        """Run an episode between the first two frames; return whether it has ended."""
        frames, envs = self._frames, envs_of(server)
        video.shoot()
        while not self.progress.stopped:
            try:
                self._policy.act([(0, server.first, 1)])
            except StopActors:
                self.progress.stop()
                return False
            if not self._step(server, 1, report):
                return False
            if over := bool(frames.terminated[1, 0] or frames.truncated[1, 0]):
                self._raw = [leaf[1].copy() for leaf in frames.observations]
            self._policy.after_step(1, envs)
            self._policy.carry(1, 0, envs)
            episode["return"] += frames.rewards[1, 0]
            episode["length"] += 1
            if over:
                video.keep()
                return True
            video.shoot()
        return False


class TakeWatcherPolicy(TakePolicy):
    """Sets the policy of a watcher's worker."""

    policy_class = WatcherPolicy


def _append(path: Path, episode: npt.NDArray[Any]) -> None:
    """Append an episode to a CSV table with a header line."""
    row = ",".join(repr(value.item()) for value in episode) + "\n"
    with naming_file(path), path.open("ab", buffering=0) as file:
        size = file.tell()
        rest = (("" if size else ",".join(EPISODE.names or ()) + "\n") + row).encode()
        try:
            while rest:  # an almost full disk may take only a part
                rest = rest[file.write(rest) :]
        except OSError:
            file.truncate(size)
            raise
