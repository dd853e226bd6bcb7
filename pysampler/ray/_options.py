"""The options of samplers on Ray about hosts: their number, placement and recovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pysampler._common.numbers import is_real, refusal, whole_number

__all__ = ["FleetOptions", "OnHostLoss", "Spread"]

OnHostLoss = Literal["raise", "restart"]
Spread = Literal["STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK"]


@dataclass
class FleetOptions:
    """The options, documented at ``Rollouts``; raises ValueError if one of them is invalid.

    ``doing`` is the verb of the sampler for errors, such as "sample rollouts".
    """

    doing: str
    hosts: int | Literal["auto"]
    max_hosts: int | None
    cpus_per_host: int | None
    spread: Spread
    in_flight: int
    max_lag: int | None
    on_host_loss: OnHostLoss
    max_restarts: int
    restart_window: float
    host_timeout: float | None
    start_timeout: float | None
    actor_options: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        doing = self.doing
        if self.hosts != "auto":
            try:
                self.hosts = whole_number(doing, "hosts", self.hosts, 1)
            except ValueError as error:
                raise ValueError(f'{error}, or "auto"') from None
            if self.max_hosts is not None:
                raise refusal(doing, "max_hosts", self.max_hosts, 'None, unless hosts is "auto"')
        for name, least in (("max_hosts", 1), ("cpus_per_host", 1), ("max_lag", 0)):
            if (value := getattr(self, name)) is not None:
                setattr(self, name, whole_number(doing, name, value, least))
        self.in_flight = whole_number(doing, "in_flight", self.in_flight, 1)
        self.max_restarts = whole_number(doing, "max_restarts", self.max_restarts, 0)
        for name, known in (("spread", Spread), ("on_host_loss", OnHostLoss)):
            if getattr(self, name) not in get_args(known):
                names = ", ".join(map(repr, get_args(known)))
                raise refusal(doing, name, getattr(self, name), f"one of {names}")
        if not is_real(self.restart_window, 0):
            raise refusal(doing, "restart_window", self.restart_window, "seconds >= 0")
        for name in ("host_timeout", "start_timeout"):
            value = getattr(self, name)
            if value is not None and not (is_real(value, 0) and value > 0):
                raise refusal(doing, name, value, "seconds > 0 or None")
        if self.actor_options is not None and not isinstance(self.actor_options, Mapping):
            raise refusal(doing, "actor_options", self.actor_options, "a dict of options")
