"""The pictures of docs/gallery.md, and the lines there that say how long things took.

    python benchmarks/gallery.py            # all, in about a minute
    python benchmarks/gallery.py --curves   # only learning curves, from the newest results

Other pictures are of runs that this program makes: it trains ``examples/dppo.py`` with a watcher,
and simulates HalfCheetahs. MuJoCo draws the planned run, for which it needs OpenGL without a
screen: EGL, or what MUJOCO_GL names (osmesa). Without it, that picture stays as it is.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pictures import PICTURES, THEMES, Svg, newest
from running import machine, say

ROOT = Path(__file__).parents[1]
GALLERY = PICTURES / "gallery"
PAGE = ROOT / "docs" / "gallery.md"
MADE = GALLERY / "made.json"  # what the runs of this program took
LARGEST = 300_000  # bytes of a file
CHEETAH: dict[str, Any] = {
    "id": "HalfCheetah-v5",
    "native": True,
    "exclude_current_positions_from_observation": False,
}
FRAME = 0.05  # seconds of a step of HalfCheetah


# -- learning curves -------------------------------------------------------------------------------


@dataclass
class Curve:
    """Trainings of benchmarks/examples.py in one picture: its file here, and what it shows.

    ``runs`` are their entries in the results, with their names in the picture if there are many.
    """

    name: str
    title: str
    env: str
    runs: dict[str, str]

    @property
    def command(self) -> str:
        script, *arguments = next(iter(self.runs)).split()
        return " ".join(["python", f"examples/{script}", "--env", self.env, *arguments])

    def trainings(self) -> dict[str, dict[str, Any]]:
        """Return the newest results of the trainings by their names in the picture."""
        _, results = newest("examples")
        of_env = {one["title"]: one for one in results["trainings"] if one["env"] == self.env}
        if missing := self.runs.keys() - of_env.keys():
            raise ValueError(f"{missing} of {self.env} is not in the newest results of examples.py")
        return {name: of_env[title] for title, name in self.runs.items()}


PIXELS = "dqn_atari.py --actors 1 --steps 150000"
PARTS = {"prioritised": "prioritised", "dueling": "dueling", "categorical": "distributions"}
PARTS |= {"noisy": "noisy", "prioritised --dueling --categorical --noisy": "all"}
CURVES = [
    Curve("ppo", "PPO learns to run", "HalfCheetah-v5", {"ppo.py --steps 1000000": ""}),
    Curve(
        *("few", "Three learners balance a pole", "CartPole-v1"),
        {"ppo.py": "PPO", "ppo.py --a2c": "A2C", "impala.py": "IMPALA"},
    ),
    Curve(
        *("lstm", "PPO balances a pole without its speed", "MaskedCartPole-v1"),
        {"ppo.py --lstm": "with an LSTM", "ppo.py": "without"},
    ),
    Curve(
        *("r2d1", "R2D1 balances a pole without its speed", "MaskedCartPole-v1"),
        {
            "r2d1.py --actors 1": "with a memory",
            "r2d1.py --actors 1 --forgetful --steps 150000": "with an empty one",
        },
    ),
    Curve(
        *("dqn", "DQN learns Breakout from pixels", "MinAtar/Breakout-v1"),
        {"dqn_atari.py --actors 1 --steps 500000": ""},
    ),
    Curve(
        *("rainbow", "Rainbow's parts, one by one", "MinAtar/Breakout-v1"),
        {PIXELS: "none", **{f"{PIXELS} --{part}": name for part, name in PARTS.items()}},
    ),
    Curve(
        *("sac", "SAC, TD3 and DDPG swing a pendulum up", "Pendulum-v1"),
        {
            f"sac.py{way} --steps 15000": way[3:].upper() or "SAC"
            for way in ("", " --td3", " --ddpg")
        },
    ),
    Curve("maml", "MAML learns to adapt", "Navigation2D-v0", {"maml.py": ""}),
    Curve("dppo", "DPPO swings a pendulum up", "Pendulum-v1", {"dppo.py": ""}),
]
LINES = ["ours", "blue", "cpp", "bad", "peer", "ink"]  # colours of trainings


class Plot(Svg):
    """A picture with axes, and with lines of any width.

    Args:
        size: Width and height.
        theme: "light" or "dark".
        title: The title.
        x: The range of the horizontal axis.
        y: The range of the vertical axis.
        labels: The names of both.
    """

    def __init__(
        self,
        size: tuple[int, int],
        theme: str,
        title: str,
        x: tuple[float, float],
        y: tuple[float, float],
        labels: tuple[str, str],
    ) -> None:
        super().__init__(*size, theme, title)
        self._x, self._y = x, y
        self._left, self._right, self._top, self._bottom = 62, size[0] - 30, 34, size[1] - 44
        self.text(0, 18, title, size=15, bold=True)
        for tick in ticks(*y):
            self.line([self.at(x[0], tick), self.at(x[1], tick)], "paper")
            beside = self._left - 8, self.at(x[0], tick)[1] + 4
            self.text(*beside, f"{tick:,g}", size=12, anchor="end", fill="soft")
        for tick in ticks(*x):
            at, below = self.at(tick, y[0])[0], self._bottom + 18
            self.text(at, below, f"{tick:,g}", size=12, anchor="middle", fill="soft")
        self.line([(self._left, self._bottom), (self._right, self._bottom)], "line")
        self.text(self._right, self._bottom + 36, labels[0], size=12, anchor="end", fill="soft")
        self.text(self._right, 18, labels[1], size=12, anchor="end", fill="soft")

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a point."""
        (x0, x1), (y0, y1) = self._x, self._y
        across, up = (x - x0) / (x1 - x0), (y - y0) / (y1 - y0)
        return (
            self._left + across * (self._right - self._left),
            self._bottom - up * (self._bottom - self._top),
        )

    def curve(
        self, points: Any, stroke: str, width: float = 1.6, opacity: float = 1, dash: str = ""
    ) -> None:
        """Draw a line through points in units of the axes."""
        path = " ".join("{:.1f},{:.1f}".format(*self.at(*point)) for point in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke="{self.colour[stroke]}" '
            f'stroke-width="{width:g}" stroke-opacity="{opacity:g}"{dashed}/>'
        )


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return about ``count`` round numbers in a range."""
    step = 10 ** math.floor(math.log10((high - low) / count))
    step *= min((1, 2, 2.5, 5, 10), key=lambda times: abs((high - low) / (times * step) - count))
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def learning_curve(curve: Curve, theme: str) -> str:
    """Draw the returns of all seeds, and that of a random policy."""
    trainings = curve.trainings()
    first = next(iter(trainings.values()))
    lines = {name: [points(run, one) for run in one["runs"]] for name, one in trainings.items()}
    everything = np.concatenate([run for runs in lines.values() for run in runs])
    values, most = everything[:, 1], everything[:, 0].max()
    random = first["random"]
    low, high = values.min(), values.max()
    if random is not None:
        low, high = min(low, random), max(high, random)
    room = 0.04 * (high - low)
    what = first["number"] if first["number"] == "return" else "return gained by adapting"
    unit = "env steps" if first["unit"] == "steps" else first["unit"]
    plot = Plot(
        *((560, 240), theme, curve.title), *((0, most), (low - room, high + room), (unit, what))
    )
    if random is not None:
        plot.curve([(0, random), (most, random)], "soft", 1, dash="4 3")
        x, y = plot.at(most, random)
        plot.text(x, y - 5, "untrained", size=12, anchor="end", fill="soft")
    x, below = plot.at(0, low)[0], 232
    for (name, runs), colour in zip(lines.items(), LINES, strict=False):
        for run in runs:
            plot.curve(run, colour)
        if name:
            plot.text(x, below, name, size=12, fill=colour)
        x += 7 * len(name) + 14
    return plot.done()


def points(run: dict[str, Any], training: dict[str, Any]) -> npt.NDArray[Any]:
    """Return the curve of a run, up to its end."""
    end = run[training["unit"]], run[training["number"]]
    return np.array([*run["curve"], *([end] if end[0] > run["curve"][-1][0] else [])])


def seconds_of_training(curve: Curve) -> str:
    """Return sentences on what trainings took and reached."""
    found = []
    for name, training in curve.trainings().items():
        runs, unit = training["runs"], training["unit"]
        seconds = sorted(run["seconds"] for run in runs)
        ends = sorted(run[training["number"]] for run in runs)
        digits = int(abs(ends[-1]) < 10)
        took, steps = statistics.median(seconds), statistics.median(run[unit] for run in runs)
        number = "a return" if training["number"] == "return" else "a gain"
        reached = f"to {number} of {statistics.median(ends):,.{digits}f}"
        if len(runs) > 1:
            reached += f" ({ends[0]:,.{digits}f} to {ends[-1]:,.{digits}f} with {len(runs)} seeds)"
        head = f"*{name}*:" if name else "Took"
        found.append(f"{head} {took:,.0f} s, {steps:,.0f} {unit}, {reached}.")
    machines = [run["machine"] for one in curve.trainings().values() for run in one["runs"]]
    dates = " and ".join(sorted({machine["date"] for machine in machines}))
    return f"{' '.join(found)} Measured {dates} on {machines[-1]['cpus']} CPUs."


# -- HalfCheetahs ----------------------------------------------------------------------------------

PLANS, LENGTH, ACTIONS = 256, 16, 100
CROWD, CROWD_STEPS = 1000, 84


def cheetahs(count: int) -> Any:
    """Return a vector env of HalfCheetahs that are simulated together, after a reset."""
    import pysampler

    envs = pysampler.make_vec(num_envs=count, **CHEETAH)
    envs.reset(seed=1)
    return envs


def planned() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Run one HalfCheetah by plans: act by the best of many, which begin with its state.

    Returns:
        The states of the run, and for each action the places of all plans step by step.
    """
    rng = np.random.default_rng(1)
    branches, states = [], []
    with cheetahs(1) as one, cheetahs(PLANS) as many:
        best = np.zeros((LENGTH, 6))
        for _ in range(ACTIONS):
            plans = best[:, None] + rng.normal(0, 0.6, (LENGTH, PLANS, 6))
            plans[:, 0] = best
            plans = plans.clip(-1, 1).astype(np.float32)
            many.set_state(np.repeat(one.get_state(), PLANS))
            steps = [many.step(actions)[:2] for actions in plans]
            best = plans[:, sum(rewards for _, rewards in steps).argmax()].copy()
            branches.append([observations[:, 0] for observations, _ in steps])
            states.append(one.step(best[:1])[0][0])
            best[:-1], best[-1] = best[1:], 0
    return np.array(states), np.array(branches)


def crowd() -> npt.NDArray[Any]:
    """Return the states of HalfCheetahs that begin alike; each moves in a random rhythm."""
    rng = np.random.default_rng(1)
    strength, phase = rng.uniform(0, 1, (CROWD, 6)), rng.uniform(0, 2 * np.pi, (CROWD, 6))
    pace = 2 * np.pi * rng.uniform(1, 4, (CROWD, 1))
    states = []
    with cheetahs(CROWD) as envs:
        envs.set_state(np.repeat(envs.get_state([0]), CROWD))
        for step in range(CROWD_STEPS):
            actions = strength * np.sin(pace * step * FRAME + phase)
            states.append(envs.step(actions.astype(np.float32))[0])
    return np.array(states)


def branching(states: npt.NDArray[Any], branches: npt.NDArray[Any], theme: str) -> str:
    """Draw how far a run and some of the plans come from every sixteenth state on."""
    places = np.concatenate([[0.0], states[:, 0]])
    firsts = range(0, ACTIONS - LENGTH, LENGTH)
    ahead = [branches[first, :, ::4].T - places[first] for first in firsts]
    runs = [places[first : first + LENGTH + 1] - places[first] for first in firsts]
    low, high = min(map(np.min, ahead)), max(map(np.max, [*ahead, *runs]))
    title = "Plans that branch off a run of HalfCheetah"
    labels = "seconds", "metres from the state in which they begin"
    end = (firsts[-1] + LENGTH) * FRAME
    plot = Plot((720, 300), theme, title, (0, end), (low - 0.1, high + 0.1), labels)
    for first, plans, run in zip(firsts, ahead, runs, strict=True):
        seconds = FRAME * np.arange(first, first + LENGTH + 1)
        for plan in plans:
            plot.curve([*zip(seconds, [0, *plan], strict=True)][::2], "blue", 0.8, 0.5)
        plot.curve(zip(seconds, run, strict=True), "ours", 2.6)
    return plot.done()


def outlines(states: npt.NDArray[Any], samples: int = 40) -> npt.NDArray[Any]:
    """Return points along the limbs of HalfCheetahs, seen from the side: ``[..., points, 2]``."""
    import gymnasium as gym
    import mujoco

    with gym.make("HalfCheetah-v5") as env:
        model = env.unwrapped.model
    data = mujoco.MjData(model)
    limbs = np.flatnonzero(model.geom_type == mujoco.mjtGeom.mjGEOM_CAPSULE)
    along = np.linspace(-1, 1, samples)[:, None, None] * model.geom_size[limbs, 1, None]
    points = np.empty((*states.shape[:-1], samples * len(limbs), 2), np.float32)
    for index in np.ndindex(states.shape[:-1]):
        data.qpos[:] = states[index][:9]
        mujoco.mj_kinematics(model, data)
        axes = data.geom_xmat.reshape(-1, 3, 3)[limbs][:, [0, 2], 2]
        points[index] = (data.geom_xpos[limbs][:, [0, 2]] + along * axes).reshape(-1, 2)
    return points


def mixed(colours: list[str], shares: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return colours between those of a list, from its first (0) to its last (1)."""
    known = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours])
    places = np.linspace(0, 1, len(colours))
    channels = [np.interp(shares, places, channel) for channel in known.T]
    return np.stack(channels, -1).astype(np.uint8)


def crowd_frames(states: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Draw how many HalfCheetahs are at each place, and the fastest one."""
    width, height, scale, levels = 720, 110, 40, 7
    light = THEMES["light"]
    fastest = states[-1, :, 0].argmax()
    frames = []
    for step in states[::2]:
        points = outlines(step)
        columns = np.round(width / 2 + scale * points[..., 0]).astype(int)
        rows = np.round(height - 8 - scale * points[..., 1]).astype(int)
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        cells = rows * width + columns
        counts = np.bincount(cells[inside], minlength=width * height)
        shares = np.log1p(counts) / np.log1p(1500)
        shares = np.minimum(1, np.ceil(shares * levels) / levels)
        picture = mixed(["#ffffff", light["ours"], "#04291d"], shares).reshape(height, width, 3)
        picture[height - 6] = mixed([light["line"]], np.zeros(width))
        for shift in (0, 1):
            own = cells[fastest][inside[fastest]] + shift * width
            picture.reshape(-1, 3)[own] = mixed([light["cpp"]], np.zeros(len(own)))
        frames.append(picture)
    return frames


def rendered(states: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
    """Let MuJoCo draw a run; raise what it raises without a library for OpenGL."""
    import gymnasium as gym

    look = {"width": 280, "height": 156, "camera_name": "track"}
    with gym.make("HalfCheetah-v5", render_mode="rgb_array", **look) as env:
        env.reset(seed=1)
        frames = []
        for state in states[::2]:
            env.unwrapped.set_state(state[:9], state[9:])
            frames.append(env.render())
    return frames


def save_gif(name: str, frames: list[npt.NDArray[Any]], seconds: float, colours: int) -> None:
    """Write an animation of some seconds; leave out frames until the file is small enough."""
    from PIL import Image

    path = GALLERY / f"{name}.gif"
    for every in range(1, len(frames)):
        pictures = [Image.fromarray(frame) for frame in frames[::every]]
        # One palette for all frames, without dithering, which would flicker.
        sample = Image.fromarray(np.concatenate(frames[:: max(1, len(frames) // 4)]))
        palette = sample.quantize(colours, dither=Image.Dither.NONE)
        first, *others = (
            picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures
        )
        duration = round(1000 * seconds / len(pictures))
        first.save(path, save_all=True, append_images=others, duration=duration, loop=0)
        if path.stat().st_size < LARGEST:
            return
    raise ValueError(f"{path} does not fit into {LARGEST:,} bytes")


# -- a watcher -------------------------------------------------------------------------------------


def watched() -> tuple[float, list[npt.NDArray[Any]], list[float]]:
    """Train ``dppo.py`` with a watcher, which films.

    Returns:
        The seconds that it took, frames of the first and the last film side by side, and the
        returns of these two episodes.
    """
    import imageio.v3 as imageio
    from PIL import Image

    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--watch", "video", "--videos", folder, "--quiet", "--json"]
        command = [sys.executable, str(ROOT / "examples" / "dppo.py"), *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds = json.loads(done.stdout.splitlines()[-1])["seconds"]
        with Path(folder, "returns.csv").open(newline="") as file:
            returns = [float(row["return"]) for row in csv.DictReader(file)]
        films = [
            path
            for path in sorted(Path(folder).glob("episode-??????.mp4"))
            if int(path.stem.partition("-")[2]) < len(returns)
        ]
        ends = films[0], films[-1]
        clips = [[*imageio.imiter(path)][::3] for path in ends]
    frames = []
    for pair in zip(*clips, strict=False):
        small = [np.array(Image.fromarray(one).resize((200, 200))) for one in pair]
        frames.append(np.concatenate(small, axis=1))
    return seconds, frames, [returns[int(path.stem.partition("-")[2])] for path in ends]


# -- the page --------------------------------------------------------------------------------------


def sentences() -> dict[str, str]:
    """Return by the name of a picture the sentence on what it took."""
    found = {curve.name: seconds_of_training(curve) for curve in CURVES}
    if MADE.exists():
        made = json.loads(MADE.read_text())
        on = f"on {made['machine']['cpus']} CPUs"
        measured = f"Measured {made['machine']['date']}."
        first, last = made["watched"]["returns"]
        found["watched"] = (
            f"Took {made['watched']['seconds']:.0f} s {on}. Left, the first film, with a return of "
            f"{first:,.0f}; right, the last one, with {last:,.0f}. {measured}"
        )
        for name in ("planned", "crowd"):
            seconds, steps = made[name]["seconds"], made[name]["steps"]
            found[name] = f"Took {seconds:.1f} s {on}: {steps:,} env steps. {measured}"
    return found


def with_sentences(page: str) -> str:
    """Return the page with the line after each ``<!-- took: NAME -->`` written anew."""
    for name, sentence in sentences().items():
        mark = f"<!-- took: {name} -->\n"
        before, found, after = page.partition(mark)
        if not found:
            raise ValueError(f"docs/gallery.md has no {mark.strip()}")
        page = before + mark + sentence + "\n" + after.partition("\n")[2]
    return page


def timed(make: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of a call, and what it returns."""
    begun = time.perf_counter()
    made = make()
    return time.perf_counter() - begun, made


def make_all() -> None:
    """Make the pictures that are not curves."""
    os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo reads it when it is imported
    made: dict[str, Any] = {"machine": machine()}
    seconds, (states, branches) = timed(planned)
    made["planned"] = {"seconds": seconds, "steps": ACTIONS * (LENGTH * PLANS + 1)}
    say(f"  planned a run in {seconds:.1f} s: {states[-1, 0]:.1f} m in {ACTIONS * FRAME:g} s")
    for theme in THEMES:
        (GALLERY / f"branches-{theme}.svg").write_text(branching(states, branches, theme))
    try:
        save_gif("planned", rendered(states), ACTIONS * FRAME, 64)
    except Exception as error:  # of a missing library, or a missing device
        backend = os.environ["MUJOCO_GL"]
        say(f"  no picture of the planned run: MuJoCo cannot draw (MUJOCO_GL={backend}): {error}")
    seconds, states = timed(crowd)
    made["crowd"] = {"seconds": seconds, "steps": CROWD * CROWD_STEPS}
    say(f"  simulated {CROWD:,} HalfCheetahs in {seconds:.1f} s")
    save_gif("crowd", crowd_frames(states), CROWD_STEPS * FRAME, 32)
    seconds, frames, returns = watched()
    made["watched"] = {"seconds": seconds, "returns": returns}
    say(f"  trained and watched dppo.py in {seconds:.0f} s")
    save_gif("watched", frames, 200 * FRAME, 32)
    MADE.write_text(json.dumps(made, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", action="store_true", help="only draw learning curves")
    options = parser.parse_args()
    GALLERY.mkdir(exist_ok=True)
    for curve in CURVES:
        for theme in THEMES:
            (GALLERY / f"{curve.name}-{theme}.svg").write_text(learning_curve(curve, theme))
    if not options.curves:
        make_all()
    PAGE.write_text(with_sentences(PAGE.read_text()))


if __name__ == "__main__":
    main()
