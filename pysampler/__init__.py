"""pysampler: sample Python reinforcement-learning environments in parallel.

A tour of the code, from the bottom up:

- ``csrc/`` holds the primitives, a header each, no Python in it: ``clock``, ``futex``, ``wait``
  (how to wait), ``position``, ``flag``, ``doorbell`` (who wakes whom), ``ring``, ``shared_ring``,
  ``byte_ring``, ``board`` (what travels), ``segment``, ``watch`` (where it lies, who has died).
- ``csrc/bindings/`` makes of them ``pysampler._core``.
- ``pysampler.sync`` is that for people: handles that pickle, NumPy views, errors.
- ``pysampler.errors`` is the one tree of what can go wrong; ``closing`` is a ``with`` block.
- ``spec`` (a space as fields), ``frames`` (the arrays they lie in), ``infos`` (columns for dicts),
  ``remote`` (pickles and exceptions between processes), ``mail`` (the side channel), ``stats``
  (counters) are what both sides of a pool know.
- ``policies`` is what acts, and writes to frames what it says; ``acting`` is that in a worker.
- ``block`` hosts envs, ``worker`` is a process around it, ``nursery`` starts such processes, most
  of them through ``nursery_process``; ``processes`` attaches and replaces those of a pool.
- ``pool`` commands workers and waits for them, ``local`` is the same without any; ``results`` is
  what came back, as a vector env returns it; ``recording`` is in which batches.
- ``piped`` are envs behind a worker function of the user's.
- ``vector_env`` is gymnasium's ``AsyncVectorEnv`` on a pool; ``make`` makes it by name.
- ``borrowing`` is what walks the frames of a vector env in its place, on a ``lease``. ``rollout``
  is T steps of a policy; ``rollouts`` samples them, with the policy in one of two ``places``, and
  a ``tally`` of what they were. ``evaluation`` counts episodes, ``tasks`` samples many tasks, of
  which ``envs.meta`` has some; ``replay`` keeps transitions.
- ``alone`` is a worker that acts by itself, and hands over ``records``; ``detached`` is how its
  parent sees it: ``actors`` for a learner, in ``phases`` perhaps, and a ``watcher``. ``averaging``
  is of ``trainers``, which learn where they act. ``checkpoints`` are what to go on from.
"""

import sys

__version__ = "0.1.0.dev0"

if sys.platform != "linux":
    raise ImportError(
        f"pysampler needs Linux (it is built on futexes, memfds and pidfds); this is {sys.platform}"
    )

from pysampler import errors, sync
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
