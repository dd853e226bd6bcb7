"""The pictures of docs/gallery.md: curves show the newest results, and files are small."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("gallery")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_curves_of_the_gallery_show_the_newest_results(theme, gallery):
    for curve in gallery.CURVES:
        drawn = gallery.learning_curve(curve, theme)
        assert (gallery.GALLERY / f"{curve.name}-{theme}.svg").read_text() == drawn, (
            "run python benchmarks/gallery.py --curves"
        )


def test_the_gallery_says_what_its_pictures_took(gallery):
    page = gallery.PAGE.read_text()
    assert gallery.with_sentences(page) == page, "run python benchmarks/gallery.py --curves"
    for curve in gallery.CURVES:
        assert f"\n{curve.command}\n" in page


def test_pictures_of_the_gallery_are_small_and_shown(gallery):
    files = [path for path in gallery.GALLERY.iterdir() if path != gallery.MADE]
    sizes = [path.stat().st_size for path in files]
    assert max(sizes) < gallery.LARGEST
    assert sum(sizes) < 2_000_000
    page = gallery.PAGE.read_text()
    for path in files:
        assert f"pictures/gallery/{path.name}" in page
