"""pysampler: sample Python reinforcement-learning environments in parallel.

A tour of the code, from the bottom up:

- ``csrc/`` holds the primitives, a header each, without Python: ``clock``, ``futex``, ``wait`` (how
  to wait), ``position``, ``flag``, ``doorbell`` (who wakes whom), ``ring``, ``shared_ring``,
  ``byte_ring``, ``board`` (what travels), ``segment``, ``watch`` (where it lies, which process has
  died). ``csrc/bindings/`` makes ``pysampler._core`` of them.
- ``sync`` makes that usable: handles that pickle, NumPy views, errors. ``errors`` has the one tree
  of exceptions.
- ``_workers``: pools of processes that run jobs; recovery, the nursery, the worker's loop, mail.
- ``_frames``: a space as fields, frames in shared memory, columns of infos.
- ``_vector``: gymnasium's vector env on a pool, the host of Python envs, partial batches.
- ``_policies``: calling and checking a policy; its weights, states and random numbers.
- ``_rollouts`` and ``_actors``: samplers, which are two ways to walk the frames.
- ``_learning``: a replay buffer, averaging, checkpoints.
- ``envs``: envs with tasks. ``adapters``: interfaces of training libraries.

Each of these is a package whose docstring says what it knows and what it does not. Imports point
from the last to the first: ``tests/test_layers.py`` has the order.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

if sys.platform != "linux":
    raise ImportError(
        f"pysampler needs Linux (it is built on futexes, memfds and pidfds); this is {sys.platform}"
    )

from pysampler import errors, sync

if TYPE_CHECKING:
    from pysampler._actors.actors import Actors, ActorStats, actors
    from pysampler._actors.phases import Phase, phases
    from pysampler._actors.records import Records
    from pysampler._actors.watcher import Watcher, watch
    from pysampler._learning.averaging import Averaging
    from pysampler._learning.checkpoints import Checkpoints
    from pysampler._learning.replay import Replay
    from pysampler._rollouts.evaluation import Evaluation, evaluate
    from pysampler._rollouts.rollout import gae
    from pysampler._rollouts.rollouts import Rollouts, rollouts
    from pysampler._rollouts.tasks import Collected, MultiTaskSampler
    from pysampler._vector.make import install, make_vec, uninstall
    from pysampler._vector.vector_env import VectorEnv

__all__ = [
    "ActorStats",
    "Actors",
    "Averaging",
    "Checkpoints",
    "Collected",
    "Evaluation",
    "MultiTaskSampler",
    "Phase",
    "Records",
    "Replay",
    "Rollouts",
    "VectorEnv",
    "Watcher",
    "__version__",
    "actors",
    "errors",
    "evaluate",
    "gae",
    "install",
    "make_vec",
    "phases",
    "rollouts",
    "sync",
    "uninstall",
    "watch",
]

# Where each name is imported from when it is used first: a worker that steps envs imports neither
# samplers nor what learners keep.
_HOMES = {
    "ActorStats": "_actors.actors",
    "Actors": "_actors.actors",
    "Averaging": "_learning.averaging",
    "Checkpoints": "_learning.checkpoints",
    "Collected": "_rollouts.tasks",
    "Evaluation": "_rollouts.evaluation",
    "MultiTaskSampler": "_rollouts.tasks",
    "Phase": "_actors.phases",
    "Records": "_actors.records",
    "Replay": "_learning.replay",
    "Rollouts": "_rollouts.rollouts",
    "VectorEnv": "_vector.vector_env",
    "Watcher": "_actors.watcher",
    "actors": "_actors.actors",
    "evaluate": "_rollouts.evaluation",
    "gae": "_rollouts.rollout",
    "install": "_vector.make",
    "make_vec": "_vector.make",
    "phases": "_actors.phases",
    "rollouts": "_rollouts.rollouts",
    "uninstall": "_vector.make",
    "watch": "_actors.watcher",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pysampler' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"pysampler.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
