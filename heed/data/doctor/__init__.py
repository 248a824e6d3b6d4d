"""The data doctor: what is wrong with this data, by line."""

from heed.data.doctor.check import check, examine
from heed.data.doctor.duplicates import overlap
from heed.data.doctor.findings import Finding, Report, render
from heed.data.doctor.scan import Limits

__all__ = ["Finding", "Limits", "Report", "check", "examine", "overlap", "render"]
