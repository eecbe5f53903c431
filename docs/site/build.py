"""Build the site: python docs/site/build.py [FOLDER]

Pages are gathered in FOLDER/site-source, and FOLDER/site is made from them; FOLDER is build unless another is named.
Every warning of Sphinx is an error, and all of them are shown.
"""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]
os.environ["FA_REF_CUDA"] = "sim"                                   # kernels are imported and recorded without a GPU

import gather  # noqa: E402
import side_by_side  # noqa: E402
from sphinx.cmd.build import main as sphinx  # noqa: E402


def players(folder):
    """The recordings that the pages show: the NumPy loops, and the kernels played by one thread."""
    import cuda_kernels.player
    from fa_ref import player

    folder.mkdir(parents=True)
    for page in side_by_side.PAGES.values():
        if page.player:
            player.tiny(page.player).save(folder / f"{page.player}.html")
        if page.player in cuda_kernels.player.ONE_THREAD:
            cuda_kernels.player.tiny(page.player).save(folder / f"{page.player}_kernel.html")


def build(folder):
    """Gather and build; returns Sphinx's exit code."""
    source, site = (Path(folder).resolve() / name for name in ("site-source", "site"))
    for old in (source, site):
        shutil.rmtree(old, ignore_errors=True)
    gather.pages(source)
    players(source / "extra" / "players")
    return sphinx(["-b", "html", "-c", str(ROOT / "docs"), "-d", str(source.parent / "site-cache"), "-q", "-E",
                   "-n", "-W", "--keep-going", "-D", f"html_extra_path={source / 'extra'}", str(source), str(site)])


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else ROOT / "build"
    code = build(folder)
    print(f"open {Path(folder) / 'site' / 'index.html'}" if code == 0 else "the site has warnings: see above")
    sys.exit(code)
