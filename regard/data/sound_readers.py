"""Read recordings with classes and, if names contain them, voices: folders and tables."""

import os
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.data.archives import find_source, is_folder
from regard.data.columns import Field, Layout
from regard.data.files import list_files
from regard.data.image_readers import guess_files, read_files
from regard.data.labels import split_by_class
from regard.data.reading import record_source
from regard.data.splitting import RECORDING, first_held_out
from regard.errors import UserError
from regard.files.regular import check_name
from regard.vision.decoding import ImageSource

SUFFIXES = {".wav"}
COMMAND = re.compile(r"(?P<voice>.+)_nohash_(\d+)", re.DOTALL)  # 0a7c2a8d_nohash_0.wav, as in Speech Commands
LAYOUT = Layout(
    (
        Field("audio", ("file_name", "filename", "file", "path", "audio_path", "wav", "recording"), "file"),
        Field("label", ("class", "category", "labels", "target", "word"), "label"),
        Field("voice", ("speaker", "speaker_id", "client_id"), required=False, may_be_empty=True),
    ),
    "audio and label",
    guess_files("audio", "label", lambda: SUFFIXES),
)


@dataclass(frozen=True)
class LabelledSound:
    source: ImageSource
    label: str
    voice: str | None  # the speaker, if known


def read_sound_classes(paths: Sequence[str]) -> list[LabelledSound]:
    """Read the list of recordings, and the class and voice of each.

    Folders have class folders, or recordings CLASS_VOICE_NUMBER.wav; tables have the columns `audio`,
    `label` and perhaps `voice`.
    """
    recordings: list[LabelledSound] = []
    for path in map(str, paths):
        recordings += read_folder(path) if is_folder(path) else read_sound_table(path)
    return recordings


def read_folder(folder: str) -> Iterator[LabelledSound]:
    """Yield the recordings FOLDER/CLASS/VOICE/any.wav, FOLDER/CLASS/VOICE_nohash_1.wav,
    FOLDER/CLASS/CLASS_VOICE_1.wav, FOLDER/CLASS/any.wav or FOLDER/CLASS_VOICE_1.wav."""
    source = record_source(folder, "recording")
    for path in list_files(folder, SUFFIXES, "recording"):
        *folders, file = Path(path).relative_to(folder).parts
        stem = file[: -len(".wav")]
        check_name(path)
        digit, command = RECORDING.fullmatch(file), COMMAND.fullmatch(stem)
        if not folders and digit is None:
            raise UserError(
                f"{path}: in no class; put recordings in folders named after their classes, or name them "
                "CLASS_VOICE_NUMBER.wav"
            )
        label = folders[0] if folders else digit["label"]  # type: ignore[index]
        voice = folders[1] if len(folders) > 1 else None
        if voice is None and command is not None:
            voice = command["voice"]
        elif voice is None and digit is not None and digit["label"] == label:
            voice = digit["voice"]
        source.add({"audio": os.path.relpath(path, folder), "label": label, "voice": voice or "unknown"})
        yield LabelledSound(find_source(path), label, voice)


def read_sound_table(path: str) -> Iterator[LabelledSound]:
    for source, row in read_files(path, LAYOUT):
        yield LabelledSound(source, row["label"], row.get("voice") or None)


def split_by_voice(
    recordings: Sequence[LabelledSound], holdout: float, sources: Sequence[Hashable]
) -> tuple[list[int], list[int], list[str]]:
    """Return the indices of rows for training and for validation, and the voices that are held out: every
    tenth, for a holdout of 0.1, or the last. Without voices, split as `split_by_class` does by `sources`."""
    voices = sorted({recording.voice for recording in recordings if recording.voice is not None})
    if not holdout or len(voices) < 2 or any(recording.voice is None for recording in recordings):
        return *split_by_class([recording.label for recording in recordings], holdout, sources), []
    every = max(2, round(1 / holdout))
    held_out = voices[first_held_out(every) :: every] or voices[-1:]
    held = [i for i, recording in enumerate(recordings) if recording.voice in held_out]
    return [i for i in range(len(recordings)) if recordings[i].voice not in held_out], held, held_out
