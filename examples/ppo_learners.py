"""PPO with several learners: each samples its share of the envs, all learn one network together.

    python examples/ppo_learners.py --learners 2     # CartPole-v1 until it returns 475
    python examples/ppo_learners.py --learners 2 --env HalfCheetah-v5 --steps 1000000
    torchrun --nproc-per-node 2 examples/ppo_learners.py

Each learner is a process with a copy of the network, and a sampler with workers of its own. Each
computes the gradients of its own rows of a minibatch; torch.distributed sums them before each step
of the optimizer. So the network becomes what one learner makes of all envs, but for rounding:
learners draw the same random numbers and use those of their own envs, and statistics are those of
all envs.

The first learner shows the progress of all: the mean return of the last 100 episodes, steps per
second, and which share of its time each part takes ("exchange" is waiting for the other learners).
Ctrl-C stops all learners after the rollout under way and prints the result so far; a second Ctrl-C
ends them at once. If a learner dies, the others end with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from multiprocessing import connection, resource_tracker
from pathlib import Path
from typing import Any

try:
    import gymnasium as gym
    import numpy as np
    import torch
    from common import Run, at_least, parse, parser, run, spaces_of
    from ppo import SETTINGS, ActorCritic, Batch, Settings, batch_of, losses
    from torch import distributed, multiprocessing, nn

    import pysampler
except KeyboardInterrupt:  # importing torch takes seconds
    sys.exit("stopped before anything was learned")

TIMEOUT = timedelta(minutes=10)  # of waiting for other learners


# -- what learners do together ---------------------------------------------------------------------


class LearnerLostError(Exception):
    """Another learner has ended, or did not answer in time."""


class Learners:
    """All learners: which of them this one is, and what they compute together.

    Args:
        envs: The number of envs of all learners.
        device: That of this learner's network.
        **rendezvous: Arguments of ``init_process_group``; none if torchrun has started this.

    Attributes:
        rank: The number of this learner, from 0.
        envs: The number of envs of all learners.
        own: The envs of this learner.
        seconds: How long this learner has waited for others.
    """

    def __init__(self, envs: int, device: torch.device, **rendezvous: Any) -> None:
        self.seconds = 0.0
        # NCCL needs a GPU for each learner; gloo sends tensors of a GPU through the CPU.
        backend = "nccl" if device.type == "cuda" and device.index is None else "gloo"
        with self._waiting():
            distributed.init_process_group(backend, timeout=TIMEOUT, **rendezvous)
        self.rank, count = distributed.get_rank(), distributed.get_world_size()
        self.envs = envs
        self.own = range(envs * self.rank // count, envs * (self.rank + 1) // count)

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        except RuntimeError as error:
            raise LearnerLostError(str(error)) from error
        self.seconds += time.perf_counter() - began

    def sums(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the sums of tensors over all learners, the same in each of them."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with self._waiting():
            distributed.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    def moments(self, rows: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the variance of the ``count`` rows of all learners."""
        [total] = self.sums([rows.sum(0)])
        mean = total / count
        [squares] = self.sums([(rows - mean).pow(2).sum(0)])
        return mean, squares / count

    def gathered(self, value: Any) -> list[Any]:
        """Return the value of each learner."""
        values = [None] * distributed.get_world_size()
        with self._waiting():
            distributed.all_gather_object(values, value)
        return values


class SharedActorCritic(ActorCritic):
    """An actor-critic that draws actions for all envs, and returns those of one learner's.

    Args:
        spaces: Those of observations and actions.
        learners: All learners.
        generator: Its random numbers must be the same in all learners.
    """

    def __init__(self, spaces: Any, learners: Learners, generator: torch.Generator) -> None:
        super().__init__(*spaces)
        self.learners, self.generator = learners, generator

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        distribution = self.distribution(self.normalized(observations))
        noise = torch.empty(self.learners.envs, self.actor[-1].out_features)
        if self.discrete:  # the first to arrive, of independent arrivals at these rates
            noise.exponential_(generator=self.generator)
            own = noise[self.learners.own].to(observations.device)
            actions = (distribution.probs / own).argmax(-1)
        else:
            noise.normal_(generator=self.generator)
            own = noise[self.learners.own].to(observations.device)
            actions = distribution.mean + distribution.stddev * own
        return actions, {"log_prob": distribution.log_prob(actions)}


def learn(
    net: SharedActorCritic,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    s: Settings,
    learners: Learners,
) -> None:
    """Update the network as one learner would that has the batches of all."""
    observations, actions, old, advantages, returns = batch.rows()
    count = s.horizon * s.envs  # rows of all learners
    mean, var = learners.moments(advantages, count)
    gain = (advantages - mean) / ((var * count / (count - 1)).sqrt() + 1e-8)
    normalized = net.normalized(observations)
    # Where this learner has a row of the batch of all; -1 if another one has it.
    place = torch.full((s.horizon, s.envs), -1)
    place[:, learners.own] = torch.arange(len(old)).view(s.horizon, -1)
    place = place.flatten()
    params = [param for param in net.parameters() if param.numel() > 0]
    for _ in range(s.epochs):
        for rows in torch.randperm(count, generator=net.generator).chunk(s.batches):
            own = place[rows]
            own = own[own >= 0]
            loss = losses(
                *(net, normalized[own], actions[own], old[own], gain[own], returns[own], s)
            )
            optimizer.zero_grad()
            (loss.sum() / len(rows)).backward()
            gradients = learners.sums([param.grad for param in params])
            for param, gradient in zip(params, gradients, strict=True):
                param.grad = gradient
            nn.utils.clip_grad_norm_(params, 0.5)
            optimizer.step()
    net.merge(*learners.moments(observations.to(net.mean), count), count)


# -- one learner -----------------------------------------------------------------------------------


def train(
    options: argparse.Namespace, run: Run, learners: Learners, stopped: Callable[[], bool]
) -> None:
    """Sample and learn in turn, as one of the learners, until the run is over for all of them."""
    s = options.settings
    # A resumed run has another seed.
    generator = torch.Generator().manual_seed(options.seed)
    spaces = spaces_of(options.env, "any")
    net = SharedActorCritic(spaces, learners, generator).to(options.device)
    optimizer = torch.optim.Adam(net.parameters(), s.rate, eps=1e-5)
    run.restore(net=net, optimizer=optimizer)
    mode = gym.vector.AutoresetMode.SAME_STEP
    spent = dict.fromkeys(("policy", "envs", "waiting", "learner", "exchange"), 0.0)
    with pysampler.Rollouts(
        *(options.env, net, s.horizon),
        num_envs=len(learners.own),
        num_workers=options.workers,
        autoreset_mode=mode,
        seed=[options.seed + env for env in learners.own],
    ) as rollouts:
        run.start(net, lambda: plain(net, spaces))
        learners.seconds = 0.0
        for rollout in rollouts:
            for name, seconds in rollout.seconds.items():
                spent[name] += seconds
            spent["learner"] -= learners.seconds
            spent["exchange"] += learners.seconds
            learners.seconds = 0.0
            batch = batch_of(rollout, net, s, rollout.seconds)
            ended, stops = zip(*learners.gathered((batch.ended, stopped())), strict=True)
            run.advance(s.horizon * s.envs, np.concatenate(ended), spent=spent)
            if not run.over and not any(stops):
                for group in optimizer.param_groups:
                    group["lr"] = s.rate * (1 - run.steps / run.total)
                learn(net, optimizer, batch, s, learners)
            if learners.rank == 0:
                run.checkpoint(net=net, optimizer=optimizer)
            if run.over or any(stops):
                return


def plain(net: ActorCritic, spaces: Any) -> ActorCritic:
    """Return the same network, which acts without the other learners."""
    copied = ActorCritic(*spaces)
    copied.load_state_dict(net.state_dict())
    return copied


def never() -> bool:
    return False


def learner(
    options: argparse.Namespace, stopped: Callable[[], bool] = never, **rendezvous: Any
) -> None:
    """Be one of the learners; the first one reports what all have learned."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)  # all begin with the same network
    device = torch.device(options.device)
    if device == torch.device("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rendezvous.get("rank", 0))))
    learners = Learners(options.settings.envs, device, **rendezvous)
    try:
        first = learners.rank == 0
        if not first:
            options = copy.copy(options)
            options.quiet, options.log, options.save = True, None, None
        progress = Run(options, total=options.settings.steps)
        if first:
            run(partial(train, learners=learners, stopped=stopped), progress)
        else:
            train(options, progress, learners, stopped)
    finally:
        distributed.destroy_process_group()


# -- processes of learners -------------------------------------------------------------------------

LOST_ANOTHER = 75  # exit status of a learner that cannot go on without another one


def learner_process(options: argparse.Namespace, stop: connection.Connection, **rendezvous: Any):
    """Be a learner in a process of its own, until the process that started it closes ``stop``."""
    try:
        learner(options, stop.poll, **rendezvous)
    except LearnerLostError as error:
        print(f"learner {rendezvous['rank']} cannot go on: {error}", file=sys.stderr)
        sys.exit(LOST_ANOTHER)


def launch(options: argparse.Namespace) -> None:
    """Run learners in processes until all have ended, or exit with a message if one fails."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    context = multiprocessing.get_context("spawn")
    told, stop = context.Pipe(duplex=False)
    processes: list[Any] = []

    def interrupt(*_: Any) -> None:
        if stop.closed:
            raise KeyboardInterrupt
        stop.close()  # which learners see, as they see it if this process dies

    with tempfile.TemporaryDirectory() as folder:
        where = {"init_method": (Path(folder) / "rendezvous").as_uri()}
        # Learners inherit that Ctrl-C is blocked, as this process tells them to stop. Here one that
        # comes while they start waits until they have.
        resource_tracker.ensure_running()  # which unblocks it
        before = signal.getsignal(signal.SIGINT)
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            for rank in range(options.learners):
                ranks = {"rank": rank, "world_size": options.learners}
                process = context.Process(
                    target=learner_process, args=(options, told), kwargs={**where, **ranks}
                )
                process.start()
                processes.append(process)
            told.close()
            signal.signal(signal.SIGINT, interrupt)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            failure = wait_for(processes)
        except KeyboardInterrupt:  # the second
            sys.exit(128 + signal.SIGINT)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for process in processes:
                process.kill()
                process.join()
            signal.signal(signal.SIGINT, before)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if failure is not None:
        sys.exit(failure)


def wait_for(processes: list[Any]) -> str | None:
    """Wait until all learners have ended, or one has failed: then return a message."""
    running, lost = list(processes), False
    while running:
        # The learner that another one has lost: it ends now, unless it is the one that hangs.
        if not connection.wait([one.sentinel for one in running], 5.0 if lost else None):
            break
        for one in [one for one in running if one.exitcode is not None]:
            running.remove(one)
            lost |= one.exitcode == LOST_ANOTHER
            if one.exitcode not in (0, LOST_ANOTHER):
                how = f"signal {-one.exitcode}" if one.exitcode < 0 else f"status {one.exitcode}"
                return f"learner {processes.index(one)} (pid {one.pid}) lost: {how}"
    hung = ", ".join(f"learner {processes.index(one)} (pid {one.pid})" for one in running)
    return f"learners lost each other{f': no answer of {hung}' if hung else ''}" if lost else None


def started_by_torchrun(options: argparse.Namespace) -> None:
    """Be one of the learners that torchrun has started."""
    interrupts: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        learner(options, lambda: bool(interrupts))
    except LearnerLostError as error:
        sys.exit(f"learner {os.environ['RANK']} cannot go on: {error}")


def read_options() -> argparse.Namespace:
    """Return the options of the command line, with the settings that follow from them."""
    made = parser(__doc__, "CartPole-v1", steps=None, until=None)
    text = "number of learners, each in a process; default: 2, or what torchrun has started"
    made.add_argument("--learners", type=at_least(1), help=text)
    made.add_argument("--envs", type=at_least(1), help="number of envs of all learners")
    text = "worker processes of each learner; default: CPUs divided by learners"
    made.add_argument("--workers", type=at_least(0), help=text)
    options = parse(made)
    if is_torchrun():
        count = int(os.environ["WORLD_SIZE"])
        if options.learners not in (None, count):
            made.error(f"argument --learners: {options.learners}, but torchrun started {count}")
        options.learners = count
    elif options.learners is None:
        options.learners = 2
    settings = SETTINGS.get(options.env, Settings())
    given = {name: getattr(options, name) for name in ("envs", "steps", "until")}
    given = {name: value for name, value in given.items() if value is not None}
    options.settings = replace(settings, **given)
    options.until = options.settings.until
    if options.settings.envs < options.learners:
        made.error(
            f"argument --envs: {options.settings.envs}, expected at least one for each of "
            f"{options.learners} learners"
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", options.learners))  # on this machine
    if options.workers is None:
        options.workers = max(1, len(os.sched_getaffinity(0)) // here)
    if options.device == "cuda" and torch.cuda.device_count() < here:
        options.device = "cuda:0"  # for all of them
    return options


def is_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def main() -> None:
    options = read_options()
    spaces_of(options.env, "any")  # exits with a message here, instead of in each learner
    if is_torchrun():
        started_by_torchrun(options)
    elif options.learners == 1:
        learner(options, store=distributed.HashStore(), rank=0, world_size=1)
    else:
        launch(options)


if __name__ == "__main__":
    main()
