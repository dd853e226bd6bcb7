"""A caller that passes a policy the same number of rows in each call.

The float arithmetic of a network depends on the size of its batch: matrix products add in another
order. With a fixed size, a row's results depend less on how many envs act together; see
docs/guides/evaluation.md for measurements.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from pysampler._policies.calling import PolicyCaller
from pysampler._policies.trees import mapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from pysampler._frames.spec import Spec
    from pysampler._policies.calling import Arrays, Outputs, Rows

__all__ = ["FixedBatchCaller"]


class FixedBatchCaller(PolicyCaller):
    """Calls a policy with ``batch`` rows: splits larger batches, and pads with copies of a row."""

    def __init__(
        self, policy: Any, spec: Spec, device: Any = None, chunk: int | None = None, *, batch: int
    ) -> None:
        super().__init__(policy, spec, device=device, chunk=chunk)
        self._size = batch

    def on_arrays(self) -> Callable[[Any], Any] | None:
        """Return None: rows must be counted."""
        return None

    def seed_generators(self, entropy: Any, envs: int) -> None:
        """Give each env a generator, and one more to the copied rows."""
        super().seed_generators(entropy, envs + 1)

    def __call__(
        self, observations: Arrays, state: Any, envs: Rows, previous: Arrays | None = None
    ) -> Outputs:
        """Return actions, extras and new state for observations of these envs."""
        count = len(observations[0])
        numbers = np.arange(len(self.generators))[envs] if self.uses_generators else None
        parts = []
        for begin in range(0, count, self._size):
            rows = np.arange(begin, min(begin + self._size, count))
            copies = self._size - len(rows)
            padded = np.concatenate([rows, np.repeat(rows[-1:], copies)])
            own = padded
            if numbers is not None:
                own = np.concatenate([numbers[rows], np.full(copies, len(self.generators) - 1)])
            outputs = super().__call__(
                [leaf[padded] for leaf in observations],
                None if state is None else mapped(lambda leaf, at=padded: leaf[at], state),
                own,
                None if previous is None else [leaf[padded] for leaf in previous],
            )
            parts.append((len(rows), *copy.deepcopy(outputs)))  # the next call may reuse them
        return _joined(parts)


def _joined(parts: list[tuple[int, Any, Any, Any]]) -> Outputs:
    counts = [count for count, *_ in parts]

    def join(*arrays: Any) -> Any:
        return np.concatenate([array[:n] for n, array in zip(counts, arrays, strict=True)])

    actions = [join(*leaves) for leaves in zip(*(one for _, one, _, _ in parts), strict=True)]
    extras = {name: join(*(one[name] for _, _, one, _ in parts)) for name in parts[0][2]}
    states = [after for *_, after in parts]
    return actions, extras, None if states[0] is None else mapped(join, *states)
