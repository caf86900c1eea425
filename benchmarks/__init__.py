"""Measurements: `make bench`. Figures are medians of one run on one machine; compare their ratios, not the seconds."""
