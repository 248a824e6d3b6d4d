"""Commands that convert models: import from Hugging Face, export to other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heed.cli.common import PluginFiles, RunFolder, app, print_text


@app.command("import", rich_help_panel="Convert")
def import_(
    folder: Annotated[
        str,
        typer.Argument(help="A folder written by save_pretrained, or a model name on the hub."),
    ],
    run: Annotated[Path, typer.Option(help="The run folder to create.")],
) -> None:
    """Create a run from a pretrained Hugging Face model: BERT, RoBERTa, GPT-2, Marian or T5.

    heed import models/roberta-sst2 --run runs/sst2
    """
    from heed.export.huggingface import import_model

    print_text(import_model(folder, run))


@app.command(rich_help_panel="Convert")
def export(
    run: RunFolder,
    folder: Annotated[Path, typer.Argument(help="The folder to create.")],
    to: Annotated[
        str,
        typer.Option(
            help="Format: hf (needs model.preset), ctranslate2 (translators only) or onnx."
        ),
    ] = "hf",
    quantize: Annotated[
        str | None,
        typer.Option(
            help="Type of the stored weights, ctranslate2 only: int8, float16 and others."
        ),
    ] = None,
    plugin: PluginFiles = None,
) -> None:
    """Export a finished run to Hugging Face transformers, CTranslate2 or ONNX.

    heed export runs/mine models/mine --to onnx

    heed export runs/preset models/preset --to hf
    """
    from heed.export import export

    export(run, folder, to=to, **({} if quantize is None else {"quantize": quantize}))
    print_text(f"{folder}: exported to {to}.")
