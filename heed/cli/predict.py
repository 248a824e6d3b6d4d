"""Commands that use a trained model: translate, classify, generate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import (
    DecodingCommand,
    Device,
    PluginFiles,
    RunFolder,
    Weights,
    app,
    output,
    print_warning,
)


@app.command(rich_help_panel="Use a model", cls=DecodingCommand)
def translate(
    context: typer.Context,
    run: RunFolder,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Sentences to translate. Default: the lines of standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Translate the lines of this file (- for standard input).")
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option("--with", help="Another run, for an ensemble; repeat for more."),
    ] = None,
    beam: int | None = None,
    nbest: Annotated[
        int, typer.Option(help="Translations per line (n-best), separated by tabs.")
    ] = 1,
    length_penalty: float | None = None,
    coverage_penalty: float | None = None,
    early_stop: bool | None = None,
    sample: Annotated[bool | None, typer.Option("--sample")] = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    copy_unknown: Annotated[bool | None, typer.Option("--copy-unknown")] = None,
    max_ratio: float | None = None,
    max_extra: int | None = None,
    batch_size: int | None = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print a score after each translation.")
    ] = False,
    alignments: Annotated[
        bool,
        typer.Option("--alignments", help="Print source-target word pairs after each translation."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
    precision: Annotated[
        str,
        typer.Option(
            help="float32, bf16 or, on a CPU, int8; with --engine ctranslate2 also float16."
        ),
    ] = "float32",
    engine: Annotated[str, typer.Option(help="Inference engine: heed or ctranslate2.")] = "heed",
    reverse: Annotated[
        bool,
        typer.Option(
            "--reverse", help="Translate in reverse; needs a run trained with data.bidirectional."
        ),
    ] = False,
) -> None:
    """Translate sentences, a file or standard input: one line out for each line in.

    Defaults come from the recipe's decode section. Any sampling option (--temperature … --seed)
    turns sampling on; --beam turns it off.

    heed translate runs/demo "The old woman sees the cat."

    heed translate runs/demo --beam 5 --scores < input.txt > output.tsv
    """
    from heed.api import Translator
    from heed.decode.settings import decode_flags
    from heed.pipelines import line_io
    from heed.pipelines.translate import TranslationLines

    settings = decode_flags(context.params)  # the options that are keys of [decode]
    translator = Translator.load(
        run,
        *(others or ()),
        device=device,
        precision=precision,
        engine=engine,
        weights=weights,
    )
    pipeline = translator.pipeline(nbest, alignments, reverse, **settings)
    line_io.run_lines(
        line_io.open_lines(text, file, notify=print_warning),
        TranslationLines(pipeline, scores, alignments, json, nbest > 1),
        out=output(),
        warn=print_warning,
    )


@app.command(rich_help_panel="Use a model")
def classify(
    run: RunFolder,
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to classify. Default: the lines of standard input."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Classify the lines of this file (- for standard input).")
    ] = None,
    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities", help="Print the probability of each class after the label."
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
) -> None:
    """Classify texts, a file or standard input: one line out for each line in.

    A run trained on text pairs reads two texts per line, separated by a tab.

    heed classify runs/mine "What a wonderful film!" --probabilities

    heed classify runs/mine < input.txt > labels.txt
    """
    from heed.api import Classifier
    from heed.pipelines import line_io
    from heed.pipelines.classify import ClassificationLines

    classifier = Classifier.load(run, device=device, precision=precision, weights=weights)
    columns = 2 if classifier.pipeline.classes.pairs else 1
    line_io.run_lines(
        line_io.open_lines(text, file, columns=columns, notify=print_warning),
        ClassificationLines(classifier.pipeline, probabilities, json),
        out=output(),
        warn=print_warning,
    )


@app.command(rich_help_panel="Use a model", cls=DecodingCommand)
def generate(
    context: typer.Context,
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Prompts to continue, like --prompt.")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            help="A prompt to continue; repeat for more. Default: the lines of standard input."
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Continue each line of this file (- for standard input).")
    ] = None,
    length: Annotated[int, typer.Option(help="Maximum number of new tokens.")] = 100,
    samples: Annotated[int, typer.Option(help="Samples per prompt.")] = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Stop before this string; repeat for more.")
    ] = None,
    cut_prompt: Annotated[
        bool,
        typer.Option("--cut-prompt", help="Drop the oldest tokens of a prompt that is too long."),
    ] = False,
    batch_size: int | None = None,
    stream: Annotated[
        bool | None,
        typer.Option(help="Print tokens as they are generated. Default: on a terminal."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per text.")] = False,
    weights: Weights = "best",
    device: Device = "auto",
    plugin: PluginFiles = None,
    precision: Annotated[str, typer.Option(help="float32, bf16 or, on a CPU, int8.")] = "float32",
) -> None:
    """Continue prompts with a language model: arguments, a file or standard input.

    Without any prompt, generate from an empty one. Defaults come from the recipe's decode
    section. Tokens are sampled, unless the recipe sets a beam and no sampling option is given.

    heed generate runs/mine --prompt "My fellow Americans" --length 50 --top-p 0.9

    heed generate runs/mine --samples 100 --seed 3 --json > texts.jsonl
    """
    from heed.api import LanguageModel
    from heed.decode.settings import decode_flags
    from heed.pipelines import line_io
    from heed.pipelines.generate import GenerationLines

    model = LanguageModel.load(run, device=device, precision=precision, weights=weights)
    pipeline = model.pipeline(**decode_flags(context.params))
    out = output()
    streamed = out.isatty() if stream is None else stream
    stream_to = out if streamed else None
    prompts = [*(text or ()), *(prompt or ())]
    no_input = file is None and sys.stdin is not None and sys.stdin.isatty()
    groups = line_io.open_lines(prompts or ([""] if no_input else None), file, notify=print_warning)
    line_io.run_lines(
        line_io.lines_or_default(groups, ""),
        GenerationLines(pipeline, length, samples, stop or (), cut_prompt, json, stream_to),
        out=out,
        warn=print_warning,
    )
