"""The gallery of the site: models that run in the page."""

import pytest
from docs.site import gallery

from helpers.runs import tiny, unmeasured, write_data


def test_a_model_is_saved_listed_and_measured(browser, tmp_path, monkeypatch):
    unmeasured(monkeypatch)
    tiny(
        write_data("chat-transformer", tmp_path), tmp_path / "runs" / "chat", case="chat-transformer", steps=2
    )
    monkeypatch.setattr(gallery, "GALLERY", {"chatbot": gallery.GALLERY["chatbot"]})
    monkeypatch.setattr(gallery, "PROMPTS", 5)
    monkeypatch.setattr(gallery, "train", lambda *_, **__: pytest.fail("the run is there already"))
    folder = tmp_path / "gallery"
    models = gallery.build_gallery(folder, steps=2, runs=tmp_path / "runs")
    assert 'href="chatbot.html"' in (folder / "index.html").read_text()
    head, _, row = gallery.measure(browser, folder, models)
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == head.count("|") - 1
    assert cells[0] == "chatbot"
    assert cells[4] == "5 of 5"


def test_every_entry_has_prompts():
    for name, entry in gallery.GALLERY.items():
        prompts = gallery.prompts(entry)
        assert len(prompts) == 100, name
        assert (entry.recipe == "fill") == ("[MASK]" in str(prompts[0]))
