"""Maps to look at in a browser: what the explorer, notebooks and single files share.

static/          numbers into pixels, linked views, maps with their colour bars, curves with a scrubber
bundle           these scripts as one, for places without a server
records          how to draw a map, and its curves: types that the explorer uses too
payload          explanations as one object for the scripts
page, widget     a file that needs nothing else; a widget for notebooks
"""
