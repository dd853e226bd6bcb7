"""The options of rollouts, checked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pysampler._common.numbers import is_real, refusal, true_or_false, whole_number
from pysampler._vector import arguments

__all__ = ["PolicyIn", "RolloutOptions"]

PolicyIn = Literal["main", "workers"]


@dataclass
class RolloutOptions:
    """The checked options of ``Rollouts``, which documents them; ValueError for conflicts."""

    horizon: int
    policy_in: PolicyIn
    overlap: bool
    keep_last: int
    min_envs: int | Literal["auto"] | None  # None: all
    timeout: float | Literal["auto"] | None
    timeout_from: Literal["call", "first"]
    allow_partial: bool
    reset_each: bool
    info_keys: Iterable[str]
    threads: int | None
    warm_up: int = 0
    device: Any = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        doing = "sample rollouts"
        self.horizon = whole_number(doing, "horizon", self.horizon, 1)
        self.warm_up = whole_number(doing, "warm_up", self.warm_up, 0)
        self.keep_last = whole_number(doing, "keep_last", self.keep_last, 1)
        for name in ("overlap", "allow_partial", "reset_each"):
            setattr(self, name, true_or_false(doing, name, getattr(self, name)))
        for name in ("threads", "min_envs"):
            value = getattr(self, name)
            is_auto = name == "min_envs" and isinstance(value, str) and value == "auto"
            if value is not None and not is_auto:
                setattr(self, name, whole_number(doing, name, value, 1))
        if self.policy_in not in get_args(PolicyIn):
            raise refusal(doing, "policy_in", self.policy_in, 'one of "main", "workers"')
        if self.policy_in == "workers" and self.as_ready:
            raise ValueError(
                "cannot sample rollouts: min_envs, timeout, reset_each and allow_partial are for a "
                'policy in "main"; workers do not wait for one another'
            )
        if self.policy_in == "workers" and self.device is not None:
            raise refusal(
                doing,
                "device",
                self.device,
                'None: policies in workers act on the CPU. On a device, policy_in="main" acts for '
                "all envs together, Actors(device=) for workers that do not wait for one another",
            )
        if self.chunk is not None:
            self.chunk = whole_number(doing, "chunk", self.chunk, 1)
            if self.horizon % self.chunk:
                raise ValueError(
                    f"cannot sample rollouts: horizon {self.horizon}, expected a multiple of chunk "
                    f"({self.chunk})"
                )
            if self.as_ready:
                raise ValueError(
                    "cannot sample rollouts: with chunk the policy acts for all envs together; "
                    "min_envs, timeout, reset_each and allow_partial are for single steps"
                )
        if self.reset_each and self.warm_up:
            raise ValueError(
                "cannot sample rollouts: reset_each begins all episodes together, which warm_up "
                "prevents; expected one of them"
            )
        if self.reset_each and self.allow_partial:
            raise ValueError(
                "cannot sample rollouts: reset_each would lose the steps under way at the end of a "
                "rollout; expected allow_partial=False"
            )
        is_auto = isinstance(self.timeout, str) and self.timeout == "auto"
        if not (self.timeout is None or is_auto or is_real(self.timeout, 0)):
            raise refusal(doing, "timeout", self.timeout, 'seconds >= 0, None or "auto"')
        arguments.from_first(doing, self.timeout_from, self.timeout)
        keys = self.info_keys
        if isinstance(keys, str):
            raise refusal(doing, "info_keys", keys, f"a list of keys: [{keys!r}]")
        if not isinstance(keys, Iterable):
            raise refusal(doing, "info_keys", keys, "a list of keys")
        self.info_keys = list(keys)

    @property
    def as_ready(self) -> bool:
        """Whether the policy acts for ready envs without waiting for all."""
        waits = self.min_envs is None and self.timeout is None
        return not waits or self.allow_partial or self.reset_each

    @property
    def timeout_ns(self) -> int | None:
        """``timeout`` in ns; None without one or if it is "auto"."""
        if self.timeout is None or isinstance(self.timeout, str):
            return None
        return arguments.nanoseconds(self.timeout)
