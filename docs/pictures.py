"""Pictures of the page for the documents, by Chromium: `python docs/pictures.py RUN INPUT NAME=STATE...`

python docs/pictures.py runs/de "A man is walking his dog." attention="layer=2&head=1" map="view=map"
writes docs/pictures/page-attention.png and page-map.png. A state is what the page's address has after its #.
"""

import shutil
import sys
import threading
from pathlib import Path

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from regard import load
from regard.look.page import Shown
from regard.serve import bound
from regard.serve.app import application

FOLDER = Path(__file__).parent / "pictures"
SIZE = {"width": 1120, "height": 720}


def main(run: str, given: str, *pictures: str) -> None:
    model = load(run)
    listener = bound(0)
    app = application(model, Shown(model, given))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", ws="none"))
    listener.listen()
    threading.Thread(target=server.run, args=([listener],), daemon=True).start()
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for picture in pictures:
            name, state = picture.split("=", 1)
            path = FOLDER / f"page-{name}.png"
            page = browser.new_page(viewport=SIZE, color_scheme="dark" if "dark" in name else "light")
            page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/#{state}")
            page.wait_for_selector("main section")
            page.wait_for_timeout(300)
            page.screenshot(path=path)
            page.close()
            Image.open(path).convert("RGB").save(path, optimize=True)
            print(path, path.stat().st_size)
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main(*sys.argv[1:])
