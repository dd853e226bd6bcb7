"""Each acquiring or releasing atomic access has a comment that names its partner."""

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[1] / "csrc"
HEADERS = sorted(path.name for path in CSRC.glob("*.h"))
ORDERS = re.compile(r"memory_order_(acquire|release|acq_rel|seq_cst)")
CODE = "\n".join(re.sub("//.*", "", (CSRC / name).read_text()) for name in HEADERS)


def comment_above(lines, at):
    """Return the comment directly above the statement that contains line ``at``."""
    while not re.search(r"[;{}:]$|^\s*//|^$", lines[at - 1]):
        at -= 1
    comment = []
    while lines[at - 1].lstrip().startswith("//"):
        at -= 1
        comment.insert(0, lines[at].strip("/ "))
    return " ".join(comment)


@pytest.mark.parametrize("name", HEADERS)
def test_each_ordering_access_names_its_partner(name):
    lines = (CSRC / name).read_text().splitlines()
    for at, line in enumerate(lines):
        if not ORDERS.search(line):
            continue
        _, found, sync = comment_above(lines, at).partition("SYNC: ")
        assert found, f"{name}:{at + 1}: no SYNC comment above"
        assert "pairs with" in sync, f"{name}:{at + 1}: {sync}"
        for function in re.findall(r"\b(\w+)\(\)", sync):
            assert re.search(rf"\b{function}\([^;]*\{{", CODE), f"{name}: no {function}()"


def test_the_pattern_finds_ordering_accesses():
    assert len(ORDERS.findall(CODE)) > 30
