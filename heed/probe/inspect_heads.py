"""`heed heads`: report cards of a run's heads, heads that align, or what each head is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from heed import plot
from heed.errors import ConfigError
from heed.probe.ablate import Ablation, ablate_heads
from heed.probe.alignment_heads import (
    AlignmentResult,
    choose_alignment_heads,
    require_translator,
)
from heed.probe.examples import open_probe_set
from heed.probe.head_cards import HeadReport, measure_heads
from heed.probe.head_figures import draw_costs, draw_heads, draw_removals
from heed.probe.head_tables import render_ablation, render_alignment, render_heads
from heed.probe.patch import ZERO, Head
from heed.runs.metric_plot import check_format
from heed.runs.run import Run
from heed.runs.weight_files import BEST_WEIGHTS
from heed.terminal import Say

Result = HeadReport | AlignmentResult | Ablation


@dataclass(frozen=True)
class Options:
    """Options of `heed heads`."""

    split: str | None = None
    test: Sequence[str] = ()
    gold: Path | None = None
    """Gold alignments of the set that `test` names."""
    limit: int | None = None
    out: Path | None = None
    align: bool = False
    ablate: bool = False
    how: str | None = None
    metric: str | None = None
    weights: str = BEST_WEIGHTS

    def check(self) -> None:
        """Raise an error for options that exclude each other."""
        if self.align and self.ablate:
            raise ConfigError(["--align and --ablate are two questions: ask one of them."])
        if not self.ablate and (self.how or self.metric):
            raise ConfigError(["--how and --metric belong to --ablate."])
        if self.align and self.out is not None:
            raise ConfigError(["--align draws no figure: leave --out out."])
        if self.gold is not None and not self.test:
            raise ConfigError(["--gold has the links of files of your own: name them with --test."])
        if self.out is not None:
            check_format(self.out)


def inspect_heads(
    folder: Path,
    options: Options,
    *,
    device: str = "auto",
    notify: Say = lambda text: None,
) -> Result:
    """Answer the question that the options ask, and write its figures."""
    options.check()
    if options.align:  # before its set is looked for: other tasks may have no test set
        require_translator(Run.open(folder).recipe().task)
    probe = open_probe_set(
        folder,
        split=options.split or ("test" if options.align and not options.test else None),
        test=options.test,
        gold=options.gold,
        limit=options.limit,
        device=device,
        weights=options.weights,
    )
    if options.align:
        dev = open_probe_set(folder, limit=options.limit, device=device, weights=options.weights)
        return choose_alignment_heads(dev, probe, notify=notify)
    if options.ablate:
        ablation = ablate_heads(
            probe, how=options.how or ZERO, metric=options.metric or "loss", notify=notify
        )
        if options.out is not None:
            plot.save_as(draw_costs(ablation), options.out)
            plot.save_as(draw_removals(ablation), curve_path(options.out))
        return ablation
    report = measure_heads(probe, notify=notify)
    if options.out is not None:
        plot.save_as(draw_heads(report), options.out)
    return report


def curve_path(path: Path) -> Path:
    """Where the removal curve is written beside the figure of the costs."""
    return path.with_name(f"{path.stem}-curve{path.suffix}")


def render_result(result: Result) -> RenderableType:
    """The tables of a result."""
    if isinstance(result, HeadReport):
        return render_heads(result)
    return (
        render_alignment(result) if isinstance(result, AlignmentResult) else render_ablation(result)
    )


def removal_order(result: Result) -> list[Head]:
    """The heads in the order in which an ablation removed them, the cheapest first."""
    return [cost.head for cost in result.removals] if isinstance(result, Ablation) else []
