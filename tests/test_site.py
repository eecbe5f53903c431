"""The site that `make docs` builds: no broken link, nothing from elsewhere, and every page where it belongs.

What it looks like in a browser: `tests/test_site_pages.py`.
"""

import html
import re
import sys
from pathlib import Path

import pytest

import cuda_kernels
import fa_ref
from site_links import broken_links, loaded_from_elsewhere, without_words
from test_steps import BY_WARPS, CUDA, FILES, NUMPY, kernel_steps, steps

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs" / "site"))
from side_by_side import PAGES  # noqa: E402
from steps import cut  # noqa: E402

pytestmark = pytest.mark.slow


# --- links, pictures, the network -----------------------------------------------------------------------------

def test_links_lead_to_files_and_headings(site):
    assert broken_links(site) == []


def test_nothing_is_loaded_from_elsewhere(site):
    assert loaded_from_elsewhere(site) == []


def test_pictures_and_frames_say_in_words_what_they_show(site):
    assert without_words(site) == []


@pytest.mark.parametrize(("check", "planted"), [
    (broken_links, '<a href="nowhere.html">x</a>'),
    (broken_links, '<a href="#nowhere">x</a>'),
    (broken_links, '<img alt="a" src="nowhere.png">'),
    (loaded_from_elsewhere, '<script src="https://cdn.example/x.js"></script>'),
    (loaded_from_elsewhere, '<link rel="stylesheet" href="//fonts.example/x.css">'),
    (loaded_from_elsewhere, "<style>@font-face { src: url('http://fonts.example/x.woff2') }</style>"),
    (loaded_from_elsewhere, '<iframe title="a" srcdoc="&lt;img alt=a src=http://x.example/y.png&gt;"></iframe>'),
    (without_words, '<img src="data:image/png;base64,AA">'),
    (without_words, '<iframe src="index.html"></iframe>'),
])
def test_a_planted_fault_is_noticed(tmp_path, check, planted):
    (tmp_path / "index.html").write_text('<p id="here"><a href="index.html#here">x</a></p>', encoding="utf-8")
    assert check(tmp_path) == []
    (tmp_path / "page.html").write_text(planted, encoding="utf-8")
    assert len(check(tmp_path)) == 1


# --- what there is --------------------------------------------------------------------------------------------

def test_every_page_and_notebook_is_in_the_navigation(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    navigation = text.partition('class="sidebar-tree"')[2].partition("</div>")[0]
    wanted = [f"docs/{page.stem}" for page in (ROOT / "docs").glob("*.md")]
    wanted += [f"notebooks/{path.stem}" for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")]
    wanted += [f"side_by_side/{name}" for name in PAGES]
    wanted += ["README", "reading", "notebooks/README", "api/fa_ref", "api/cuda_kernels.heads"]
    assert [page for page in wanted if f'href="{page}.html"' not in navigation] == []


def pairs():
    """{page: steps} of everything that exists as a loop and as a kernel, or as a kernel by warps."""
    both = [name for name in fa_ref.ALGORITHMS if name in cuda_kernels.KERNELS]
    assert set(FILES) == set(both)
    forward = {name: steps(NUMPY / f"{name}.py")["forward"] for name in both}
    backward = {f"{name}_backward": steps(NUMPY / f"{name}.py")["backward"] for name in both
                if name in cuda_kernels.WITH_BACKWARD and kernel_steps(name)["backward"]}
    warps = {name: steps(CUDA / f"{BY_WARPS[name]}.py")["forward"] for name in cuda_kernels.KERNELS if name not in both}
    return forward | backward | warps


def shown_steps(text):
    """(number, words) of the headings of a page, in order."""
    found = re.findall(r'<h2 id="step-(\d+)">\(\1\) (.*?)</h2>', text)
    return [(int(n), html.unescape(words)) for n, words in found]


@pytest.mark.parametrize("name", pairs())
def test_a_loop_and_its_kernel_stand_side_by_side(site, name):
    text = (site / "side_by_side" / f"{name}.html").read_text(encoding="utf-8")
    assert shown_steps(text) == pairs()[name]
    for n, _ in pairs()[name]:
        row = text.partition(f'<h2 id="step-{n}">')[2].partition("</section>")[0]
        assert re.findall(r'aria-label="(\S+), step (\d+)"', row) == [
            (PAGES[name].left[0][0], str(n)), (PAGES[name].right[0][0], str(n))]


@pytest.mark.parametrize("name", PAGES)
def test_the_lines_on_a_page_are_those_of_the_files(site, name):
    """All of them, but docstrings and empty ones, in their order; only the space before a comment may differ."""
    text = (site / "side_by_side" / f"{name}.html").read_text(encoding="utf-8")
    for parts in filter(None, (PAGES[name].left, PAGES[name].right)):
        cells = re.findall(rf'aria-label="{parts[0][0]}, .*?</pre>', text, re.DOTALL)
        shown = re.findall(r'<span class="line" data-line="(\d+)">(.*?)</span>(?=\n|</pre>)', "\n".join(cells))
        file = (ROOT / parts[0][0]).read_text(encoding="utf-8").split("\n")
        plain = [re.sub("<.*?>", "", line) for _, line in shown]
        assert ["".join(html.unescape(line).split()) for line in plain] == [
            "".join(file[int(n) - 1].split()) for n, _ in shown]
        places, _ = cut(parts)
        assert [int(n) for n, _ in shown] == [line.number for place in sorted(places) for line in places[place]]


@pytest.mark.parametrize("name", [name for name in PAGES if PAGES[name].player])
def test_a_page_has_its_player(site, name):
    assert {"fa1", "fa2", "fa3"} <= {name for name in PAGES if PAGES[name].player}
    text = (site / "side_by_side" / f"{name}.html").read_text(encoding="utf-8")
    assert re.search(rf'<iframe class="player" src="../players/{name}.html"[^>]* title="Player: [^"]+"', text)
    assert 'id="slider" type="range"' in (site / "players" / f"{name}.html").read_text(encoding="utf-8")
    assert ("_kernel.html" in text) == bool(PAGES[name].right)


def test_the_tables_of_docstrings_stay_aligned(site):
    text = re.sub("<[^>]*>", "", (site / "api" / "fa_ref.fa2.html").read_text(encoding="utf-8"))
    for line in ("line 4, 5     (1), (2)                    line 3, 4       (1), (2)",
                 "division deferred   acc is never normalised inside the loop"):
        assert line in html.unescape(text)
