"""The formats that models are exported to."""

from collections.abc import Callable
from pathlib import Path

from regard.convert.ctranslate2 import export_ctranslate2
from regard.convert.export import ExportRequest
from regard.convert.gguf.export import export_gguf
from regard.convert.huggingface.export import export_folder
from regard.convert.huggingface.peft import export_peft
from regard.convert.onnx.export import export_onnx
from regard.convert.word2vec import export_word2vec

EXPORTS: dict[str, Callable[[str | Path, ExportRequest], str]] = {  # each returns the result of its check
    "hf": export_folder,
    "onnx": export_onnx,
    "ctranslate2": export_ctranslate2,
    "gguf": export_gguf,
    "word2vec": export_word2vec,
    "peft": export_peft,
}
