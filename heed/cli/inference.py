"""Commands that write with a trained model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import Decoding, Device, RunFolder, app, output


@app.command(rich_help_panel="Use a model", cls=Decoding)
def translate(
    context: typer.Context,
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Argument(help="Sentences; without any, a pipe.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Translate the lines of this file.")] = None,
    others: Annotated[
        list[Path] | None, typer.Option("--with", help="Another run to write with this; repeat.")
    ] = None,
    beam: int | None = None,
    nbest: Annotated[int, typer.Option(help="Translations of each line, tabs between.")] = 1,
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
    scores: Annotated[bool, typer.Option("--scores", help="A score after each.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Source-target word pairs after each.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(help="float32 or bf16; of ctranslate2 int8 and float16, too.")
    ] = "float32",
    engine: Annotated[str, typer.Option(help="Who writes: heed or ctranslate2.")] = "heed",
    reverse: Annotated[
        bool,
        typer.Option("--reverse", help="The other way round, of a run with data.bidirectional."),
    ] = False,
) -> None:
    """Translate sentences, a file or a pipe, one line out for each line in.

    What is not said here, is as the decode section of the run's recipe has it. A flag about draws,
    from --temperature to --seed, asks for draws; --beam for none.

    heed translate runs/demo "The old woman sees the cat."

    heed translate runs/demo --beam 5 --scores < input.txt > output.tsv
    """
    from heed.api import Translator
    from heed.decode.settings import decode_flags
    from heed.pipelines import line_io
    from heed.pipelines.translate import TranslationLines

    settings = decode_flags(context.params)  # all flags that [decode] has a key for
    told = {"device": device, "precision": precision, "engine": engine}
    translator = Translator.load(run, *(others or ()), **told)
    pipeline = translator.scribe(nbest, alignments, reverse, **settings)
    line_io.run_lines(
        line_io.open_lines(text, file),
        TranslationLines(pipeline, scores, alignments, json, nbest > 1),
        out=output(),
        warn=lambda message: typer.echo(message, err=True),
    )


@app.command(rich_help_panel="Use a model")
def classify(
    run: RunFolder,
    text: Annotated[list[str] | None, typer.Argument(help="Texts; without any, a pipe.")] = None,
    file: Annotated[Path | None, typer.Option(help="Classify the lines of this file.")] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="How likely each class is, after the label.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
) -> None:
    """Classify texts, a file or a pipe, one line out for each line in.

    A run that was trained on pairs takes two texts a line, with a tab between.

    heed classify runs/mine "What a wonderful film!" --probabilities

    heed classify runs/mine < input.txt > labels.txt
    """
    from heed.api import Classifier
    from heed.pipelines import line_io
    from heed.pipelines.classify import ClassificationLines

    pipeline = Classifier.load(run, device=device, precision=precision).labeller
    line_io.run_lines(
        line_io.open_lines(text, file),
        ClassificationLines(pipeline, probabilities, json),
        out=output(),
        warn=lambda message: typer.echo(message, err=True),
    )


@app.command(rich_help_panel="Use a model", cls=Decoding)
def generate(
    context: typer.Context,
    run: RunFolder,
    text: Annotated[list[str] | None, typer.Argument(help="Prompts, as by --prompt.")] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="What to go on from; repeat. Without any, a pipe.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Go on from each line of this file.")] = None,
    length: Annotated[int, typer.Option(help="New tokens at most.")] = 100,
    samples: Annotated[int, typer.Option(help="Texts for each prompt.")] = 1,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; repeat.")] = None,
    cut_prompt: Annotated[
        bool, typer.Option("--cut-prompt", help="Make room: leave out its oldest tokens.")
    ] = False,
    batch_size: int | None = None,
    stream: Annotated[
        bool | None, typer.Option(help="Write while it is made; unset, on a terminal.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object a text.")] = False,
    device: Device = "auto",
    precision: Annotated[str, typer.Option(help="float32 or bf16.")] = "float32",
) -> None:
    """Write on from prompts, lines of a file or of a pipe; from nothing where there are none.

    What is not said here, is as the decode section of the run's recipe has it. Tokens are drawn,
    unless it has a beam and no flag is about draws.

    heed generate runs/mine --prompt "My fellow Americans" --length 50 --top-p 0.9

    heed generate runs/mine --samples 100 --seed 3 --json > texts.jsonl
    """
    from heed.api import LanguageModel
    from heed.decode.settings import decode_flags
    from heed.pipelines import line_io
    from heed.pipelines.generate import GenerationLines

    model = LanguageModel.load(run, device=device, precision=precision)
    pipeline = model.author(**decode_flags(context.params))
    out = output()
    streamed = out.isatty() if stream is None else stream
    stream_to = out if streamed else None
    prompts = [*(text or ()), *(prompt or ())]
    alone = file is None and sys.stdin is not None and sys.stdin.isatty()
    groups = line_io.open_lines(prompts or ([""] if alone else None), file)
    line_io.run_lines(
        line_io.lines_or_default(groups, ""),
        GenerationLines(pipeline, length, samples, stop or (), cut_prompt, json, stream_to),
        out=out,
        warn=lambda message: typer.echo(message, err=True),
    )
