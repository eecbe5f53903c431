"""Chromium without a window, for the tests of the player's page and of the site."""

import json
import os
import shutil

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

__all__ = ["CHROMIUM", "DRIVER", "Browser", "By", "Keys"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")

SHOWN = """
const cell = td => td.textContent.replaceAll("\\u00a0", "");
const matrix = figure => ({
  name: figure.querySelector("b").textContent, shape: figure.querySelector(".shape").textContent,
  cells: [...figure.querySelectorAll("tbody tr")].map(row => [...row.querySelectorAll("td:not(.none)")].map(cell)),
  changed: [...figure.querySelectorAll("td.new")].map(td => [td.parentNode.rowIndex - 1, td.cellIndex - 1]),
  badges: [...figure.querySelectorAll("figcaption [class]:not(.shape):not([hidden])")].map(x => x.textContent),
  tiles: [...figure.querySelectorAll(".tile")].map(tile => {
    const inside = [...figure.querySelectorAll("td:not(.none)")].filter(td => {
      const [a, b] = [td.getBoundingClientRect(), tile.getBoundingClientRect()];
      const [x, y] = [(a.left + a.right) / 2, (a.top + a.bottom) / 2];
      return b.left < x && x < b.right && b.top < y && y < b.bottom;
    }).map(td => [td.parentNode.rowIndex - 1, td.cellIndex - 1]);
    return [tile.classList.contains("store") ? "store" : "load", inside];
  }),
});
const part = [...document.querySelectorAll("#names > div")].filter(div => !div.hidden);
return {
  lit: [...document.querySelectorAll("#source [aria-current]")].map(line => line.value),
  memory: [...document.querySelectorAll("#memory figure")].map(matrix),
  names: part.flatMap(div => [...div.querySelectorAll("figure")].map(matrix)),
  numbers: part.flatMap(div => [...div.querySelectorAll("dl > div")].map(pair =>
    [pair.children[0].textContent, pair.children[1].textContent, pair.children[1].className === "new"])),
  bytes: document.getElementById("bytes").textContent, summary: document.getElementById("summary").textContent,
  slider: document.getElementById("slider").value, jump: document.getElementById("jump").value,
};
"""


class Browser:
    """Chromium with the few things that the tests do."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        for argument in ("--headless=new", *(["--no-sandbox"] if os.getuid() == 0 else [])):
            options.add_argument(argument)
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        self.run = self.driver.execute_script

    def look(self, width=1280, height=900, dark=False):
        """The size of the window and the reader's colour scheme."""
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})

    def open(self, path, step=1):
        self.driver.get("about:blank")
        self.driver.get_log("performance")
        self.driver.get(f"{path.as_uri()}#{step}")
        return self

    def press(self, *keys, shift=False):
        """Keys, sent to what has the focus."""
        actions = webdriver.ActionChains(self.driver, duration=0)
        if shift:
            actions.key_down(Keys.SHIFT)
        for key in keys:
            actions.send_keys(key)
        if shift:
            actions.key_up(Keys.SHIFT)
        actions.perform()

    def find(self, name):
        return self.driver.find_element(By.ID, name)

    @property
    def shown(self):
        """All that the player's page shows."""
        return self.run(SHOWN)

    @property
    def step(self):
        return int(self.find("slider").get_attribute("value"))

    def style(self, selector, *properties):
        """What the browser has computed for the first node that fits."""
        return self.run("const style = getComputedStyle(document.querySelector(arguments[0]));"
                        "return arguments[1].map(property => style[property])", selector, properties)

    @property
    def focus(self):
        return self.run("return document.activeElement.id")

    def requests(self):
        """What the page has asked for since it was opened."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
