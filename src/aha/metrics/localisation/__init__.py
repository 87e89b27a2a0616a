"""Maps compared with masks, boxes and mosaics."""
