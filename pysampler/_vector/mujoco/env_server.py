"""TaskServer: the env server of MuJoCo blocks, which simulates a worker's envs together.

It has simulations in place of envs, and one real env. For rare calls (``apply``, ``get_attr``,
rendering) it loads the state of one simulation into the real env, and saves it back afterwards.
Changes that blocks would not notice (attributes, the model) are undone and raise an error.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from pysampler._vector.env_server import EnvServer, layers_of, prepare
from pysampler._vector.mujoco.block import TaskBlock
from pysampler._vector.mujoco.known import task_of
from pysampler.envs.mujoco._checks import cannot_change
from pysampler.envs.mujoco._fields import STATE, load
from pysampler.envs.mujoco.env import TaskEnv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import gymnasium as gym

    from pysampler._frames.frames import Frames
    from pysampler._frames.infos import Column
    from pysampler._vector.env_server import EnvDescription
    from pysampler.sync import Segment

__all__ = ["TaskServer", "make_task_server"]

# Attributes that hold the state of a simulation, or caches: calls may change these.
_MANAGED = {
    *("_np_random", "_np_random_seed", "_elapsed_steps", "_has_reset", "_cached_spec"),
    *("checked_reset", "checked_step", "checked_render", "checked_data_reuse", "close_called"),
    *("_previous_data", "_renderer", "_checked_begin", "_checked_step"),
}
_MISSING = object()


class TaskServer(EnvServer):
    """The simulations of a worker, from number ``first`` on, in groups of the given sizes."""

    def __init__(
        self, make_env: Callable[[], gym.Env[Any, Any]], first: int, sizes: Sequence[int]
    ) -> None:
        super().__init__([make_env], first, sizes)
        self.env = self.envs[0]
        self._layers = list(layers_of(self.env))
        self._task, self._limit = task_of(self.env)
        env = self._layers[-1]
        # The objects that hold attributes: the wrappers, the env, and the task of a TaskEnv.
        self._owners = [*self._layers]
        self._managed = _MANAGED.union(self._task.attributes)
        self._memory: dict[str, Any] = {}  # of the task of a TaskEnv
        if isinstance(env, TaskEnv):
            self._owners.append(env.task)
            self._memory = env.task.memory
            self._managed = self._managed.union(self._memory)
        # Blocks have copies of these or never read them, so changes would have no effect.
        self._known_attributes = [dict(vars(owner)) for owner in self._owners]
        self._arrays = [
            (name, array, array.copy())
            for known in self._known_attributes
            for name, array in known.items()
            if isinstance(array, np.ndarray) and name not in self._managed
        ]
        self._model = copy.copy(env.model)
        self._model_bytes = _bytes_of(env.model)
        # For each env, the values of new attributes, by layer and name.
        self._set: dict[int, dict[tuple[int, str], Any]] = {}
        # The point that the camera looks at, by env and render mode.
        self._looks_at: dict[tuple[int, str], Any] = {}

    @property
    def count(self) -> int:
        """The number of simulations."""
        return sum(self.sizes)

    def describe(self) -> EnvDescription:
        """Return the spaces of every env, and the name and metadata of the real one."""
        one = super().describe()
        return replace(
            one,
            name=type(self._task).__name__ if self.env.spec is None else one.name,
            observation_spaces=one.observation_spaces * self.count,
            action_spaces=one.action_spaces * self.count,
        )

    def attach(
        self,
        frames: Frames,
        segment: Segment,
        autoreset: str,
        keep: str,
        columns: Sequence[Column],
    ) -> None:
        """Move the blocks to these frames, in which infos already have ``columns``."""
        self.frames = frames
        self.segment = segment
        self.acting = None
        if not self.blocks:
            first = self.first
            for size in self.sizes:
                block = TaskBlock(self._task, size, first, self._limit, self._meter)
                self.blocks.append(block)
                first += size
        self._known = set()
        for block in self.blocks:
            block.use(frames, autoreset, keep)
        self.add_columns(columns)

    def add_columns(self, columns: Sequence[Column]) -> None:
        """Write infos to these columns too."""
        new = [column for column in columns if column.mask not in self._known]
        self._known.update(column.mask for column in new)
        for block in self.blocks:
            block.add_columns(new)

    def states(self, block: int, envs: Sequence[int]) -> Any:
        """Return the states of some of a block's envs, one row each."""
        first = self.rows(block).start
        with self.blaming(envs[0] if envs else first, "get_state()"):
            return self.blocks[block].states([i - first for i in envs])

    def set_states(self, block: int, envs: Sequence[int], states: Any) -> None:
        """Set the states of some of a block's envs."""
        first = self.rows(block).start
        with self.blaming(envs[0] if envs else first, "set_state()"):
            self.blocks[block].set_states([i - first for i in envs], states)

    # -- one simulation as an env ----------------------------------------------------------------

    @contextlib.contextmanager
    def using(self, i: int, doing: str) -> Iterator[gym.Env[Any, Any]]:
        """Yield the real env with the state of simulation ``i``, and save its state afterwards."""
        with self.blaming(i, doing):
            block, place = self._find(i)
            self._load(block, place)
            for (layer, name), value in self._set.get(i, {}).items():
                setattr(self._owners[layer], name, value)
            self._aim_cameras(i)
            changed = []
            try:
                yield self.env
            finally:  # changes made before an exception remain
                self._save_cameras(i)
                changed = self._undo(i, block)
                self._save(block, place)
            if changed:
                raise cannot_change(changed)

    def kept(self, result: Any) -> Any:
        """Return a copy of a result: it may be part of the env, which serves other simulations."""
        try:
            return copy.deepcopy(result)
        except Exception:  # not copyable, so probably not part of a state
            return result

    def _find(self, i: int) -> tuple[TaskBlock, int]:
        for block in self.blocks:
            if i < block.count:
                return block, i
            i -= block.count
        raise IndexError(i)

    def _load(self, block: TaskBlock, place: int) -> None:
        env = self._layers[-1]
        fields = {name: array[place] for name, array in block.derived.items()}
        load(env.model, env.data, block.rows[place], fields)
        env._np_random = block.rngs[place]
        env._np_random_seed = block.rng_seeds[place]
        for name in block.task.attributes:
            vars(env).pop(name, None)  # from another simulation
        block.task.write_to(env, place)
        for layer in self._layers:
            if isinstance(layer, PassiveEnvChecker):  # the trial ran its checks
                layer.checked_reset = layer.checked_step = layer.checked_data_reuse = True
            elif isinstance(layer, TimeLimit):
                steps: Any = int(block.elapsed[place]) if block.begun[place] else None
                layer._elapsed_steps = steps
            elif isinstance(layer, OrderEnforcing):
                vars(layer)["_has_reset"] = bool(block.begun[place])

    def _save(self, block: TaskBlock, place: int) -> None:
        env = self._layers[-1]
        row = np.empty_like(block.rows[place])
        mujoco.mj_getState(env.model, env.data, row, STATE)
        block.rows[place] = row
        for name, array in block.derived.items():
            array[place] = getattr(env.data, name)
        # Reading env.np_random makes a generator if an env that was reset has none.
        block.rngs[place] = env.np_random if block.begun[place] else env._np_random
        block.rng_seeds[place] = env._np_random_seed
        for layer in self._layers:
            if isinstance(layer, TimeLimit) and layer._elapsed_steps is not None:
                block.elapsed[place] = layer._elapsed_steps
            elif isinstance(layer, OrderEnforcing) and vars(layer)["_has_reset"]:
                block.begin_episode(place)
        block.task.read_from(env, place)

    def _aim_cameras(self, i: int) -> None:
        """Point each camera where the camera of env ``i`` would point."""
        for mode, viewer in self._viewers().items():
            where = self._looks_at.get((i, mode))
            if where is not None:
                viewer.cam.lookat[:] = where
            elif "lookat" not in (self._layers[-1].mujoco_renderer.default_cam_config or {}):
                # The default of a new viewer.
                viewer.cam.lookat[:] = np.median(self._layers[-1].data.geom_xpos, axis=0)

    def _save_cameras(self, i: int) -> None:
        for mode, viewer in self._viewers().items():
            self._looks_at[i, mode] = np.array(viewer.cam.lookat)

    def _viewers(self) -> dict[str, Any]:
        viewers: dict[str, Any] = getattr(
            getattr(self._layers[-1], "mujoco_renderer", None), "_viewers", {}
        )
        return viewers

    def _undo(self, i: int, block: TaskBlock) -> list[str]:
        """Undo changes of attributes and the model; return the names that blocks do not support.

        New attributes are allowed: they are kept for env ``i``.
        """
        changed, own = [], {}
        for depth, (layer, known) in enumerate(
            zip(self._owners, self._known_attributes, strict=True)
        ):
            of_task = depth == len(self._layers)
            by_methods = self._set_by_methods(block) if of_task else set()
            for name, value in list(vars(layer).items()):
                if name in self._managed or value is known.get(name, _MISSING):
                    continue
                delattr(layer, name)
                if name in by_methods:
                    continue
                if name in known or hasattr(type(layer), name):
                    changed.append(name)
                else:
                    own[depth, name] = value
            for name in known.keys() - vars(layer).keys() - self._managed:
                vars(layer)[name] = known[name]
                if name not in changed and name not in by_methods:
                    changed.append(name)
        changed += self._undo_memory()
        for name, array, numbers in self._arrays:
            if not np.array_equal(array, numbers):
                array[...] = numbers
                changed.append(name)
        model = self._layers[-1].model
        if _bytes_of(model) != self._model_bytes:
            _copy_fields(self._model, model)
            changed.append("model")
        self._set[i] = own
        return changed

    def _set_by_methods(self, block: TaskBlock) -> set[str]:
        """Return the attributes that methods of the user's task set, judged by the block's task."""
        before = self._known_attributes[-1]
        return {name for name, value in vars(block.task).items() if value is not before.get(name)}

    def _undo_memory(self) -> list[str]:
        """Put the memory arrays back into the env's task, with any new values copied in."""
        changed = []
        for name, array in self._memory.items():
            attributes = vars(self._owners[-1])
            value = attributes.get(name)
            if value is array:
                continue
            attributes[name] = array
            if isinstance(value, np.ndarray) and (value.dtype, value.shape) == (
                array.dtype,
                array.shape,
            ):
                array[...] = value
            else:
                changed.append(name)
        return changed


def _bytes_of(model: mujoco.MjModel) -> bytes:
    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def _copy_fields(source: Any, target: Any) -> None:
    """Copy all numbers of a model, or of a part of it such as its options."""
    for name in dir(source):
        value = getattr(source, name, None)
        if name.startswith("_") or callable(value):
            continue
        if isinstance(value, np.ndarray):
            getattr(target, name)[...] = value
        elif isinstance(value, (int, float)):
            if getattr(target, name) != value:
                setattr(target, name, value)
        elif type(value).__module__ == mujoco.MjModel.__module__:
            _copy_fields(value, getattr(target, name))


def make_task_server(
    make_env: Callable[[], gym.Env[Any, Any]],
    first: int,
    sizes: Sequence[int],
    specs: bytes,
    init: Callable[[], Any] | None,
) -> TaskServer:
    """Prepare this process and make its simulations."""
    prepare(specs, init)
    return TaskServer(make_env, first, sizes)
