"""``pysampler evaluate``: runs episodes of a policy and prints their results."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pysampler._cli.turns import MeasureError

if TYPE_CHECKING:
    import argparse

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
    parser.add_argument("--episodes", type=int, default=100, help="how many (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the first episode (0)")
    parser.add_argument("--envs", type=int, help="how many envs to make (8)")
    parser.add_argument("--workers", type=int, help="how many processes (one per CPU)")
    parser.add_argument("--policy-in", choices=("main", "workers"), default="main")
    parser.add_argument("--batch", type=int, help="rows of each call of the policy")
    parser.add_argument("--chunk", type=int, help="steps that the policy acts for at once")
    parser.add_argument("--videos", metavar="FOLDER", help="film episodes to this directory")
    parser.add_argument("--record", type=int, default=4, help="how many episodes to film (4)")
    parser.add_argument("--resume", metavar="FILE", help="keep results here, and continue there")
    parser.add_argument("--csv", metavar="FILE", help="write a table with a row per episode")


def run(options: argparse.Namespace) -> int:
    """Run the episodes and print the results."""
    import pysampler  # noqa: PLC0415 - samplers only where they are needed
    from pysampler._cli.policies import policy_of  # noqa: PLC0415
    from pysampler._cli.sources import SourceError, source_of  # noqa: PLC0415

    if options.csv is not None and not (folder := Path(options.csv).parent).is_dir():
        raise MeasureError(f"cannot write {options.csv}: there is no folder {folder}")
    try:
        policy, source = policy_of(options.policy), source_of(options.env)
        env = options.env if source.made_by is not None else source.function
        evaluation = pysampler.evaluate(
            *(env, policy, options.episodes),
            num_envs=options.envs,
            vector_kwargs=None if options.workers is None else {"num_workers": options.workers},
            policy_in=options.policy_in,
            batch=options.batch,
            chunk=options.chunk,
            videos=options.videos,
            record=options.record,
            resume=options.resume,
            progress=sys.stderr.isatty(),
            seed=options.seed,
        )
    except SourceError as error:
        raise MeasureError(str(error)) from error
    except (ValueError, TypeError, ImportError) as error:
        if not (str(error).startswith("cannot ") and _is_ours(error)):
            raise
        raise MeasureError(str(error)) from error
    if options.json:
        print(json.dumps(_report(evaluation), default=str))
    else:
        print(evaluation)
        for one in evaluation.episodes:
            if one.video is not None:
                print(one.video)
    if options.csv is not None:
        sys.stdout.flush()  # an error drops what is not printed yet
        evaluation.to_csv(options.csv)
    return 0


def _is_ours(error: Exception) -> bool:
    """Return whether this package raised an exception, rather than a policy that it called."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("pysampler.")


def _report(evaluation: Any) -> dict[str, Any]:
    success = {}
    if evaluation.success_rate is not None:
        success = {
            "success_rate": evaluation.success_rate,
            "success_interval": evaluation.success_interval(),
        }
    return {
        "mean": evaluation.mean,
        "std": evaluation.std,
        "interval": evaluation.interval(),
        **success,
        "episodes": [one.row for one in evaluation.episodes],
    }
