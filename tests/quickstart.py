"""Follow docs/quickstart.md to the letter, in a clone and an environment of its own.

    python tests/quickstart.py build/quickstart

Runs the commands of the page, except those with sudo, and all Python up to the next command or the
end of the page as a program. It fails where a reader would.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "-q", ROOT, folder / "pysampler"], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    environment = {**os.environ, "PATH": f"{folder}/venv/bin:{os.environ['PATH']}"}
    page = (ROOT / "docs" / "quickstart.md").read_text()
    blocks = re.findall(r"^```(python|console)\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    code = ""
    for language, text in [*blocks, ("console", "")]:
        if language == "python":
            code += text
            continue
        commands = [
            line for line in re.findall(r"^\$ (.*)", text, re.MULTILINE) if "sudo" not in line
        ]
        if code:
            (folder / "program.py").write_text(code)
            commands.insert(0, "python program.py")
        for command in commands:
            print("$", command, flush=True)
            subprocess.run(command, shell=True, cwd=folder, env=environment, check=True)


if __name__ == "__main__":
    main()
