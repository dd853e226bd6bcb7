"""Write docs/reference.md: the public names of each public package, with their first lines."""

import importlib
import inspect
import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
PACKAGES = [
    "pysampler",
    "pysampler.sync",
    "pysampler.envs.meta",
    "pysampler.envs.meta.mujoco",
    "pysampler.envs.meta.plain",
    "pysampler.adapters.sb3",
    "pysampler.adapters.tianshou",
    "pysampler.adapters.torchrl",
]


def text():
    parts = ["# Reference\n\nThe public names. `help(name)` has arguments, results and examples.\n"]
    for package in PACKAGES:
        module = importlib.import_module(package)
        parts.append(f"\n## {package}\n\n| name | |\n| --- | --- |\n")
        for name in sorted(module.__all__):
            thing = getattr(module, name)
            if not name.startswith("__") and not inspect.ismodule(thing):
                parts.append(f"| `{name}` | {first_line(thing)} |\n")
    return "".join(parts)


def first_line(thing):
    paragraphs = (inspect.getdoc(thing) or "").split("\n\n")
    if inspect.isbuiltin(thing):  # after its signature
        del paragraphs[0]
    line = paragraphs[0].replace("\n", " ").replace("``", "`")
    return re.sub(":(class|meth|func|mod):", "", line)


if __name__ == "__main__":
    PAGE.write_text(text())
