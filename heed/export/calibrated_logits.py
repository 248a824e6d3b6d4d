"""A classifier's calibration in an export: its logits are divided by the temperature."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from heed.files import write_atomic
from heed.models import Classifier, Model
from heed.runs.labels import Calibration
from heed.runs.run import Run


def apply_calibration(run: Run, model: Model, folder: Path) -> None:
    """Divide the logits of a calibrated classifier by its temperature, and record that.

    Neither Hugging Face nor ONNX has a place for a temperature. So it goes into the output layer:
    the softmax of the exported logits is calibrated, whichever program computes it.
    """
    calibration = Calibration.read(run)
    if calibration is None or not isinstance(model, Classifier):
        return
    model.scale_logits(1 / calibration.temperature)
    record = asdict(calibration) | {"applied_to_logits": True}
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / run.calibration_path.name, json.dumps(record, indent=1) + "\n")
