"""The notebooks of the documentation: their cells run, and the files have outputs to show."""

import copy
import re
import signal
from pathlib import Path

import nbformat
import notebooks
import pytest
from nbclient.exceptions import CellExecutionError

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def handlers_return():
    """nbclient replaces handlers of signals while it runs, and then sets the defaults."""
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def code_cells(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [pytest.param(one, marks=[pytest.mark.long] * (one.stem == "slow-sampling")) for one in PATHS],
    ids=lambda path: path.stem,
)
def test_notebooks_run_in_a_fresh_kernel(path, tmp_path):
    pytest.importorskip("torch")
    for cell in notebooks.executed(path, tmp_path).cells:
        for output in cell.get("outputs", ()):
            assert output.get("name") != "stderr", output.text


@pytest.mark.slow
def test_a_failing_cell_raises_its_error(tmp_path):
    path = tmp_path / "failing.ipynb"
    cells = [nbformat.v4.new_code_cell("1 / 0")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    with pytest.raises(CellExecutionError, match="ZeroDivisionError"):
        notebooks.executed(path, tmp_path)


@each_notebook
def test_notebooks_have_the_outputs_of_one_run(path):
    cells = code_cells(path)
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    for cell in cells:
        assert cell.outputs or not re.search(r"^(?:print\(|plt\.show)", cell.source, re.MULTILINE)
        kinds = [(output.output_type, output.get("name")) for output in cell.outputs]
        assert all(kind != "error" and name != "stderr" for kind, name in kinds), cell.source


@each_notebook
def test_notebooks_have_no_metadata_of_a_run(path):
    notebook = nbformat.read(path, as_version=4)
    assert notebooks.cleaned(copy.deepcopy(notebook)) == notebook, "run python tests/notebooks.py"
    assert notebook.metadata.kernelspec.name == "python3"


@each_notebook
def test_outputs_name_no_folder_of_a_machine(path):
    assert re.findall(r"/(?:home|root|tmp|work)/", path.read_text()) == []


@each_notebook
def test_files_linked_by_a_notebook_exist(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)", cell.source):
                assert "://" in link or (Path(path).parent / link).exists(), link
