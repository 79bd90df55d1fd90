"""The README as a package index shows it: there, links into the repository need an address.

The address is ``Repository`` in ``[project.urls]`` of pyproject.toml. Without one, such links
become plain text and pictures are left out, so no link leads nowhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(```.*?```)", re.DOTALL)
_LINK = re.compile(r"(!?)\[([^\[\]]+)\]\((?!https?:|#)([^()\s]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Sets the field ``readme``."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Read the README and make its links absolute."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Repository")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": absolute(text, address),
        }


def absolute(text: str, address: str | None) -> str:
    """Return Markdown whose links into the repository lead to ``address``, or are gone."""

    def replace(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        if address is None:
            return "" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({address.rstrip('/')}/{kind}/HEAD/{path})"

    parts = _CODE.split(text)  # every second one is code
    return "".join(part if at % 2 else _LINK.sub(replace, part) for at, part in enumerate(parts))
