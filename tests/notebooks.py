"""Execute the notebooks of the documentation, and write their outputs into the files.

    python tests/notebooks.py                   # all
    python tests/notebooks.py slow-sampling

Outputs have measured numbers: run it on an idle machine.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def executed(path: Path, folder: Path) -> Any:
    """Return a notebook with the outputs of a fresh kernel; raise the error of a cell that fails.

    Args:
        path: The notebook, which does not change.
        folder: The working directory of the kernel.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        notebook, kernel_name=KERNEL["name"], timeout=100, resources=where, record_timing=False
    )
    client.execute()
    return notebook


def cleaned(notebook: Any) -> Any:
    """Remove the metadata of a run: times, and versions of Python; return the notebook."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": KERNEL["language"]}}
    )
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            cell.outputs = merged(cell.outputs)
    return notebook


def merged(outputs: list[Any]) -> list[Any]:
    """Join texts that the kernel printed in several messages."""
    joined: list[Any] = []
    for output in outputs:
        stream = output.get("name")
        if stream is not None and joined and joined[-1].get("name") == stream:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder))
        nbformat.write(cleaned(notebook), path)


if __name__ == "__main__":
    main()
