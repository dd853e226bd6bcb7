"""The server of MuJoCo blocks in a worker: simulations in the place of envs, and one real env."""

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

# What a simulation's state is put into, and read from: not what makes an env different.
_MANAGED = {
    *("_np_random", "_np_random_seed", "_elapsed_steps", "_has_reset", "_cached_spec"),
    *("checked_reset", "checked_step", "checked_render", "checked_data_reuse", "close_called"),
    *("_previous_data", "_renderer", "_checked_begin", "_checked_step"),
}
_MISSING = object()


class TaskServer(EnvServer):
    """The simulations of a worker: number ``first`` and following, in groups of the given sizes.

    One real env describes them. For what only an env can do, it is given the state of one of them.
    """

    def __init__(
        self, make_env: Callable[[], gym.Env[Any, Any]], first: int, sizes: Sequence[int]
    ) -> None:
        super().__init__([make_env], first, sizes)
        self.env = self.envs[0]
        self._layers = list(layers_of(self.env))
        self._task, self._limit = task_of(self.env)
        env = self._layers[-1]
        # What has attributes: the wrappers, the env, and the task of a TaskEnv.
        self._owners = [*self._layers]
        self._managed = _MANAGED.union(self._task.attributes)
        self._memory: dict[str, Any] = {}  # of the task of a TaskEnv
        if isinstance(env, TaskEnv):
            self._owners.append(env.task)
            self._memory = env.task.memory
            self._managed = self._managed.union(self._memory)
        # What blocks have copies of, or would not look at: it must not change.
        self._known_attributes = [dict(vars(owner)) for owner in self._owners]
        self._arrays = [
            (name, array, array.copy())
            for known in self._known_attributes
            for name, array in known.items()
            if isinstance(array, np.ndarray) and name not in self._managed
        ]
        self._model = copy.copy(env.model)
        self._model_bytes = _bytes_of(env.model)
        # By env, what was set: the layer, the name and the value.
        self._set: dict[int, dict[tuple[int, str], Any]] = {}
        # By env and render mode, where the camera looks.
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
        """Let the blocks work on these frames, in which infos have ``columns`` already."""
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
        """Put infos in these columns, too, from now on."""
        new = [column for column in columns if column.mask not in self._known]
        self._known.update(column.mask for column in new)
        for block in self.blocks:
            block.add_columns(new)

    def states(self, block: int, envs: Sequence[int]) -> Any:
        """Return the states of some of a block's envs, a row each."""
        first = self.rows(block).start
        with self.blaming(envs[0] if envs else first, "get_state()"):
            return self.blocks[block].states([i - first for i in envs])

    def set_states(self, block: int, envs: Sequence[int], states: Any) -> None:
        """Give some of a block's envs these states."""
        first = self.rows(block).start
        with self.blaming(envs[0] if envs else first, "set_state()"):
            self.blocks[block].set_states([i - first for i in envs], states)

    # -- one simulation as an env ----------------------------------------------------------------

    @contextlib.contextmanager
    def using(self, i: int, doing: str) -> Iterator[gym.Env[Any, Any]]:
        """Yield the real env with the state of simulation ``i``, and take its state over after."""
        with self.blaming(i, doing):
            block, place = self._find(i)
            self._load(block, place)
            for (layer, name), value in self._set.get(i, {}).items():
                setattr(self._owners[layer], name, value)
            self._look(i)
            changed = []
            try:
                yield self.env
            finally:  # what was done before an exception is done
                self._looked(i)
                changed = self._undo(i, block)
                self._save(block, place)
            if changed:
                raise cannot_change(changed)

    def kept(self, result: Any) -> Any:
        """Return a copy of what a call returned: it may be part of the env, which others use."""
        try:
            return copy.deepcopy(result)
        except Exception:  # it cannot be copied, and is not likely to be part of a state
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
            vars(env).pop(name, None)  # that of another
        block.task.write_to(env, place)
        for layer in self._layers:
            if isinstance(layer, PassiveEnvChecker):  # the trial has had its checks
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
        # An env that has begun and has no generator makes one.
        block.rngs[place] = env.np_random if block.begun[place] else env._np_random
        block.rng_seeds[place] = env._np_random_seed
        for layer in self._layers:
            if isinstance(layer, TimeLimit) and layer._elapsed_steps is not None:
                block.elapsed[place] = layer._elapsed_steps
            elif isinstance(layer, OrderEnforcing) and vars(layer)["_has_reset"]:
                block.begin_episode(place)
        block.task.read_from(env, place)

    def _look(self, i: int) -> None:
        """Let each camera look where it would if it were that of env ``i``."""
        for mode, viewer in self._viewers().items():
            where = self._looks_at.get((i, mode))
            if where is not None:
                viewer.cam.lookat[:] = where
            elif "lookat" not in (self._layers[-1].mujoco_renderer.default_cam_config or {}):
                # As when a viewer is made.
                viewer.cam.lookat[:] = np.median(self._layers[-1].data.geom_xpos, axis=0)

    def _looked(self, i: int) -> None:
        for mode, viewer in self._viewers().items():
            self._looks_at[i, mode] = np.array(viewer.cam.lookat)

    def _viewers(self) -> dict[str, Any]:
        viewers: dict[str, Any] = getattr(
            getattr(self._layers[-1], "mujoco_renderer", None), "_viewers", {}
        )
        return viewers

    def _undo(self, i: int, block: TaskBlock) -> list[str]:
        """Undo what was set on the env, and return what blocks would not have noticed.

        New attributes are noted, as env ``i``'s own.
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
        """Return the attributes that methods of the user's task set, as those of the block have."""
        before = self._known_attributes[-1]
        return {name for name, value in vars(block.task).items() if value is not before.get(name)}

    def _undo_memory(self) -> list[str]:
        """Put the arrays that the task of the env remembers back in their places."""
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
    """Copy all numbers of a model, or of a part of one such as its options."""
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
    """Prepare this process, and make its simulations."""
    prepare(specs, init)
    return TaskServer(make_env, first, sizes)
