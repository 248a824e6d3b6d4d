"""The figures of a benchmark as tables for the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from heed.bench.like_for_like import SpeedComparison
from heed.bench.recipe_speed import RecipeFigures
from heed.bench.speed_table import comparison_notes, comparison_text
from heed.bench.standard_shapes import StandardFigures
from heed.terminal import build_note, build_table


def recipe_report(figures: RecipeFigures) -> RenderableType:
    """The tables of a recipe: training speed, start-up, memory and decoding."""
    began = Text("From the start of the command to the end of its first update:")
    notes = [
        f"Share of peak: of {figures.peak_tflops:.3g} TFLOP/s, one matrix product in "
        f"{figures.dtype} measured here.",
        figures.speed,
        "",
    ]
    return Group(_training(figures), *map(Text, notes), began, _startup(figures), _rest(figures))


def _training(figures: RecipeFigures) -> Table:
    shape = figures.fixed_shape
    source = f"{shape['source_length']}→" if shape["source_length"] else ""
    real = f"real lengths,\n{figures.shapes} shapes"
    full = f"no padding,\n{shape['batch_size']} texts of {source}{shape['length']}"
    table = build_table("training", real, full, right=(real, full))
    paces = (figures.real, figures.fixed)

    def row(name: str, of: str, form: str = ",.0f") -> None:
        table.add_row(name, *(f"{getattr(pace, of):{form}}" for pace in paces))

    row("tokens/s, padding counted", "padded_tokens_per_second")
    row("tokens/s, real", "real_tokens_per_second")
    row("tokens/s, real, target only", "target_tokens_per_second")
    row("padding", "padding", ".1%")
    row("updates/s", "updates_per_second", ".2f")
    row("TFLOP/s", "tflops", ".3g")
    shares = (figures.share_of_peak, figures.fixed_share_of_peak)
    table.add_row("share of peak", *(f"{share:.1%}" for share in shares), end_section=True)
    table.add_row("padded tokens/s, real over full", Text(f"{figures.real_over_fixed:.1%}", "bold"))
    return table


def _startup(figures: RecipeFigures) -> Table:
    table = build_table("part", "seconds", right=["seconds"], show_header=False)
    for name, seconds in figures.startup.items():
        style = "bold" if name == "total" else ""
        table.add_row(name, f"{seconds:.2f} s", style=style, end_section=name == "other")
    return table


def _rest(figures: RecipeFigures) -> Table:
    table = build_table("quantity", "value", show_header=False)
    table.add_row("parameters", f"{figures.parameters:,}")
    table.add_row("vocabulary", f"{figures.vocabulary:,}")
    table.add_row("peak memory", _bytes(figures.memory))
    for method, rate in figures.decoding.items():
        table.add_row(f"{method} decoding", f"{rate:,.1f} sentences/s")
    return table


def standard_report(figures: list[StandardFigures]) -> RenderableType:
    """The table of the standard shapes, and how the steps of each were executed."""
    on_gpu = any(row.memory is not None for row in figures)
    columns = ["tokens/s", "updates/s", "of peak"] + ["memory"] * on_gpu
    table = build_table("full training step", *columns, right=columns, compact=True)
    for row in figures:
        cells = [f"{row.tokens_per_second:,.0f}", f"{row.updates_per_second:.2f}"]
        cells += [f"{row.share_of_peak:.1%}"] + [_bytes(row.memory)] * on_gpu
        table.add_row(row.name, *cells)
    peak = max(row.peak_tflops for row in figures)
    notes = [f"Of peak: of a large matrix product, timed in alternation; here {peak:.3g} TFLOP/s."]
    notes += [f"{row.name}: {row.speed}" for row in figures]
    return Group(table, *map(Text, notes))


def comparison_report(comparisons: list[SpeedComparison]) -> RenderableType:
    """The tables of a comparison with a peer, like for like first, and how they were measured."""
    texts = [f"{comparison_text(comparison)}\n" for comparison in comparisons]
    notes = (build_note(line) for line in comparison_notes(comparisons))
    return Group(*(Text(text, no_wrap=True) for text in texts), *notes)


def _bytes(number: int | None) -> str:
    return "–" if number is None else f"{number / 2**30:.2f} GiB"
