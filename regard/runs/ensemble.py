"""Several models as one."""

from collections.abc import Sequence
from pathlib import Path

from regard.decode.ensemble import Ensemble
from regard.errors import UserError
from regard.runs.folder import TOKENIZER
from regard.runs.model import Model


def ensemble(models: Sequence[Model]) -> Model:
    """Combine several models of one task into one, which averages their probabilities."""
    first = models[0]
    classes = [getattr(model.task.config, "labels", None) for model in models]
    digests = [([t.digest for t in m.tokenizers], c) for m, c in zip(models, classes, strict=True)]
    for model, digest in zip(models, digests, strict=True):
        if model.task.config.name != first.task.config.name or digest != digests[0]:
            raise UserError(
                f"{model.folder}: another task, vocabulary or classes than {first.folder}; train it with "
                f"--set data.tokenizer={(first.folder or Path('RUN')) / TOKENIZER}"
            )
    module = Ensemble([model.model for model in models]).eval()
    task = first.task.with_context(module.config.context)
    return Model(module, task, first.generation, first.folder)
