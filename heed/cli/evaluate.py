"""Commands that score: evaluate a run, score translation files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import (
    AsJson,
    Bootstrap,
    DecodingCommand,
    Device,
    Metric,
    PluginFiles,
    SentencesTo,
    Weights,
    app,
    console,
    print_json,
)


@app.command(rich_help_panel="Score", cls=DecodingCommand)
def evaluate(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="A run folder, created by `heed train`; with --text, several to compare.",
        ),
    ],
    test: Annotated[
        list[str] | None,
        typer.Option(
            help="A file to evaluate on; repeat for the other side, or more files of one set."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="dev, test, train or a name in data.sets. Default: test, else dev."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="The talk or document of each text: a column, or a file with a name per line."
        ),
    ] = None,
    no_header: Annotated[
        bool,
        typer.Option("--no-header", help="Read the first row of --test tables as an example."),
    ] = False,
    sentences: SentencesTo = None,
    beam: int | None = None,
    metric: Metric = None,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline", help="Also train and score baselines on the same data (classifiers)."
        ),
    ] = False,
    calibrate: Annotated[
        bool | None,
        typer.Option(
            "--calibrate/--uncalibrate",
            help="Fit a temperature on dev and save it in the run, or delete it (classifiers).",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            help="A text: print the loss of each token (language models); repeat for more. With "
            "several runs: a table of texts and runs."
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Tokens that a language model reads at once, also more than it was trained on. "
            "Default: data.max_length."
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Tokens between windows over long text. Default: half a window."),
    ] = None,
    bootstrap: Bootstrap = 1000,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Score a run on held-out text with intervals, with and without texts that occur in train.

    heed evaluate runs/demo

    heed evaluate runs/mine --test test.en --test test.fr --sentences scores.tsv

    heed evaluate runs/sorter --baseline --calibrate

    heed evaluate runs/writer --text "My fellow citizens, thank you."

    heed evaluate runs/writer runs/poet --text "Thank you." --text "Good night."
    """
    from heed.evaluate.evaluate_run import evaluate_run, score_texts
    from heed.evaluate.job import Options
    from heed.evaluate.score_files import check_resamples, parse_metrics
    from heed.evaluate.tables import render_evaluation
    from heed.files import check_writable

    check_resamples(bootstrap)
    check_writable(sentences, "--sentences")
    metrics = () if metric is None else parse_metrics(metric)
    decode = {} if beam is None else {"beam": beam}
    options = Options(
        split,
        test or (),
        metrics,
        bootstrap,
        sentences,
        decode,
        baseline=baseline,
        calibrate=calibrate,
        groups=groups,
        header=False if no_header else None,
        text=text or (),
        window=window,
        stride=stride,
        weights=weights,
    )
    show = print_json if json else lambda result: console().print(render_evaluation(result))
    if len(runs) > 1:
        show(score_texts(runs, options, device=device))
        return
    # Messages go to standard error: a closed pipe must not end the work before its result is saved.
    evaluate_run(runs[0], options, device=device, notify=console(quiet=True).print, on_result=show)


@app.command(rich_help_panel="Score")
def score(
    hypotheses: Annotated[
        list[Path],
        typer.Argument(
            help="Translations, one per line, or evaluated runs. Several: each is compared with "
            "the first."
        ),
    ],
    ref: Annotated[
        list[Path] | None,
        typer.Option(
            help="References, one per line; repeat for several. Evaluated runs contain theirs."
        ),
    ] = None,
    src: Annotated[
        Path | None, typer.Option(help="Source sentences, for BLEU by source length.")
    ] = None,
    sentences: SentencesTo = None,
    metric: Metric = None,
    bootstrap: Bootstrap = 1000,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the bootstrap. Default: sacreBLEU's.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Score translations with sacreBLEU, with intervals; test each system against the first.

    heed score out.fr --ref test.fr --src test.en

    heed score before.fr after.fr --ref test.fr

    heed score runs/before runs/after --ref test.fr
    """
    from heed.evaluate.score_files import score_files
    from heed.evaluate.tables import render_scores
    from heed.files import check_writable

    check_writable(sentences, "--sentences")
    scores = score_files(hypotheses, ref or [], src, metrics=metric, resamples=bootstrap, seed=seed)
    if sentences is not None:
        sentences.write_text(scores.sentence_tsv(), encoding="utf-8")
    if json:
        print_json(scores.to_dict())
    else:
        console().print(render_scores(scores.to_dict()))
