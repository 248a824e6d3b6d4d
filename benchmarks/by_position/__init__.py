"""Attention by position: systems, measurements and the page."""
