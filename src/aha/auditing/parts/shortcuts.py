"""Shortcuts: does the map lie where no evidence should be?"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from aha.auditing.checks import AuditCheck, AuditPart, averaged
from aha.auditing.evidence import AuditEvidence
from aha.auditing.plans import BORDER, TEXT


def shortcuts(evidence: AuditEvidence) -> AuditPart:
    """Mass outside boxes or masks, at the border, in the corners and on text-like places."""
    limits, shipped = evidence.thresholds.shortcuts, evidence.shipped.shortcuts
    places = (("border", "border_mass", "the outer tenth of the image"), ("corners", "corner_mass", "the four corners"))
    return AuditPart(
        "shortcuts",
        "Does the map lie where no evidence should be?",
        [
            _outside(evidence),
            *(
                averaged(
                    evidence.values(column, BORDER),
                    evidence.reasons(BORDER),
                    name=name,
                    meaning=f"mass in {where}, relative to a uniform map",
                    side="most",
                    limit=getattr(limits, name),
                    shipped=getattr(shipped, name),
                )
                for name, column, where in places
            ),
            averaged(
                evidence.values("text_mass", TEXT),
                evidence.reasons(TEXT),
                name="text",
                meaning="share of the mass on text-like places",
                side="most",
                limit=limits.text,
                shipped=shipped.text,
            ),
        ],
        (
            _text_found(evidence),
            "Other marks inside the image are not looked for. Data with masks of what may count as evidence answer "
            "that, since all other mass is then outside.",
        ),
    )


def _text_found(evidence: AuditEvidence) -> str:
    """On how many images there are text-like places, and what the map makes of them there."""
    shares, masses = (evidence.values(column, TEXT) for column in ("text_share", "text_mass"))
    own = [name for name, share in shares.items() if share]
    limits = "Only printed words with clear contrast are looked for."
    if not own:
        return f"No text-like places were found on {len(shares)} images. {limits}"
    share, mass = (100 * fmean(values[name] for name in own) for values in (shares, masses))
    return (
        f"Text-like places were found on {len(own)} of {len(shares)} images: {share:.1f} % of their area, with "
        f"{mass:.1f} % of the mass. {limits}"
    )


def _outside(evidence: AuditEvidence) -> AuditCheck:
    """Mean mass outside the truth as a share of what random maps have there."""
    truth = evidence.asked.truth
    about: dict[str, Any] = {
        "name": "outside",
        "meaning": f"mass outside the {'masks' if truth == 'mass_in_truth' else 'boxes'}, relative to random maps",
        "side": "most",
        "limit": evidence.thresholds.shortcuts.outside,
        "shipped": evidence.shipped.shortcuts.outside,
    }
    if not truth:
        why = "the data have no boxes or masks for every image"
        return AuditCheck(**{**about, "meaning": "mass outside boxes or masks, relative to random maps"}, why=why)
    own = evidence.values(truth, truth)
    random = evidence.values(truth, truth, method="random_map")
    chance = fmean(1 - value for value in random.values()) if random else 0.0
    if not chance:
        return AuditCheck(**about, why="the boxes or masks cover all images")
    outside = {name: (1 - value) / chance for name, value in own.items() if name in random}
    return averaged(outside, evidence.reasons(truth), **about)
