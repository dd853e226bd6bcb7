"""Vector environments for gymnasium, and samplers built on them.

    import pysampler

    envs = pysampler.make_vec("CartPole-v1", num_envs=64)  # as gymnasium.make_vec
    observations, infos = envs.reset(seed=1)
    observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    envs.close()

Step environments: ``VectorEnv`` takes a list of functions, ``make_vec`` the id of an environment.

Sample with a policy: ``Rollouts`` returns arrays ``[T, N]``, ``MultiTaskSampler`` samples tasks,
``Actors`` act without waiting for the learner, ``evaluate`` runs whole episodes, and so does
``Watcher`` while you train.

Learn from samples: ``gae``, ``ReplayBuffer``, ``Normalizer``, ``Averaging``, ``Checkpoints``.

``pysampler.errors`` has all exceptions, ``pysampler.sync`` the flags, rings and boards in shared
memory, ``pysampler.adapters`` interfaces for training libraries, ``pysampler.envs`` environments,
and ``pysampler.ray`` the samplers for a cluster. ``pysampler --help`` lists the tools for a shell.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if sys.platform != "linux":
    raise ImportError(
        f"pysampler needs Linux (it is built on futexes, memfds and pidfds); this is {sys.platform}"
    )

try:
    import_module("pysampler._core")
except ModuleNotFoundError as error:
    if error.name != "pysampler._core":
        raise
    raise ImportError(
        f"cannot import pysampler from {__path__[0]}: sources without the compiled module. "
        "To import the installed package, `cd` out of the checkout, or run `pip install -e .` in it"
    ) from None

from pysampler import errors, sync
from pysampler.errors import (
    BusyError,
    ClosedError,
    EnvError,
    EnvTimeoutError,
    HostLostError,
    LayoutError,
    LostError,
    PysamplerError,
    RecordingError,
    StopActors,
    WaitTimeoutError,
    WorkerLostError,
)

if TYPE_CHECKING:
    from pysampler._actors.actor_stats import ActorStats
    from pysampler._actors.actors import Actors
    from pysampler._actors.phases import Phase, Phases
    from pysampler._actors.records import Records
    from pysampler._actors.watcher import Watcher
    from pysampler._learning.averaging import Averaging, AveragingRound
    from pysampler._learning.batch import Batch
    from pysampler._learning.checkpoints import Checkpoints
    from pysampler._learning.episode_statistics import EpisodeStatistics
    from pysampler._learning.replay import ReplayBuffer
    from pysampler._learning.sequences import Sequences
    from pysampler._policies.normalize import Normalizer
    from pysampler._rollouts.collected import Collected
    from pysampler._rollouts.episodes import EpisodeResult, EpisodeSpec
    from pysampler._rollouts.evaluation import evaluate
    from pysampler._rollouts.evaluation_results import Comparison, Evaluation
    from pysampler._rollouts.gae import gae
    from pysampler._rollouts.intervals import Interval
    from pysampler._rollouts.multi_task import MultiTaskSampler, Ready
    from pysampler._rollouts.rollout import Ended, Episode, Rollout
    from pysampler._rollouts.rollouts import Rollouts
    from pysampler._vector.division import Division
    from pysampler._vector.isolation.check import check_isolation
    from pysampler._vector.isolation.verdict import Isolation
    from pysampler._vector.make import install, make_vec, uninstall
    from pysampler._vector.serving import WorkerInfo
    from pysampler._vector.vector_env import VectorEnv
    from pysampler._workers.counters import BatchChoice, SpareUse, Stats, Times
    from pysampler._workers.shared_arrays import share

__all__ = [
    "ActorStats",
    "Actors",
    "Averaging",
    "AveragingRound",
    "Batch",
    "BatchChoice",
    "BusyError",
    "Checkpoints",
    "ClosedError",
    "Collected",
    "Comparison",
    "Division",
    "Ended",
    "EnvError",
    "EnvTimeoutError",
    "Episode",
    "EpisodeResult",
    "EpisodeSpec",
    "EpisodeStatistics",
    "Evaluation",
    "HostLostError",
    "Interval",
    "Isolation",
    "LayoutError",
    "LostError",
    "MultiTaskSampler",
    "Normalizer",
    "Phase",
    "Phases",
    "PysamplerError",
    "Ready",
    "RecordingError",
    "Records",
    "ReplayBuffer",
    "Rollout",
    "Rollouts",
    "Sequences",
    "SpareUse",
    "Stats",
    "StopActors",
    "Times",
    "VectorEnv",
    "WaitTimeoutError",
    "Watcher",
    "WorkerInfo",
    "WorkerLostError",
    "__version__",
    "check_isolation",
    "errors",
    "evaluate",
    "gae",
    "install",
    "make_vec",
    "share",
    "sync",
    "uninstall",
]

# The module that each name is imported from on first use. Imports are lazy so that a worker that
# steps envs loads neither samplers nor learner code.
_HOMES = {
    "ActorStats": "_actors.actor_stats",
    "Actors": "_actors.actors",
    "Averaging": "_learning.averaging",
    "Batch": "_learning.batch",
    "BatchChoice": "_workers.counters",
    "Checkpoints": "_learning.checkpoints",
    "Collected": "_rollouts.collected",
    "Comparison": "_rollouts.evaluation_results",
    "Division": "_vector.division",
    "Ended": "_rollouts.rollout",
    "Episode": "_rollouts.rollout",
    "EpisodeResult": "_rollouts.episodes",
    "EpisodeSpec": "_rollouts.episodes",
    "EpisodeStatistics": "_learning.episode_statistics",
    "Isolation": "_vector.isolation.verdict",
    "Evaluation": "_rollouts.evaluation_results",
    "Interval": "_rollouts.intervals",
    "MultiTaskSampler": "_rollouts.multi_task",
    "Normalizer": "_policies.normalize",
    "Phase": "_actors.phases",
    "Phases": "_actors.phases",
    "Ready": "_rollouts.multi_task",
    "Records": "_actors.records",
    "ReplayBuffer": "_learning.replay",
    "Rollout": "_rollouts.rollout",
    "Rollouts": "_rollouts.rollouts",
    "AveragingRound": "_learning.averaging",
    "Sequences": "_learning.sequences",
    "SpareUse": "_workers.counters",
    "Stats": "_workers.counters",
    "Times": "_workers.counters",
    "VectorEnv": "_vector.vector_env",
    "Watcher": "_actors.watcher",
    "check_isolation": "_vector.isolation.check",
    "WorkerInfo": "_vector.serving",
    "evaluate": "_rollouts.evaluation",
    "gae": "_rollouts.gae",
    "install": "_vector.make",
    "make_vec": "_vector.make",
    "share": "_workers.shared_arrays",
    "uninstall": "_vector.make",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pysampler' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"pysampler.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
