"""Commands that look inside: attend shows attention, heads measures it, design makes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heed.cli.common import (
    AsJson,
    Device,
    PluginFiles,
    RunFolder,
    Weights,
    app,
    console,
    print_json,
    print_text,
    print_warning,
)

if TYPE_CHECKING:
    from heed.probe.attend import View


@app.command(rich_help_panel="Look inside")
def attend(
    run: RunFolder,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts to look at. Default: the lines of standard input; with --over-training "
            "16 texts of dev."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="The lines of this file (- for standard input).")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="The translation to read. Default: the model's own."),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="encoder, decoder or cross. Default: cross of a translator."),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(min=1, help="One layer, counted from 1. Default: the last.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            help="One head, counted from 1, or mean. Default: the mean; in a figure every head."
        ),
    ] = None,
    words: Annotated[bool, typer.Option("--words", help="Show words instead of subwords.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a figure (.png, .svg, .pdf), a page to explore (.html), or the exact "
            "numbers (.json). With several texts, write one numbered file each."
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Verify sums, masks, padding and the future; exit code 1 on a failure."
        ),
    ] = False,
    lens: Annotated[
        bool,
        typer.Option(
            "--lens",
            help="What each layer would predict, and the rank of the target's token (without "
            "--target, of the model's own output).",
        ),
    ] = False,
    patch: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND.LAYER.HEAD=EDIT",
            help="Edit a head and show the output before and after: cross.2.3=uniform. Layer and "
            "head count from 1, * is all. Patterns: uniform, first, last, diagonal, previous, "
            "next; zero silences.",
        ),
    ] = None,
    patch_from: Annotated[
        str | None,
        typer.Option(help="For --patch cross.2.3: use the weights that head has on this sentence."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="Another run: pair its heads with this run's by what they attend to."),
    ] = None,
    against_weights: Annotated[
        str | None,
        typer.Option(help="Other weights to pair with, of --against or this run: last or a step."),
    ] = None,
    over_training: Annotated[
        bool,
        typer.Option(
            "--over-training",
            help="Show how each head's attention formed over the run's snapshots "
            "(train.snapshot_every).",
        ),
    ] = False,
    json: AsJson = False,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
) -> None:
    """Show what a model attends to: which tokens each token attends to.

    Rows are queries and columns are keys. The weights are exact: the plain formula on what
    translate, classify or generate would read of the text, special tokens included.

    heed attend runs/demo "The old woman sees the cat."

    heed attend runs/demo "The old woman sees the cat." --layer 2 --head 1 --out map.png

    heed attend runs/demo "The old woman sees the cat." --out map.html

    heed attend runs/demo "The old woman sees the cat." --check

    heed attend runs/demo "The old woman sees the cat." --lens

    heed attend runs/demo "The old woman sees the cat." --patch "cross.2.*=uniform"

    heed attend runs/demo "The old woman sees the cat." --against runs/demo-2

    heed attend runs/demo --over-training --out history.png
    """
    from heed.api import load
    from heed.pipelines import line_io
    from heed.probe.attend import (
        View,
        attend_texts,
        check_texts,
        lens_texts,
        refuse_conflicts,
        refuse_view,
        render_view,
    )
    from heed.probe.lens import render_lens
    from heed.probe.mask_checks import render_checks

    patches, compared = bool(patch or patch_from), bool(against or against_weights)
    refuse_conflicts(
        check=check,
        lens=lens,
        patch=patches,
        against=compared,
        over_training=over_training,
        weights=weights,
        out=out,
    )
    view = View.from_flags(kind, layer, head, words=words)
    refuse_view(view, check=check, lens=lens, patch=patches and out is None)
    if over_training:
        given = line_io.open_lines(text, file, notify=print_warning) if text or file else None
        _follow(run, given, view, target, out, device=device, json=json)
        return
    lines = line_io.open_lines(text, file, notify=print_warning)
    model = load(run, device=device, weights=weights)
    if check:
        checks = check_texts(model, lines, target=target)
        if json:
            print_json([one.to_dict() for one in checks])
        else:
            console().print(render_checks(checks))
        raise typer.Exit(0 if all(one.passed for one in checks) else 1)
    if lens:
        for one in lens_texts(model, lines, target=target):
            if json:
                print_json(one.to_dict())
            else:
                console().print(render_lens(one))
        return
    if patches:
        _patch(model, list(lines), view, patch or [], patch_from, target, out, json=json)
        return
    if compared:
        other = load(against or run, device=device, weights=against_weights or "best")
        models = (run, weights), (against or run, against_weights or "best")
        _compare(model, other, list(lines), view, models, target, out, json=json)
        return
    for maps, path in attend_texts(model, lines, view, target=target, out=out):
        if path is not None:
            print_text(f"wrote {path}: {maps.text}", err=json)
        if json:
            print_json(maps.select(view.kind, view.layer, view.head).to_dict())
        elif path is None:
            console().print(render_view(maps, view))


@app.command(rich_help_panel="Look inside")
def heads(
    run: RunFolder,
    split: Annotated[
        str | None,
        typer.Option(help="dev, test, train or a name in data.sets. Default: dev."),
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="A file to read instead; repeat for more.")
    ] = None,
    gold: Annotated[
        Path | None,
        typer.Option(help="Gold alignments of the files in --test, a line for each pair: 0-0 1-2."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Read the first N texts. Default: all.")] = None,
    align: Annotated[
        bool,
        typer.Option(
            "--align",
            help="Choose the cross-attention heads that align words best on dev, and score them "
            "on test (translators).",
        ),
    ] = False,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="Silence each head in turn, then remove heads greedily."),
    ] = False,
    how: Annotated[
        str | None,
        typer.Option(
            help="How --ablate silences: zero, mean (its mean output) or uniform (attention). "
            "Default: zero."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help="What --ablate scores by: loss, bleu (greedy translations), or accuracy of "
            "other tasks. Default: loss."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Also write a figure (.png, .svg, .pdf); of --ablate, the removal curve beside it."
        ),
    ] = None,
    prune: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND.LAYER.HEAD|N",
            help="Write a smaller run without these heads: cross.2.3, encoder.1.*; with --ablate "
            "also a number of heads, those that cost least.",
        ),
    ] = None,
    pruned_run: Annotated[
        Path | None, typer.Option("--run", help="The folder of the run that --prune writes.")
    ] = None,
    json: AsJson = False,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
) -> None:
    """Measure what every attention head does, over a whole set, with intervals.

    Entropy, mean distance, the share of weight on the previous, next, same and
    first token and on punctuation, induction, and how well cross-attention
    aligns words. Heads are named by these numbers, by rules that the table
    states. Layers and heads count from 1.

    heed heads runs/demo --out heads.png

    heed heads runs/demo --align

    heed heads runs/demo --ablate --how mean --limit 500

    heed heads runs/demo --ablate --prune 8 --run runs/demo-pruned
    """
    from heed.files import check_writable
    from heed.probe.inspect_heads import Options, inspect_heads, removal_order, render_result
    from heed.probe.prune import check_flags, choose_heads, prune_run

    check_flags(prune or [], pruned_run, ablate=ablate, how=how)
    if pruned_run is not None and not ablate:
        print_text(prune_run(run, prune or [], pruned_run, weights=weights).describe())
        return
    check_writable(out)
    options = Options(
        split=split,
        test=test or (),
        gold=gold,
        limit=limit,
        out=out,
        align=align,
        ablate=ablate,
        how=how,
        metric=metric,
        weights=weights,
    )
    result = inspect_heads(run, options, device=device, notify=console(quiet=True).print)
    if json:
        print_json(result.to_dict())
    else:
        console().print(render_result(result))
    if pruned_run is not None:
        heads = choose_heads(prune or [], removal_order(result))
        print_text(prune_run(run, heads, pruned_run, weights=weights).describe(), err=json)


@app.command(rich_help_panel="Look inside")
def design(
    file: Annotated[
        Path | None,
        typer.Argument(help="Keys (and values): a .json, .toml, .csv or .tsv file."),
    ] = None,
    course: Annotated[
        bool,
        typer.Option("--course", help="The keys and values of the course's problem set."),
    ] = False,
    select: Annotated[
        int | None, typer.Option(help="Give all weight to this item, counted from 1.")
    ] = None,
    average: Annotated[
        str | None, typer.Option(help="Average these items, as 1,2; or all.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Give these weights, one for each item: 0.5,0.3,0.2.")
    ] = None,
    identity: Annotated[
        bool,
        typer.Option("--identity", help="Select every value in turn. The default for a file."),
    ] = False,
    replace_key: Annotated[
        int | None, typer.Option(help="Choose another key for this item, not only a query.")
    ] = None,
    unit: Annotated[bool, typer.Option("--unit", help="The new key has the length 1.")] = False,
    query: Annotated[
        str | None, typer.Option(help="With --replace-key: this query, not the best one.")
    ] = None,
    sharpness: Annotated[
        float, typer.Option(help="Weight of the chosen items where others should have none.")
    ] = 0.99,
    scale: Annotated[
        float | None, typer.Option(help="What scores are multiplied by. Default: 1/√width.")
    ] = None,
    values: Annotated[
        Path | None, typer.Option(help="Values in a file of their own, a row for each key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Draw keys, query and weights: .png, .svg or .pdf.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            help="Compare your own attention function with heed's. The file is executed.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Find the query or key that makes attention select, average or weight given values.

    Prints the shortest query, what attention makes of it, and its error. If no query can reach
    the target, print a proof and the closest query, and exit with code 1. With --course and no
    task, the whole problem set is solved.

    heed design --course

    heed design --course --average 1,2 --out average.png

    heed design keys.json --replace-key 3 --unit --select 3 --sharpness 0.999

    heed design --check my_attention.py:attend
    """
    from heed.probe.run_design import DesignOptions, run_design

    passed, result, report = run_design(
        DesignOptions(
            file=file,
            course=course,
            select=select,
            average=average,
            weights=weights,
            identity=identity,
            replace_key=replace_key,
            unit=unit,
            query=query,
            sharpness=sharpness,
            scale=scale,
            values=values,
            out=out,
            check=check,
        )
    )
    if json:
        print_json(result)
    else:
        print_text(report)
    if not passed:
        raise typer.Exit(1)


def _patch(
    model: Any,
    lines: list[list[str]],
    view: View,
    patches: list[str],
    source: str | None,
    target: str | None,
    out: Path | None,
    *,
    json: bool,
) -> None:
    """Show each text's output before and after the edits; a file gets the edited maps."""
    from heed.probe.attend import attend_texts, read_texts
    from heed.probe.patch import edit_attention
    from heed.probe.patched_output import parse_patches, patch_output, render_output

    edits = parse_patches(model, patches, source)
    for text in read_texts(model, lines, target):
        output = patch_output(model, edits, *text)
        if json:
            print_json(output.to_dict())
        else:
            console().print(render_output(output))
    if out is not None:
        with edit_attention(model.model, edits):
            for maps, path in attend_texts(model, lines, view, target=target, out=out):
                print_text(f"wrote {path}: {maps.text}", err=json)


def _compare(
    model: Any,
    other: Any,
    lines: list[list[str]],
    view: View,
    models: tuple[tuple[Path, str], tuple[Path, str]],
    target: str | None,
    out: Path | None,
    *,
    json: bool,
) -> None:
    """Show the pairs of heads of two models, or write them to a file."""
    from heed.probe.attend import read_texts
    from heed.probe.map_comparison import (
        compare_maps,
        name_models,
        render_comparison,
        save_comparison,
    )

    names = name_models(*models)
    texts = list(read_texts(model, lines, target))
    comparisons = compare_maps(model, other, texts, view, names=names)
    for path in save_comparison(comparisons, out) if out is not None else ():
        print_text(f"wrote {path}: {names[0]} and {names[1]}", err=json)
    if json:
        print_json([one.to_dict() for one in comparisons])
    elif out is None:
        for one in comparisons:
            console().print(render_comparison(one))


def _follow(
    run: Path,
    lines: Iterable[list[str]] | None,
    view: View,
    target: str | None,
    out: Path | None,
    *,
    device: str,
    json: bool,
) -> None:
    """Show how each head's maps changed over the snapshots, or write it to a file."""
    from heed.api import load
    from heed.errors import ConfigError
    from heed.probe.attend import read_texts
    from heed.probe.map_history import (
        follow_heads,
        read_probe_set,
        render_histories,
        require_snapshots,
        save_history,
    )
    from heed.probe.map_output import check_result_format

    if target is not None and lines is None:
        raise ConfigError(["--target is the translation of a text: give the text too."])
    if out is not None:
        check_result_format(out)
    steps = require_snapshots(run)
    if lines is None:
        texts = read_probe_set(run, steps[-1], device=device)
    else:
        last = load(run, device=device, weights=str(steps[-1]))
        texts = list(read_texts(last, lines, target))
    histories = follow_heads(
        lambda step: load(run, device=device, weights=str(step)), steps, texts, view, run=run.name
    )
    for path in save_history(histories, out) if out is not None else ():
        print_text(f"wrote {path}: {run.name}, {len(steps)} snapshots", err=json)
    if json:
        print_json([one.to_dict() for one in histories])
    elif out is None:
        console().print(render_histories(histories))
