"""The analysis of a study: the questions that its reports ask after the declared one.

Each answer is a tested number with its interval. All are exploratory, and corrected together.
"""

from __future__ import annotations

from heed.study.class_scores import find_class_effects
from heed.study.costs import find_cost_differences
from heed.study.finding import Finding, correct_findings
from heed.study.hardness import find_hard_groups, find_text_effects, open_text_losses
from heed.study.key_importance import find_important_keys
from heed.study.length_scores import find_length_effects
from heed.study.overfitting import find_overfitting
from heed.study.scored_systems import open_scored_systems
from heed.study.search.search_findings import find_search_gains
from heed.study.study_results import StudyResults


def analyze_study(results: StudyResults) -> list[Finding]:
    """Every finding beside the declared comparison; empty before two systems can be compared."""
    scored = open_scored_systems(results)
    if scored is None:
        return []
    findings = find_length_effects(scored)
    findings += find_class_effects(scored)
    findings += find_overfitting(results, scored.reference)
    losses = open_text_losses(results)
    if losses is not None:
        findings += find_hard_groups(losses)
        findings += find_text_effects(losses)
    findings += find_important_keys(results)
    findings += find_search_gains(results)
    findings += find_cost_differences(results, scored.reference)
    return correct_findings(findings)
