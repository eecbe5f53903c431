"""Text in a Markdown file that a command writes: it stands between `<!-- name:begin -->` and `<!-- name:end -->`."""

from pathlib import Path


def fill(path, name, text):
    """Replace what stands between the two marks of this name; ValueError if the file has no such marks."""
    path = Path(path)
    before, _, after = split(path, name)
    path.write_text(f"{before}\n{text.strip()}\n{after}", encoding="utf-8")


def read(path, name):
    """What stands between the two marks of this name."""
    return split(Path(path), name)[1].strip()


def split(path, name):
    """The file before the text (with the first mark), the text, and the file after it (with the second mark)."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    middle, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"{path} has no marks {begin} … {end}")
    return before + begin, middle, end + after
