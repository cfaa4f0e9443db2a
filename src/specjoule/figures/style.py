"""House style of the figures: sizes, fonts, one fixed look per drafter, provenance across the figure, stable bytes."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjoule.meters.base import PROVENANCE
from specjoule.tables.provenance import all_measured, known_meters, provenance_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ONE_COLUMN_IN = 3.4
"""Width of a figure that fits one column of a two-column page, inches."""
TWO_COLUMNS_IN = 7.0
"""Width of a figure across both columns, inches."""

_SCHEMES: dict[str, tuple[str, str]] = {
    "plain": ("#000000", "o"),
    "plain-matched": ("#666666", "o"),
    "ngram": ("#E69F00", "s"),
    "layer-skip": ("#7A5C00", "P"),
    "mtp": ("#009E73", "^"),
    "assistant": ("#56B4E9", "v"),
    "eagle3": ("#CC79A7", "D"),
    "dflash": ("#0072B2", "o"),
    "dspark": ("#D55E00", "X"),
    "draft-model": ("#8F3BB8", "*"),
}
"""Colour (Okabe and Ito's set, told apart by colour-blind readers, plus browns and purple) and marker by scheme."""


@dataclass(frozen=True)
class Look:
    """Colour, marker, dash and marker filling of one drafter: the same in every figure, whatever else is drawn."""

    color: str
    marker: str
    dash: str | tuple[int, tuple[float, ...]]
    fill: float
    """How much of the colour fills the marker: 1 all, 0 none (white)."""

    @property
    def face(self) -> str:
        """Colour inside the marker."""
        from matplotlib.colors import to_hex, to_rgb

        return str(to_hex([self.fill * part + (1.0 - self.fill) for part in to_rgb(self.color)]))

    def line(self) -> dict[str, Any]:
        """Keyword arguments for a line with markers."""
        return {
            "color": self.color, "marker": self.marker, "linestyle": self.dash, "markerfacecolor": self.face,
            "markeredgecolor": self.color, "markersize": 4.2, "markeredgewidth": 0.9, "linewidth": 1.1,
        }  # fmt: skip

    def points(self) -> dict[str, Any]:
        """Keyword arguments for single points."""
        return {"marker": self.marker, "facecolor": self.face, "edgecolor": self.color}


def look(scheme: str, verify_width: float) -> Look:
    """Return the look of a drafter: colour and marker by scheme, dash and filling by the width it verifies."""
    color, marker = _SCHEMES.get(scheme, ("#444444", "h"))
    if verify_width <= 1:
        return Look(color, marker, "-", 1.0 if scheme == "plain" else 0.0)
    dashes: tuple[tuple[float, str | tuple[int, tuple[float, ...]], float], ...] = (
        (4, "-", 1.0), (8, (0, (4, 1.5)), 0.4), (16, "-", 0.0), (1e9, (0, (1, 1.2)), 1.0),
    )  # fmt: skip
    for limit, dash, fill in dashes:
        if verify_width <= limit:
            return Look(color, marker, dash, fill)
    raise AssertionError("unreachable")


def house_style() -> AbstractContextManager[None]:
    """Return a context in which figures are drawn in the house style; it leaves global settings untouched."""
    import matplotlib as mpl
    import seaborn as sns

    mpl.use("Agg")
    settings: dict[str, Any] = dict(sns.axes_style("ticks"))
    settings.update(sns.plotting_context("paper"))
    settings.update({
        "font.family": "DejaVu Sans", "font.size": 7.5, "axes.titlesize": 7.5, "axes.labelsize": 7.5,
        "xtick.labelsize": 6.8, "ytick.labelsize": 6.8, "legend.fontsize": 6.8, "legend.frameon": False,
        "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.7, "xtick.major.width": 0.7,
        "ytick.major.width": 0.7, "xtick.major.size": 3, "ytick.major.size": 3, "axes.titleweight": "bold",
        "axes.titlelocation": "left", "grid.linewidth": 0.4, "grid.color": "#dddddd", "pdf.fonttype": 42,
        "ps.fonttype": 42, "svg.hashsalt": "specjoule", "figure.dpi": 100, "savefig.dpi": 220,
        "figure.constrained_layout.use": True, "axes.axisbelow": True,
    })  # fmt: skip
    return mpl.rc_context(settings)


def mark_provenance(fig: Figure, meters: Iterable[object], assumed_w_per_core: Iterable[float] = ()) -> None:
    """Print where the joules came from: across the figure where they were not measured, and below it always."""
    names = known_meters(meters)
    strip = 0.13 / fig.get_size_inches()[1]
    bottom = strip
    if fig.get_supxlabel():
        # The layout would put a common label at the figure's very edge, where the words on energy stand.
        fig.supxlabel(fig.get_supxlabel(), fontsize=7.5, y=strip, va="bottom")
        bottom += 0.16 / fig.get_size_inches()[1]
    fig.set_layout_engine("constrained", rect=(0, bottom, 1, 1 - bottom))
    said = f"Energy: {provenance_words(names, assumed_w_per_core)}."
    fig.text(0.995, 0.15 * strip, said, fontsize=5.8, color="#555555", ha="right")
    if names and not all_measured(names):
        words = " / ".join(PROVENANCE.get(m, m) for m in names if not all_measured([m]))
        width, height = fig.get_size_inches()
        size = min(26.0, 72 * 0.74 * width / (0.55 * len(words)))
        angle = 18 if width < 2.5 * height else 10
        fig.text(
            0.55, 0.52, words, ha="center", va="center", rotation=angle, fontsize=size, color="#777777", alpha=0.28,
            fontweight="bold", zorder=1000, gid="provenance",
        )  # fmt: skip


def save_figure(fig: Figure, directory: Path, name: str) -> list[Path]:
    """Write `name`.pdf and `name`.png whole, with the same bytes for the same figure; return the paths."""
    import matplotlib.pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    fixed: dict[str, dict[str, str | None]] = {
        "pdf": {"Creator": "SpecJoule", "Producer": "Matplotlib", "Title": name, "CreationDate": None},
        "png": {"Software": "SpecJoule", "Title": name},
    }
    paths = []
    for suffix, metadata in fixed.items():
        path, temporary = directory / f"{name}.{suffix}", directory / f".{name}.tmp.{suffix}"
        fig.savefig(temporary, format=suffix, metadata=metadata)
        fig.set_layout_engine("none")  # laid out once, for both: with many panels that is most of the work
        temporary.replace(path)
        paths.append(path)
    plt.close(fig)
    return paths


def empty_figure(words: str) -> Figure:
    """Return a figure that says in words why there is nothing to draw."""
    import matplotlib.pyplot as plt

    fig: Figure
    fig, axes = plt.subplots(figsize=(ONE_COLUMN_IN, 1.2))
    axes.axis("off")
    axes.text(0.5, 0.5, words, ha="center", va="center", wrap=True, fontsize=7.5)
    return fig
