"""Commands that take models in from other libraries, and give ours to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import RunFolder, app


@app.command("import", rich_help_panel="Exchange")
def import_(
    folder: Annotated[str, typer.Argument(help="A folder of transformers, or a name on the hub.")],
    run: Annotated[Path, typer.Option(help="The run folder to make.")],
) -> None:
    """Make a run of a pretrained model: BERT, RoBERTa, GPT-2, Marian or T5.

    heed import models/roberta-sst2 --run runs/sst2
    """
    from heed.export.huggingface import import_model

    typer.echo(import_model(folder, run))


@app.command(rich_help_panel="Exchange")
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
    to: Annotated[str, typer.Option(help="hf, ctranslate2 or onnx.")] = "hf",
    quantize: Annotated[
        str | None, typer.Option(help="Of ctranslate2: how to keep weights, int8 or float16, say.")
    ] = None,
) -> None:
    """Write a finished run in the form that another library reads.

    heed export runs/mine models/mine --to hf
    """
    from heed.export import export

    export(run, folder, to=to, **({} if quantize is None else {"quantize": quantize}))
    typer.echo(f"{folder}: written for {to}.")
