"""``pysampler evaluate``: runs episodes of a policy and prints their results."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import json
import math
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler._cli.screen import printing_to_stderr
from pysampler._cli.turns import MeasureError

if TYPE_CHECKING:
    from pysampler._rollouts.evaluation_results import Evaluation

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run episodes of a policy, and film some of them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the subcommand."""
    parser.add_argument(
        "policy",
        help="module:policy, file.py:policy, a TorchScript file (.pt) or a model of "
        "Stable-Baselines3 (.zip)",
    )
    parser.add_argument("env", help="an env id, module:function or file.py:function")
    parser.add_argument(
        "--vec-normalize",
        metavar="FILE",
        help="the statistics that VecNormalize.save wrote, for a model of Stable-Baselines3",
    )
    parser.add_argument("--episodes", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (0)")
    parser.add_argument("--envs", type=int, help="how many envs to make (8)")
    parser.add_argument("--workers", type=int, help="how many processes (one per CPU)")
    parser.add_argument("--policy-in", choices=("main", "workers"), default="main")
    parser.add_argument("--batch", type=int, help="rows of each call of the policy")
    parser.add_argument("--chunk", type=int, help="steps that the policy acts for at once")
    parser.add_argument("--videos", metavar="FOLDER", help="film episodes to this directory")
    parser.add_argument("--record", type=int, help="how many episodes to film (4)")
    parser.add_argument("--resume", metavar="FILE", help="keep results here, and continue there")
    parser.add_argument("--max-steps", type=int, default=100_000, help="of an episode (100000)")
    parser.add_argument("--isolate", action="store_true", help="a process for each env")
    parser.add_argument("--seed-globals", action="store_true", help="seed random, np.random, torch")
    parser.add_argument("--step-timeout", type=float, metavar="S", help="seconds of a step")
    parser.add_argument("--on-worker-loss", choices=("raise", "restart"), default="raise")
    parser.add_argument("--csv", metavar="FILE", help="write a table with a row per episode")


def run(options: argparse.Namespace) -> int:
    """Run the episodes and print the results."""
    if options.csv is not None and not (folder := Path(options.csv).parent).is_dir():
        raise MeasureError(f"cannot write {options.csv}: there is no folder {folder}")
    if options.record is not None and options.videos is None:
        raise MeasureError("--record is for --videos FOLDER, which is missing")
    with printing_to_stderr() if options.json else contextlib.nullcontext():
        evaluation = _evaluated(options)
    if options.json:
        print(json.dumps(_report(evaluation), default=str))
    else:
        videos = [one.video for one in evaluation.episodes if one.video is not None]
        print(evaluation, *videos, sep="\n")
    if options.csv is not None:
        sys.stdout.flush()  # an error drops what is not printed yet
        evaluation.to_csv(options.csv)
    return 0


def _evaluated(options: argparse.Namespace) -> Evaluation:
    import pysampler  # noqa: PLC0415 - samplers only where they are needed
    from pysampler._cli.policies import is_file, policy_of  # noqa: PLC0415
    from pysampler._cli.sources import SourceError, source_of  # noqa: PLC0415
    from pysampler.errors import PysamplerError  # noqa: PLC0415

    try:
        policy = policy_of(options.policy, options.vec_normalize)
        source = source_of(options.env)
        if source.id is None:
            _expect_no_arguments(source.function, options.env)
        env = source.function if source.id is None else source.id
        return pysampler.evaluate(
            *(env, policy, options.episodes),
            num_envs=options.envs,
            vector_kwargs=_vector_options(options),
            policy_in=options.policy_in,
            batch=options.batch,
            chunk=options.chunk,
            videos=options.videos,
            record=options.record,
            max_steps=options.max_steps,
            resume=options.resume,
            progress=True,
            seed=options.seed,
        )
    except KeyboardInterrupt as error:
        if (done := getattr(error, "evaluation", None)) is None:
            raise
        told = f"interrupted after {len(done.episodes)} of {options.episodes} episodes"
        kept = f"{options.resume} has them, and the same command runs the others"
        advice = "--resume FILE keeps them" if options.resume is None else kept
        del error.__notes__
        error.add_note(f"{told}; {advice}")
        if done.episodes:
            error.add_note(str(done))
        raise
    except (PysamplerError, SourceError, MeasureError, MemoryError, OSError):
        raise
    except Exception as error:
        if str(error).startswith("cannot ") and _is_ours(error):
            raise MeasureError(str(error)) from error
        if is_file(options.policy):
            *_, line = str(error).strip().splitlines() or [type(error).__name__]
            raise MeasureError(
                f"{options.policy} failed in {options.env}: {line}; is it a policy for this env?"
            ) from error
        raise


def _vector_options(options: argparse.Namespace) -> dict[str, Any]:
    names = "step_timeout", "isolate", "seed_globals", "on_worker_loss"
    given = {"num_workers": options.workers} | {name: getattr(options, name) for name in names}
    return {name: value for name, value in given.items() if not (value is None or value is False)}


def _expect_no_arguments(function: Any, name: str) -> None:
    """Raise MeasureError if a function that makes envs needs arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [one.name for one in parameters if one.default is one.empty and one.kind not in kinds]
    if needed:
        raise MeasureError(f"{name} needs {', '.join(needed)}, expected a function of no arguments")


def _is_ours(error: Exception) -> bool:
    """Return whether this package raised an exception, rather than a policy that it called."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("pysampler.")


def _report(evaluation: Evaluation) -> Any:
    """Return the results for JSON, which has no numbers that are not finite."""
    from pysampler._policies.trees import mapped  # noqa: PLC0415

    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    report = {"mean": evaluation.mean, "std": evaluation.std, "interval": evaluation.interval()}
    if evaluation.success_rate is not None:
        report["success_rate"] = evaluation.success_rate
        report["success_interval"] = evaluation.success_interval()
    report["episodes"] = [one.row for one in evaluation.episodes]
    return mapped(finite, report)
