import pytest

from helpers.errors import user_error
from helpers.sounds import tone, write_wav
from regard.data.sound_readers import read_sound_classes, split_by_voice


def labels_and_voices(*paths):
    return sorted((s.label, s.voice) for s in read_sound_classes([str(path) for path in paths]))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["7_jackson_32.wav", "8_theo_0.wav"], [("7", "jackson"), ("8", "theo")]),
        (["yes/0a7c_nohash_0.wav", "no/ff_nohash_1.wav"], [("no", "ff"), ("yes", "0a7c")]),
        (["yes/ada/1.wav", "no/ben/x_y_1.wav"], [("no", "ben"), ("yes", "ada")]),
        (["yes/yes_ada_1.wav", "no/no_b_c_2.WAV"], [("no", "b_c"), ("yes", "ada")]),
        (["yes/1.wav", "no/other_ada_1.wav"], [("no", None), ("yes", None)]),
    ],
)
def test_classes_and_voices_of_names(tmp_path, names, expected):
    for name in names:
        write_wav(tmp_path / name, tone(300, 0.02))
    assert labels_and_voices(tmp_path) == expected


def test_tables(tmp_path):
    for name in ("a.wav", "b.wav"):
        write_wav(tmp_path / "all" / name, tone(300, 0.02))
    table = tmp_path / "all.tsv"
    table.write_text("label\taudio\tvoice\nyes\ta.wav\tada\nno\tb.wav\t\n")
    assert labels_and_voices(table) == [("no", None), ("yes", "ada")]
    table.write_text("audio\tlabel\na.wav\tyes\nc.wav\tno\n")
    user_error(lambda: labels_and_voices(table), "all.tsv:3", "c.wav")
    table.write_text("image\tlabel\na.png\tyes\n")
    user_error(lambda: labels_and_voices(table), "audio and label", "--audio")
    user_error(lambda: labels_and_voices(tmp_path / "all" / "a.wav"), "a.wav", ".tsv")
    user_error(lambda: labels_and_voices(tmp_path / "none.tsv"), "none.tsv")


def test_recordings_without_a_class(tmp_path):
    write_wav(tmp_path / "hello.wav", tone(300, 0.02))
    user_error(lambda: labels_and_voices(tmp_path), "hello.wav", "CLASS_VOICE_NUMBER.wav")
    (tmp_path / "empty").mkdir()
    user_error(lambda: labels_and_voices(tmp_path / "empty"), "no recording", ".wav")


def test_voices_are_held_out(tmp_path):
    for voice in "abcdef":
        for label in ("yes", "no"):
            write_wav(tmp_path / f"{label}_{voice}_0.wav", tone(300, 0.02))
    sounds = read_sound_classes([str(tmp_path)])
    for holdout, expected in ((0.1, ["f"]), (0.34, ["c", "f"]), (0.5, ["b", "d", "f"])):
        train, held, voices = split_by_voice(sounds, holdout, range(12))
        assert voices == expected
        assert {sounds[i].voice for i in held} == set(expected)
        assert {sounds[i].voice for i in train} == set("abcdef") - set(expected)
        assert sorted(train + held) == list(range(12))
    assert split_by_voice(sounds, 0.0, range(12)) == (list(range(12)), [], [])
    one = [s for s in sounds if s.voice == "a"] * 10
    train, held, voices = split_by_voice(one, 0.1, range(20))  # by class, then
    assert (len(train), len(held), voices) == (18, 2, [])
