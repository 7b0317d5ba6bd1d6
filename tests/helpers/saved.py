"""A saved model in a browser, and texts to give it."""

import numpy as np

from helpers.looking import TEXT
from regard.viewer.model_file import save_model

HARD = [
    "", " ", "The quick  brown fox, jumps! over-the (lazy) dog's 1,234.5 u.s. @-@ it’s",
    "Éclair naïve ÜBER straße Σας\u0301 \u200b \t\n  x", "日本語 中文 text",
    "🙂 a\u00a0b \ufffd\x00\x07", "don't 'll  \n\n  end   ",
]  # fmt: skip


def open_saved(browser, model, tmp_path_factory):
    """A page from file:// with a model in it; nothing may go wrong there, or be requested."""
    path = tmp_path_factory.mktemp("saved") / "model.html"
    save_model(model, path)
    page, wrong = browser.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if "http" in request.url[:5] else None)
    page.goto(path.as_uri())
    page.wait_for_selector("main section")
    yield page
    assert wrong == []
    page.close()


def prompts(count, blank=""):
    """Different texts of the vocabulary and beyond, the longest of them over the context."""
    words = [*TEXT.split(), "unknown", "Fox,", "ü"]
    rng = np.random.default_rng(5)
    texts = [" ".join(rng.choice(words, rng.integers(1, 18))) for _ in range(count)]
    return [f"{text[: len(text) // 2]} {blank} {text}" if blank else text for text in texts]
