"""Models in the formats of other programs: load them, and export ours."""

from collections.abc import Callable
from pathlib import Path

from regard.convert.ctranslate2 import export_ctranslate2
from regard.convert.export import ExportRequest
from regard.convert.huggingface.export import export_folder
from regard.convert.onnx.export import export_onnx

EXPORTS: dict[str, Callable[[str | Path, ExportRequest], str]] = {  # each returns what its check showed
    "hf": export_folder,
    "onnx": export_onnx,
    "ctranslate2": export_ctranslate2,
}

__all__ = ["EXPORTS"]
