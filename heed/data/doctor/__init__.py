"""The data doctor: what is wrong with this data, by line."""

from heed.data.doctor.charts import Limits
from heed.data.doctor.check import check, examine
from heed.data.doctor.digests import overlap
from heed.data.doctor.findings import Finding, Report, render

__all__ = ["Finding", "Limits", "Report", "check", "examine", "overlap", "render"]
