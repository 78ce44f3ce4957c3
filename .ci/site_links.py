"""For mkdocs: the first page is README.md, and links to files outside docs/ become their names, since the site does not hold them."""
import pathlib
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent


def on_files(files, config):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r'(\]\(|src=")docs/', r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\((?!https?:|#|[a-z-]+\.md|images/|results/)([^)]+)\)", r"\1 (`\2`)", text)
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    return re.sub(r"\[([^\]]+)\]\((?:\.\./)+(?!docs/)([^)]+)\)", outside, markdown) if page.file.src_uri != "index.md" else markdown


def outside(match):
    name, target = match[1], match[2].split("#")[0]
    return match[0] if (ROOT / "docs" / target).exists() and not (ROOT / target).exists() else f"{name} (`{target}`)"
