"""Checks of the arguments of a vector env and its methods, before anything is started or sent."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_args

import gymnasium as gym
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils.shared_memory import create_shared_memory

from pysampler._common.numbers import byte_count, is_real, refusal, true_or_false, whole_number
from pysampler._frames.spec import Spec, leaves
from pysampler._workers.launcher import CONTEXTS
from pysampler._workers.processes import WorkerAssignment
from pysampler._workers.recovery import Faults
from pysampler.sync import now, usable_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

Infos = Literal["all", "final", "none"]
OnLoss = Literal["raise", "restart"]
OnHang = Literal["raise", "wait", "restart"]
Wait = Literal["adaptive", "spin", "yield", "park"]

# The longest timeout, in seconds: 30 years.
LONGEST = 1e9
# For each option, (spin, yield) in ns before a wait parks; None: learned.
_POLICIES: dict[Wait, tuple[int, int] | None] = {
    "adaptive": None,
    "spin": (10**12, 0),
    "yield": (0, 10**6),
    "park": (0, 0),
}


def checked(given: Mapping[str, Any]) -> SimpleNamespace:
    """Return the options of a vector env as they are used, or raise.

    Besides those it has ``process`` (how workers are started), ``faults``, ``policy`` (nanoseconds
    that waits spin and yield before they park; None: learned), ``modules`` (``preload``), and
    ``why_python``.
    """
    doing = "make vector env"
    options = SimpleNamespace(**given)
    options.env_fns = env_fns(options.env_fns)
    options.shared_memory = shared_memory(options.shared_memory)
    for name in ("copy", "check_actions", "seed_globals"):
        setattr(options, name, true_or_false(doing, name, given[name]))
    if options.worker is not None:
        raise TypeError(
            f"cannot {doing}: worker {options.worker!r}, expected None: workers run a loop of "
            "pysampler; wrap the envs to change what they do"
        )
    options.autoreset_mode = autoreset_mode(options.autoreset_mode)
    options.max_concurrency = max_concurrency(options.max_concurrency)
    for name in ("groups", "frames"):
        setattr(options, name, whole_number(doing, name, given[name], minimum=1))
    one_of("wait", options.wait, get_args(Wait))
    one_of("infos", options.infos, get_args(Infos))
    options.policy = _POLICIES[options.wait]
    options.faults = faults(doing, **{field.name: given[field.name] for field in fields(Faults)})
    options.native = word_or_bool("native", options.native, "auto")
    options.isolate = word_or_bool("isolate", options.isolate, "check")
    options.process = context(options.context)
    if options.process == "threads":
        refuse("context 'threads'", given)
    options.why_python = why_python(
        options.native, options.observation_mode, seed_globals=options.seed_globals
    )
    options.modules = preload(options.preload)
    return options


def one_of(what: str, got: Any, expected: Iterable[str], doing: str = "make vector env") -> None:
    if got not in expected:
        raise refusal(doing, what, got, "one of " + ", ".join(map(repr, expected)))


def faults(
    doing: str,
    on_worker_loss: OnLoss,
    max_restarts: int,
    restart_window: float,
    step_timeout: float | None = None,
    on_hang: OnHang = "raise",
    recycle_after: int | None = None,
    recycle_above: int | str | None = None,
) -> Faults:
    """Return the options for lost workers and late envs, or raise ValueError."""
    one_of("on_worker_loss", on_worker_loss, get_args(OnLoss), doing)
    one_of("on_hang", on_hang, get_args(OnHang), doing)
    max_restarts = whole_number(doing, "max_restarts", max_restarts, 0)
    if not (is_real(restart_window, 0) and restart_window > 0):
        raise ValueError(f"cannot {doing}: restart_window {restart_window!r}, expected seconds > 0")
    if step_timeout is not None and not (is_real(step_timeout, 0) and 0 < step_timeout <= LONGEST):
        expected = f"seconds > 0, up to {LONGEST:.0e}, or None: no time-out"
        raise ValueError(f"cannot {doing}: step_timeout {step_timeout!r}, expected {expected}")
    if on_hang != "raise" and step_timeout is None:
        raise ValueError(
            f"cannot {doing}: on_hang {on_hang!r} without a step_timeout, expected the seconds "
            "after which an env counts as hanging"
        )
    if recycle_after is not None:
        recycle_after = whole_number(doing, "recycle_after", recycle_after, 1)
    above = recycle_above
    recycles = recycle_after, None if above is None else byte_count(doing, "recycle_above", above)
    return Faults(on_worker_loss, max_restarts, restart_window, step_timeout, on_hang, *recycles)


def shared_memory(given: Any) -> bool:
    """Return ``given``, or raise TypeError: it is where people put the number of workers."""
    if not isinstance(given, (bool, np.bool_)):
        raise TypeError(
            f"cannot make vector env: shared_memory {given!r}, expected True or False; the number "
            "of workers is num_workers=..."
        )
    return bool(given)


def env_fns(given: Iterable[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return ``given`` as a list of functions, or raise."""
    if not isinstance(given, Iterable) or isinstance(given, str):
        by_id = f"; make_vec({given!r}, num_envs) makes envs by their id"
        raise TypeError(
            f"cannot make vector env: env_fns {given!r}, expected a list of functions that each "
            "make an env" + (by_id if isinstance(given, str) else "")
        )
    functions = list(given)
    if not functions:
        raise ValueError("cannot make vector env: no env_fns, expected at least one")
    for i, function in enumerate(functions):
        if not callable(function):
            raise TypeError(
                f"cannot make vector env: env_fns[{i}] is a {type(function).__name__}, expected a "
                "function that makes an env"
            )
    return functions


def autoreset_mode(given: str | AutoresetMode) -> AutoresetMode:
    """Return ``given`` as one of gymnasium's modes, or raise ValueError."""
    try:
        return AutoresetMode(given)
    except ValueError:
        modes = " or ".join(f"{mode} ({mode.value!r})" for mode in AutoresetMode)
        raise refusal("make vector env", "autoreset_mode", given, modes) from None


def context(given: str | None, doing: str = "make vector env") -> str:
    """Return how workers are started, or raise ValueError."""
    if given in (None, "forkserver"):
        return "forkserver"
    one_of("context", given, (*CONTEXTS, "threads"), doing)
    return given


def preload(given: Sequence[str] | None) -> list[str] | None:
    """Return ``given`` as a list of module names, or raise ValueError."""
    if given is None:
        return None
    if isinstance(given, str):
        expected = f"a list of names of modules: [{given!r}]"
        raise refusal("make vector env", "preload", given, expected)
    names = list(given)
    for name in names:
        # To find a submodule would import its package.
        package = name.partition(".")[0] if isinstance(name, str) else ""
        if not package or (package not in sys.modules and find_spec(package) is None):
            expected = "the name of a module that can be imported"
            raise refusal("make vector env", "preload", name, expected)
    return names


def wrappers(given: Iterable[Callable[[Any], Any]] | None) -> tuple[Callable[[Any], Any], ...]:
    """Return the functions that wrap each env as a tuple, or raise TypeError."""
    every = (None,) if callable(given) else tuple(given or ())
    if not all(map(callable, every)):
        raise TypeError(
            f"cannot make vector env: wrappers {given!r}, expected a list of functions or classes"
        )
    return every


def workers(given: int | None, envs: int, most: int | None) -> int:
    """Return the number of workers, or raise ValueError.

    Each worker steps one env at a time, so ``most`` also limits how many envs step at once.
    """
    wanted = (
        usable_cpus() if given is None else whole_number("make vector env", "num_workers", given, 0)
    )
    return min(wanted, envs, envs if most is None else int(most))


def main_envs(given: int, envs: int) -> int:
    """Return the number of envs that this process steps beside workers, or raise ValueError."""
    inline = whole_number("make vector env", "main_envs", given, 0)
    if inline >= envs:
        raise ValueError(
            f"cannot make vector env: main_envs {inline}, expected fewer than the {envs} envs; "
            "num_workers=0 steps all of them in this process"
        )
    return inline


def max_concurrency(given: int | None) -> int | None:
    """Return the largest number of processes that step envs, or raise ValueError."""
    # gymnasium's messages
    if given is not None and not isinstance(given, (int, np.integer)):
        raise ValueError(f"`max_concurrency` must be an integer or None, got {type(given)}.")
    if given is not None and given < 1:
        raise ValueError(f"`max_concurrency` must be a positive or None, got {given}.")
    return given


def assignments(envs: int, workers: int, groups: int, first: int = 0) -> list[WorkerAssignment]:
    """Divide the envs from ``first`` on between workers and groups, in order and evenly."""
    all_shares = []
    for count in parts(envs, workers):
        all_shares.append(WorkerAssignment(first, tuple(parts(count, min(groups, count)))))
        first += count
    return all_shares


def parts(count: int, parts: int) -> list[int]:
    """Divide a number into parts that differ by at most one, the larger ones first."""
    return [count // parts + (i < count % parts) for i in range(parts)]


def seeds(given: Any, envs: int) -> list[int | None]:
    """Return a seed for each env, or raise."""
    if given is None:
        return [None] * envs
    if isinstance(given, (int, np.integer)):
        return [int(given) + i for i in range(envs)]
    if isinstance(given, (str, bytes)) or not hasattr(given, "__len__"):
        raise TypeError(
            f"cannot reset: seed {given!r}, expected a whole number, a list with one for each env, "
            "or None"
        )
    if len(given) != envs:
        raise ValueError(
            f"If seeds are passed as a list the length must match num_envs={envs} but got "
            f"length={len(given)}."
        )
    return list(given)


def indices(given: Any, envs: int) -> list[int]:
    """Return ``given`` as a list of env indices, or raise."""
    chosen: list[int] = env_ids(given).tolist()
    if bad := [i for i in chosen if not 0 <= i < envs]:
        raise IndexError(f"cannot choose env {bad[0]}: expected indices below {envs}")
    return chosen


def rows(given: Any) -> npt.NDArray[Any]:
    """Return states, given as an array or a list of rows, as one array, or raise ValueError."""
    array: npt.NDArray[Any]
    if isinstance(given, np.void):  # iterates over its fields
        raise ValueError("cannot set state: one row, expected an array: for row i, states[i:i+1]")
    if isinstance(given, np.ndarray):
        array = given
    else:
        each = list(given)
        native = bool(each) and isinstance(each[0], np.void)
        array = np.empty(len(each), each[0].dtype if native else object)
        for row, one in enumerate(each):
            array[row] = one
    if array.ndim != 1:
        raise ValueError(f"cannot set state: an array of {array.ndim} dimensions, expected one")
    return array


def env_ids(given: Any) -> npt.NDArray[np.int64]:
    """Return ``given`` as an array of whole numbers, or raise TypeError."""
    ids = np.asarray(given)
    if ids.size and ids.dtype.kind not in "iu":
        hint = "; for a mask, pass np.flatnonzero(mask)" if ids.dtype == bool else ""
        raise TypeError(
            f"cannot choose envs: indices of dtype {ids.dtype}, expected whole numbers{hint}"
        )
    if ids.ndim != 1:
        example = f": [{ids}]" if ids.ndim == 0 else ""
        raise TypeError(
            f"cannot choose envs: {ids.ndim} dimensions, expected a list of indices{example}"
        )
    return ids.astype(np.int64, copy=False)


def options(given: Any, envs: Sequence[int]) -> list[tuple[int, dict[str, Any] | None]]:
    """Pair each of the envs with its options, or raise."""
    if given is None or isinstance(given, dict):
        each = [given] * len(envs)
    elif isinstance(given, Iterable):
        each = list(given)
    else:
        raise TypeError(
            f"cannot set options: {type(given).__name__}, expected a dict, None, or a list with "
            "one for each env"
        )
    if len(each) != len(envs):
        raise ValueError(f"cannot set options: {len(each)} of them, expected {len(envs)}")
    for one in each:
        if one is not None and not isinstance(one, dict):
            raise TypeError(f"cannot set options: {type(one).__name__}, expected a dict or None")
    return list(zip(envs, each, strict=True))


def batch(min_envs: Any, max_envs: int | None, groups: Sequence[range]) -> tuple[int, int]:
    """Return the least and the largest number of envs to receive, or raise ValueError.

    If ``min_envs`` is "auto", the least number may be any up to the returned one.
    """
    if is_auto("min_envs", min_envs):
        min_envs = None
    envs, largest = groups[-1].stop, max(map(len, groups))
    least = envs if min_envs is None else whole_number("receive", "min_envs", min_envs, 0)
    most = envs if max_envs is None else whole_number("receive", "max_envs", max_envs, 1)
    least, most = min(least, envs), min(most, envs)
    if most < largest:
        raise ValueError(
            f"cannot receive: max_envs {most}, but groups have up to {largest} envs; expected at "
            "least that, or pass more groups to make them smaller"
        )
    if min_envs is None:
        return most, most
    if least > most:
        raise ValueError(f"cannot receive: min_envs {least}, more than max_envs {most}")
    return least, most


def seconds(timeout: float | None, what: str) -> float | None:
    """Return the seconds that a call may wait, or None; it does not wait if they are negative."""
    if timeout is None:
        return None
    if not is_real(timeout):
        raise ValueError(f"cannot call {what}: timeout {timeout!r}, expected seconds or None")
    return min(timeout, LONGEST)


@dataclass(frozen=True)
class Conflict:
    """Which values of an option go together with another option.

    Attributes:
        why: Why others do not.
        expected: The value that does; ``...`` if there are many.
        refused: The values that do not; if empty, all but the expected one.
    """

    why: str = ""
    expected: Any = None
    refused: tuple[Any, ...] = ()

    def text(self, given: Any) -> str:
        """Return what is wrong with a value; an empty string if nothing is."""
        if given not in self.refused if self.refused else given == self.expected:
            return ""
        if self.expected is ...:
            return f", {self.why}"
        return f", expected {self.expected!r}" + (self.why and f": {self.why}")


_LEAKS = Conflict("what envs leak belongs to the program")
# The options that do not go together, by one of them.
CONFLICTS = {
    "num_workers=0": {
        "on_worker_loss": Conflict("there are no workers to lose", "raise"),
        "step_timeout": Conflict("no other process can end a step of this one"),
        "recycle_after": _LEAKS,
        "recycle_above": _LEAKS,
        "worker_init": Conflict("there are no workers to run it in"),
    },
    "context 'threads'": {
        "on_worker_loss": Conflict("a thread is not lost unless the program is", "raise"),
        "on_hang": Conflict("a thread cannot be killed", "raise", ("restart",)),
        "recycle_after": _LEAKS,
        "recycle_above": _LEAKS,
        "isolate": Conflict("threads share the process", expected=False),
        "seed_globals": Conflict("threads share the global generators", expected=False),
        "trace": Conflict("it looks into worker processes"),
        "num_workers": Conflict("whose trial is of processes; pass a number", ..., ("auto",)),
        "main_envs": Conflict("whose trial is of processes; pass a number", ..., ("auto",)),
    },
    "spare_envs": {
        "main_envs": Conflict(expected=0),
        "groups": Conflict(expected=1),
        "observation_mode": Conflict(expected="same"),
        "record_to": Conflict(),
        "replay_from": Conflict(),
        "num_workers": Conflict("whose resets need workers", ..., (0, "auto")),
    },
}


def refuse(option: str, given: Mapping[str, Any], doing: str = "make vector env") -> None:
    """Raise ValueError if one of the given options does not go with ``option``."""
    for name, conflict in CONFLICTS[option].items():
        if name in given and (text := conflict.text(given[name])):
            raise ValueError(f"cannot {doing}: {name} {given[name]!r} with {option}{text}")


def word_or_bool(name: str, given: Any, word: str) -> Any:
    """Return an option as this word or a bool, or raise ValueError."""
    if isinstance(given, str) and given == word:
        return word
    if not isinstance(given, (bool, np.bool_)):
        raise refusal("make vector env", name, given, f"{word!r}, True or False")
    return bool(given)


def why_python(native: Any, mode: Any, **others: bool) -> str | None:
    """Return why the options require stepping in Python; None if they do not.

    Raises:
        ValueError: They do, but ``native`` is True.
    """
    why = None
    if native is False:
        why = "native=False"
    elif not isinstance(mode, str) or mode != "same":
        why = "observation_mode is given"
    else:
        why = next((f"{name} is given" for name, given in others.items() if given), None)
    if why is not None and native is True:
        raise ValueError(f"cannot make vector env: native=True, but {why}")
    return why


def joined(states: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Return the states of all groups in one array; an array of objects if their types differ."""
    if len({some.dtype for some in states}) > 1:
        objects = np.empty(sum(map(len, states)), object)
        objects[:] = [state for some in states for state in some]
        return objects
    return np.concatenate(states)


def is_auto(name: str, given: Any) -> bool:
    """Return whether an argument of ``recv`` is "auto"; raise ValueError for another string."""
    if isinstance(given, str) and given != "auto":
        raise ValueError(f'cannot receive: {name} {given!r}, expected a number, None or "auto"')
    return isinstance(given, str)


def deadline(timeout: Any, doing: str = "receive") -> int | None:
    """Return the deadline of a timeout, in ns of ``now()``, or raise ValueError."""
    return None if timeout is None else now() + nanoseconds(timeout, doing)


def nanoseconds(timeout: Any, doing: str = "receive") -> int:
    """Return a timeout in ns, or raise ValueError."""
    if not is_real(timeout, 0):
        raise ValueError(f"cannot {doing}: timeout {timeout!r}, expected seconds >= 0 or None")
    return int(min(timeout, LONGEST) * 1e9)


def from_first(doing: str, timeout_from: Any, timeout: Any) -> bool:
    """Return whether a timeout begins when the first env is ready, or raise ValueError."""
    if timeout_from not in ("call", "first"):
        raise ValueError(
            f'cannot {doing}: timeout_from {timeout_from!r}, expected one of "call", "first"'
        )
    if timeout_from == "first" and not is_real(timeout):
        raise ValueError(
            f'cannot {doing}: timeout_from "first" with timeout {timeout!r}, expected seconds'
        )
    return bool(timeout_from == "first")


def reset_options(given: Any, envs: int) -> list[dict[str, Any] | None]:
    """Return copies of the options of each env's reset, or raise ValueError."""
    given = copy.deepcopy(given)  # workers that are threads may read them later
    if not isinstance(given, list):
        return [given] * envs
    if len(given) != envs:
        raise ValueError(f"cannot reset: {len(given)} options, expected {envs}")
    return given


def reset_mask(given: Any, envs: int) -> npt.NDArray[np.bool_]:
    """Return the mask of envs to reset, or raise gymnasium's exceptions."""
    if not isinstance(given, np.ndarray):
        raise TypeError(f"`options['reset_mask']` must be a numpy array, got {type(given)}")
    if given.shape != (envs,):
        raise ValueError(f"`options['reset_mask']` must have shape `({envs},)`, got {given.shape}")
    if given.dtype != np.bool_:
        raise TypeError(f"`options['reset_mask']` must have `dtype=np.bool_`, got {given.dtype}")
    if not given.any():
        raise ValueError(
            "`options['reset_mask']` must contain a boolean array with at least one True value, "
            f"got reset_mask={given}"
        )
    return given


def refuse_custom(space: gym.Space[Any], spec: Spec) -> None:
    """Raise ValueError if a space has a type that gymnasium does not put in shared memory.

    Args:
        space: The observation space.
        spec: Its spec, for the error: which parts samplers would have to leave out.
    """
    unknown = create_shared_memory.dispatch(object)
    for path, part in _parts(space):
        if create_shared_memory.dispatch(type(part)) is not unknown:
            continue
        name = ".".join(path)
        what = f"part {name!r} of the observations" if name else "observations"
        instead = ""
        if spec.observations:  # a sampler needs some part with a fixed shape
            instead = f", or let a sampler make the envs, with leave_out={spec.unshaped_parts}"
        raise ValueError(
            f"cannot put {what} in shared memory: gymnasium does not know the type of {part}; "
            f"pass shared_memory=False to pickle it{instead}"
        ) from CustomSpaceError(str(part))


def _parts(
    space: gym.Space[Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], gym.Space[Any]]]:
    """Yield each part of a space that is not a Dict or a Tuple, with its keys and indices."""
    if isinstance(space, gym.spaces.Dict):
        children: Iterable[tuple[Any, gym.Space[Any]]] = space.spaces.items()
    elif isinstance(space, gym.spaces.Tuple):
        children = enumerate(space.spaces)
    else:
        yield path, space
        return
    for key, child in children:
        yield from _parts(child, (*path, str(key)))


def refuse_nan(spec: Spec, envs: int, actions: Any) -> None:
    """Raise ValueError if an action contains NaN, which no space contains."""
    if spec.unshaped_actions:
        return
    for place, value in leaves(spec.action_tree, actions):
        array = np.asarray(value)
        if array.dtype.kind not in "fc" or array.shape[:1] != (envs,):
            continue
        bad = np.flatnonzero(np.isnan(array).reshape(envs, -1).any(axis=1))
        if len(bad):
            at = f" at {place}" if place else ""
            raise ValueError(f"cannot send actions: nan for env {bad[0]}{at}, expected numbers")
