"""The ways to sample that ``pysampler tune`` tries."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pysampler._cli.measuring import SHORTEST, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULT", "Choice", "choices_for"]

DEFAULT = "default"
_LEARNING = 1 / 30  # the share of the time that "auto" gets to learn
_AUTO = {"min_envs": "auto", "timeout": "auto"}  # arguments of recv
_MANY = 4  # workers per CPU, if envs wait for something other than a CPU


@dataclass(frozen=True)
class Choice:
    """One way to sample.

    Attributes:
        options: Arguments of ``VectorEnv``.
        recv: Arguments of ``recv``, if the program steps with it.
        policy_in: Where rollouts call the policy, if the program uses them.
    """

    options: dict[str, Any] = field(default_factory=dict)
    recv: dict[str, Any] | None = None
    policy_in: str | None = None

    @property
    def loop(self) -> str:
        """The loop of the program: "step", "recv" or "Rollouts"."""
        if self.policy_in is not None:
            return "Rollouts"
        return "step" if self.recv is None else "recv"

    def order(self, setting: Setting, policy_seconds: float, seconds: float) -> dict[str, Any]:
        """Return the order for a contender; ``seconds`` is the time for all choices."""
        options = {**self.options, **setting.isolating}
        if options or setting.limited or self.loop != "step":  # else make_vec chooses
            options = {**_bounded(setting, self.options), **options}
        learns = self.recv is not None and "auto" in self.recv.values()
        return {
            "kind": "pysampler",
            "envs": setting.envs,
            "options": options,
            "recv": self.recv,
            "policy_in": self.policy_in,
            "policy_seconds": policy_seconds,
            "warm": _LEARNING * seconds if learns else SHORTEST,
        }

    def lines(self, setting: Setting) -> list[str]:
        """Return the lines of a program that samples this way."""
        options = dict(self.options)
        if setting.limited:
            options = {**_bounded(setting, options), **options}
        made = setting.lines_with(options)
        if self.policy_in is not None:
            sampler = "rollouts = pysampler.Rollouts(envs, policy, horizon, policy_in={})"
            return [*made, sampler.format(json.dumps(self.policy_in))]
        if self.recv is None:
            return made
        arguments = ", ".join(f"{name}={json.dumps(value)}" for name, value in self.recv.items())
        return [
            *made,
            "envs.async_reset()  # once; then again and again:",
            f"observations, rewards, terminated, truncated, infos = envs.recv({arguments})",
            'envs.send(policy(observations), infos["env_id"])',
        ]


def _bounded(setting: Setting, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option that limits the number of processes to that of the setting."""
    if options.get("num_workers") == "auto":
        return {"max_concurrency": setting.workers}
    if options.get("main_envs") == "auto":
        return {"num_workers": setting.workers - 1}
    return {"num_workers": setting.workers}


def choices_for(
    setting: Setting, *, policy: bool = False, native: bool = False
) -> dict[str, Choice]:
    """Return the choices worth trying, by name; the first is the default.

    Args:
        setting: The envs and processes to measure.
        policy: Whether the program calls a policy that takes time.
        native: Whether the default simulates envs together.
    """
    envs, own, prefix = setting.envs, {}, ""
    choices = {DEFAULT: Choice()}
    if setting.isolate:
        workers = envs  # a process each
    else:
        choices |= _sharing(setting, native=native)
        workers = setting.workers
    many = min(envs, _MANY * workers)
    if setting.waits and many > workers:
        choices[f"num_workers={many}"] = Choice({"num_workers": many})
        own, prefix, workers = {"num_workers": many}, f"{many} workers, ", many
    each = envs // workers
    some = {"min_envs": envs // 2}
    finer, name = own, ""
    if each >= 2:
        halves, finer = {**own, "groups": 2}, {**own, "groups": min(8, each)}
        name = f"groups={min(8, each)}, "
        choices[f"{prefix}groups=2, recv of half"] = Choice(halves, some)
        if policy:
            choices[f"{prefix}groups=2, Rollouts"] = Choice(halves, policy_in="main")
    elif setting.isolate and envs >= 2:
        choices["recv of half"] = Choice(recv=some)
    if envs >= 2:
        choices[f'{prefix}{name}recv("auto")'] = Choice(finer, _AUTO)
    if policy:
        choices[f"{prefix}Rollouts"] = Choice(own, policy_in="main")
        choices[f'{prefix}Rollouts(policy_in="workers")'] = Choice(own, policy_in="workers")
    return choices


def _sharing(setting: Setting, *, native: bool) -> dict[str, Choice]:
    """Return the choices of workers, threads and vector envs, for envs that may share a process."""
    several = setting.workers > 1
    choices = {"num_workers=0": Choice({"num_workers": 0})}
    if several:
        choices["num_workers=1"] = Choice({"num_workers": 1})
    if not native:  # else the default, or for small blocks num_workers=1
        choices['num_workers="auto"'] = Choice({"num_workers": "auto"})
        if several:
            choices['main_envs="auto"'] = Choice({"main_envs": "auto"})
    threads = {"context": "threads"}
    if setting.threads and several:
        choices['context="threads"'] = Choice(threads)
    if setting.vector:
        mode = {"vectorization_mode": "vector_entry_point", "autoreset_mode": "NextStep"}
        choices['vectorization_mode="vector_entry_point"'] = Choice(mode)
        if setting.threads and several:
            choices["vector_entry_point in threads"] = Choice({**mode, **threads})
    return choices
