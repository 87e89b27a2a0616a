"""The viewer as a widget for Jupyter, Colab, VS Code and marimo (the only importer of anywidget)."""

from __future__ import annotations

from functools import cache
from typing import Any

from aha.errors import MissingExtra
from aha.results.viewer.bundle import viewer_script, viewer_style
from aha.results.viewer.payload import Payload

_RENDER = 'export default { render: ({ model, el }) => { ahaView(el, model.get("payload")); } };'


def viewer_widget(payload: Payload) -> Any:
    """A widget that shows the payload.

    Raises:
        MissingExtra: anywidget is not installed.
    """
    return _widget_class()(payload=dict(payload))


@cache
def _widget_class() -> Any:
    try:
        import anywidget
        import traitlets
    except ImportError:
        raise MissingExtra("the widget", "notebook") from None

    # Made here, not at the top, so that the library is needed for widgets only.
    return type(
        "ExplanationWidget",
        (anywidget.AnyWidget,),
        {
            "_esm": f"{viewer_script()}\n{_RENDER}",
            "_css": viewer_style(),
            "payload": traitlets.Dict().tag(sync=True),
        },
    )
