"""Slots: which env is in which slot, the spares, and the call under way, as one immutable value.

A signal handler may raise between any two lines of ``SpareEnvs``. So all that a step or reset
changes is here, and each transition is one assignment of a new value.

An env goes round: it steps in a slot; when its episode ends, the slot becomes vacant, and the env
the last of the spares, with a reset to be sent; the reset is sent; its result is ready; it is the
first of the spares, and fills a vacant slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pysampler._workers.counters import SpareUse
from pysampler.errors import EnvError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Result", "Slots"]


class Result(NamedTuple):
    """The result of an env: a row of a batch of the inner vector env."""

    batch: Any
    row: int
    of_spare: bool = False  # whether it was reset before the call that uses it


class Slots(NamedTuple):
    """The state of spare envs."""

    env_of: tuple[int, ...]  # by slot
    spares: tuple[int, ...]  # the next one first, with the envs of vacant slots
    vacant: tuple[int, ...] = ()  # slots that wait for spares, in this order
    over: tuple[int, ...] = ()  # slots that the next step makes vacant
    seed: tuple[int, ...] | None = None  # of the run; None: none was given
    drawn: int = 0  # the number of seeds drawn from it
    unsent: Mapping[int, int | None] = {}  # spares whose resets are to be sent, with their seeds
    ready: Mapping[int, Result | EnvError] = {}  # spares that were reset, or could not be
    received: Any = None  # the last batch in this state
    was_reset: bool = False  # whether all slots have been reset
    use: SpareUse = SpareUse(0)
    needed: Mapping[int, int] = {}  # how many episodes would have needed how many spares
    # Of the newest call:
    awaited: Mapping[int, int] = {}  # the slots of envs that are at work for it
    to_fill: tuple[int, ...] = ()  # vacant slots that it has yet to fill
    results: Mapping[int, Result] = {}  # by slot
    done: bool = True  # whether it has ended
    errors: tuple[tuple[int, EnvError], ...] = ()  # with the slots
    lost: tuple[int, ...] = ()  # slots whose episodes ended because a worker was lost in a step

    def restarted(
        self, envs: int, seed: tuple[int, ...] | None = None, *, was_reset: bool = True
    ) -> Slots:
        """Return the state at the beginning of a run, in which all spares are to be reset.

        Without a seed, more seeds are drawn from that of the run before.
        """
        slots = len(self.env_of)
        state = Slots(
            tuple(range(slots)),
            tuple(range(slots, envs)),
            seed=seed or self.seed,
            drawn=0 if seed else self.drawn,
            was_reset=was_reset,
            received=self.received,
            use=self.use,
            needed=self.needed,
        )
        for env in state.spares:
            state = state.resetting(env)
        return state

    def with_call(self, slots: Iterable[int], to_fill: Iterable[int]) -> Slots:
        """Return the state at the beginning of a call.

        Args:
            slots: The slots whose envs it commands.
            to_fill: The vacant slots that it fills.
        """
        return self._replace(
            awaited={self.env_of[slot]: slot for slot in slots},
            to_fill=tuple(to_fill),
            results={},
            done=False,
            errors=(),
            lost=(),
        )

    def ended(self, slots: Iterable[int]) -> Slots:
        """Return the state in which the call has ended, and the next step makes slots vacant."""
        return self._replace(done=True, over=(*self.over, *slots))

    def vacated(self, slots: Iterable[int]) -> Slots:
        """Return the state in which slots are vacant, and their envs spares to be reset."""
        state = self
        for slot in slots:
            if slot not in state.vacant:
                env = state.env_of[slot]
                state = state.resetting(env)._replace(
                    spares=(*state.spares, env), vacant=(*state.vacant, slot)
                )
        return state._replace(over=tuple(one for one in state.over if one not in slots))

    def resetting(self, env: int) -> Slots:
        """Return the state in which a spare is to be reset, with the next seed."""
        seed = None
        if self.seed is not None:
            child = np.random.SeedSequence(self.seed, spawn_key=(self.drawn,))
            seed = int(child.generate_state(1)[0])
        return self._replace(
            drawn=self.drawn + 1, unsent={**self.unsent, env: seed}, ready=_without(self.ready, env)
        )

    def resets_sent(self) -> Slots:
        """Return the state in which all spares have been told to reset."""
        return self._replace(unsent={})

    def begun(self, slot: int, result: Result, use: SpareUse, needed: int) -> Slots:
        """Return the state in which the call has filled a slot; see the attributes."""
        return self.filled(slot)._replace(
            results={**self.results, slot: result},
            use=use,
            needed={**self.needed, needed: self.needed.get(needed, 0) + 1},
        )

    def filled(self, slot: int) -> Slots:
        """Return the state in which the next spare has taken a slot."""
        env, *spares = self.spares
        return self._replace(
            env_of=(*self.env_of[:slot], env, *self.env_of[slot + 1 :]),
            spares=tuple(spares),
            vacant=tuple(one for one in self.vacant if one != slot),
            to_fill=tuple(one for one in self.to_fill if one != slot),
            unsent=_without(self.unsent, env),
            ready=_without(self.ready, env),
        )

    def not_filled(self, slot: int, error: EnvError) -> Slots:
        """Return the state in which the call leaves a slot vacant, whose next spare has failed.

        That becomes the last of the spares, and is reset again.
        """
        env, *spares = self.spares
        return self._replace(
            spares=(*spares, env),
            to_fill=tuple(one for one in self.to_fill if one != slot),
            errors=(*self.errors, (slot, error)),
        ).resetting(env)

    def keeping(self, slots: Iterable[int]) -> Slots:
        """Return the state in which slots have an env that their next reset keeps."""
        state = self
        for slot in slots:
            if slot in state.vacant:  # since a spare has failed
                state = state.filled(slot)
        return state._replace(over=tuple(one for one in state.over if one not in slots))

    @property
    def at_work(self) -> list[int]:
        """The envs that are at work: those of the call, and spares that reset."""
        return [*self.awaited, *set(self.spares).difference(self.ready, self.unsent)]

    def received_error(self, env: int, error: EnvError) -> Slots:
        """Return the state with the error of an env."""
        slot = self.awaited.get(env)
        if slot is None:
            return self._replace(received=error, ready={**self.ready, env: error})
        errors = (*self.errors, (slot, error))
        return self._replace(received=error, awaited=_without(self.awaited, env), errors=errors)

    def received_batch(self, batch: Any) -> Slots:
        """Return the state with a batch of results."""
        awaited, results, ready = dict(self.awaited), dict(self.results), dict(self.ready)
        *_, truncated, infos = batch
        were_lost = infos.get("worker_lost", np.zeros(len(truncated), bool)) & truncated
        lost = list(self.lost)
        for row, env in enumerate(infos["env_id"].tolist()):
            slot = awaited.pop(env, None)
            if slot is None:
                ready[env] = Result(batch, row, of_spare=True)
            else:
                results[slot] = Result(batch, row)
                lost += [slot] * int(were_lost[row])
        return self._replace(
            received=batch, awaited=awaited, results=results, ready=ready, lost=tuple(lost)
        )


def _without(items: Mapping[int, Any], env: int) -> Mapping[int, Any]:
    return {key: one for key, one in items.items() if key != env}
