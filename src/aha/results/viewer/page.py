"""Explanations as one HTML file that works without a server or a kernel."""

from __future__ import annotations

import html
import json

from aha.results.viewer.bundle import viewer_script, viewer_style
from aha.results.viewer.payload import Payload

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
body {{ margin: 0; background: var(--paper); }}
main {{ max-width: 1280px; margin: 0 auto; padding: 20px clamp(12px, 2vw, 28px) 48px; }}
</style>
</head>
<body class="aha">
<main><h1 class="page-title">{title}</h1><div id="view"></div></main>
<script type="application/json" id="payload">{payload}</script>
<script type="module">
{script}
ahaView(document.getElementById("view"), JSON.parse(document.getElementById("payload").textContent));
</script>
</body>
</html>
"""


def page(title: str, payload: Payload) -> str:
    """The file's text."""
    # "<" would let a name end the element that holds it.
    held = json.dumps(payload, allow_nan=False).replace("<", "\\u003c")
    return _PAGE.format(title=html.escape(title), style=viewer_style(), payload=held, script=viewer_script())
