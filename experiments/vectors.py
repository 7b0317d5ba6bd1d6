"""Vectors of words: neighbours that make sense, and king - man + woman = queen.

`regard train words` on its built-in text, in fewer steps. All analogies that the text holds are asked: man is
to woman as king is to queen, France is to Paris as Italy is to Rome, dog is to dogs as ship is to ships.
"""

import tempfile
from pathlib import Path

from experiments.texts.relations import make_analogies
from experiments.training import Result
from regard import train
from regard.tasks.words import WordsTask, analogies

STEPS = 200
COLUMNS = ("word1", "word2", "word3", "target")
QUERY, ANSWER = "king - man + woman", "queen"


def run(seed: int, steps: int = STEPS) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        changes = {"train.seed": seed, "train.log": steps, "train.save": steps}
        model = train("words", out=Path(folder) / "run", steps=steps, set=changes)
    assert isinstance(model.task, WordsTask)
    vectors = model.task.word_vectors(model.model)
    result: Result = {}
    for kind, rows in make_analogies().items():
        score = analogies(vectors, [dict(zip(COLUMNS, row, strict=True)) for row in rows])
        kin = {word for row in rows for word in row}
        near = [vectors.nearest(word, 1)[0][0] for word in kin]
        result[kind] = {
            "analogies right, %": 100 * score["accuracy"],
            "nearest word of the same kind, %": 100 * sum(word in kin for word in near) / len(near),
        }
    result[QUERY] = {"analogies right, %": 100.0 * (vectors.nearest(QUERY, 1)[0][0] == ANSWER)}
    return result
