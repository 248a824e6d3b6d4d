"""The data doctor: problems of a corpus, by file and line, before training (`heed check`).

`scan` reads each split once; `duplicates` finds repeats and overlap between splits; `check` turns
the results into `findings`, which form a `Report`. `show_batch` prints one batch tensor by tensor.
"""

from heed.data.doctor.check import check, examine
from heed.data.doctor.duplicates import find_overlap
from heed.data.doctor.findings import Finding, Report, render_report
from heed.data.doctor.scan import Limits

__all__ = ["Finding", "Limits", "Report", "check", "examine", "find_overlap", "render_report"]
