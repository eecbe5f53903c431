"""The picture in docs/player.md: `python docs/screenshot.py` writes docs/player.png.

Needs Chromium with its driver, selenium (both as for the tests) and Pillow, which comes with matplotlib.
"""

import io
import os
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver

from fa_ref import player

FILE = Path(__file__).parent / "player.png"
STEP = 52                               # of fa2 on the tiny problem: in the second tile of queries
WIDTH, HEIGHT = 1180, 760               # two pixels each
COLOURS = 96                            # enough for text, and a third of the bytes


def main():
    """Record, open, take the picture."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--hide-scrollbars", *(["--no-sandbox"] if os.getuid() == 0 else [])):
        options.add_argument(argument)
    with tempfile.TemporaryDirectory() as folder:
        page = player.tiny("fa2").save(Path(folder) / "page.html")
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 2, "mobile": False})
        driver.get(f"{page.as_uri()}#{STEP}")
        picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
        driver.quit()
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(FILE, optimize=True)
    print(f"{FILE}: {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
