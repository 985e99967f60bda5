"""From scored groups to packed micro-batches: plain lists and numpy."""
