"""Reports: a run or a study as one HTML file without network, or as Markdown with its figures."""
