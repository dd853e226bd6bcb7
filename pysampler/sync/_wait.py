"""The clock, deadlines, and how to wait."""

from __future__ import annotations

from pysampler import _core
from pysampler._core import WaitCosts, WaitStats, memory_left, usable_cpus, wait_costs

__all__ = [
    "WaitCosts",
    "WaitPolicy",
    "WaitStats",
    "memory_left",
    "now",
    "sleep_until",
    "usable_cpus",
    "wait_costs",
]

WaitPolicy = _core.WaitPolicy
now = _core.now
sleep_until = _core.sleep_until
