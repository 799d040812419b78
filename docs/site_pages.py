"""What `make site` adds to mkdocs (mkdocs.yml): the pages that lie outside docs/, and docstrings as Markdown.

Links between files of the repository become links between pages of the site.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import griffe

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]

#: File of the repository → page of the site. A file of another kind than Markdown becomes a block of code.
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "src/stepscope/collect/surgery/README.md": "surgery.md",
    "examples/slow_training.py": "slow_training.md",
    "examples/train_jax.py": "train_jax.md",
    "examples/train_ranks.py": "train_ranks.md",
}
_LINK = re.compile(r"(\]\()([^()\s#:]+)(#[\w-]*)?(\))")
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?(?:[\w.]+\.)?(\w+)`")
_CODE = re.compile(r"::\n\n((?:(?: {4}.*)?\n)+)")


class Markdown(griffe.Extension):
    """Docstrings as mkdocs reads them: references and blocks of code in Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value + "\n")
            obj.docstring.value = _CODE.sub(_fenced, text).rstrip()


def _fenced(block: re.Match[str]) -> str:
    return f"\n\n```python\n{textwrap.dedent(block[1]).strip()}\n```\n\n"


def on_files(files: Files, config: Any) -> Files:  # noqa: ANN401 - mkdocs' own
    """Add the pages."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = f"# {Path(source).name}\n\n```python\n{text}```\n"
        files.append(File.generated(config, page, content=_with_links_of_the_site(text, posixpath.dirname(source))))
    return files


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401 - mkdocs' own
    """Change the links of a page of docs/."""
    return markdown if page.file.generated_by else _with_links_of_the_site(markdown, "docs")


def _with_links_of_the_site(text: str, folder: str) -> str:
    def changed(link: re.Match[str]) -> str:
        file = posixpath.normpath(posixpath.join(folder, link[2]))
        page = PAGES.get(file) or (file.removeprefix("docs/") if file.startswith("docs/") else link[2])
        return f"{link[1]}{page}{link[3] or ''}{link[4]}"

    return _LINK.sub(changed, text)
