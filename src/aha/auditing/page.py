"""An audit as one page that needs nothing else, and as JSON; both are made from what its folder holds.

audit/
  audit.html            the page
  audit.json            the same for programs
  thresholds.toml       what the parts are judged by
  audit-settings.json   what was asked for
  against.json          rank correlations with other maps; against/ has those that were made for it
  rows/, maps/, ...     a run of the bench: `aha report` gives its tables too
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

from aha.auditing.against import read_agreement
from aha.auditing.audit import IS_NOT, Audit, shown, sign
from aha.auditing.evidence import AuditEvidence
from aha.auditing.parts import all_parts
from aha.auditing.parts.failures import reasons
from aha.auditing.pictures import best_and_worst, leads
from aha.auditing.plans import KNOWN, UNSEEN, curves, ins_del
from aha.auditing.record import read_asked
from aha.auditing.subject import subject
from aha.auditing.thresholds import FILE, read_thresholds, shipped_thresholds
from aha.bench.run_reader import read_run
from aha.core.disk import versions, write_atomically, writing
from aha.errors import OutputError
from aha.metrics import load_metric
from aha.metrics.curves.base import AVERAGE
from aha.results.cards import BASELINES
from aha.results.figures import as_bytes, plot_curves
from aha.results.score_table import Scores, by_image, summarise
from aha.results.templating import templates_of


def write_audit(folder: str | Path, out: str | Path | None = None) -> Audit:
    """Judges what the folder of an audit holds by its thresholds; no model is touched.

    Page and JSON are written there, or into `out`.
    """
    folder = Path(folder)
    place = folder if out is None else Path(out)
    evidence = read_evidence(folder)
    order = sorted(leads(evidence).items(), key=lambda pair: -pair[1])
    found = Audit(
        evidence.asked,
        all_parts(evidence),
        subject(evidence),
        evidence.thresholds,
        evidence.shipped,
        reasons(evidence),
        [(*name, round(value, 6)) for name, value in order],
        place,
    )
    text, page = json.dumps(found.as_dict(), indent=1, allow_nan=False), page_of(found, evidence)
    with writing(place):
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(found.json, lambda file: file.write(text.encode()))
        write_atomically(found.page, lambda file: file.write(page.encode()))
    return found


def read_evidence(folder: Path) -> AuditEvidence:
    """What the folder of an audit holds.

    Raises:
        OutputError: It is not one, or nothing was measured yet.
    """
    asked, run = read_asked(folder), read_run(folder)
    wanted = (asked.model, asked.digest, asked.target)
    group = next((group for group in run.groups if (group.model, group.digest, group.target_kind) == wanted), None)
    if group is None:
        raise OutputError(f"{folder} has no results yet; run the same aha audit again")
    return AuditEvidence(
        asked, run, group, read_thresholds(folder / FILE), shipped_thresholds(), read_agreement(folder)
    )


def page_of(found: Audit, evidence: AuditEvidence) -> str:
    """The page as HTML."""
    best, worst = best_and_worst(evidence)
    environment = templates_of("aha.auditing")
    environment.filters |= {"shown": shown, "sign": sign}
    return environment.get_template("audit.html").render(
        title=f"Audit of {evidence.asked.method} on {evidence.asked.model}",
        found=found,
        figures=list(_figures(evidence)),
        by_reference=_by_reference(evidence),
        references=(*KNOWN, *UNSEEN),
        best=best,
        worst=worst,
        toml=evidence.thresholds.as_toml(),
        shipped_toml=evidence.shipped.as_toml(),
        is_not=IS_NOT,
        written_by=versions(),
    )


def _figures(evidence: AuditEvidence) -> Iterator[tuple[str, str]]:
    """Curves with both kinds of references, as captions and data URIs."""
    for references, what in ((KNOWN, "references of training"), (UNSEEN, "references outside training")):
        protocols = [str(load_metric(text)) for text in curves(references, evidence.asked.steps)]
        rows = [row for row in evidence.group.scores.curve_rows if row.protocol in protocols]
        if rows:
            drawn = as_bytes(plot_curves(Scores(curve_rows=rows, model=evidence.asked.model)), "svg")
            yield what, "data:image/svg+xml;base64," + base64.b64encode(drawn).decode()


def _by_reference(evidence: AuditEvidence) -> list[tuple[str, list[str]]]:
    """Ins-Del of the method and of the baselines with each reference, and on average; means and standard errors."""
    rows = []
    for method in dict.fromkeys((evidence.asked.method, *BASELINES)):
        cells = []
        for references in (KNOWN, UNSEEN):
            protocol = ins_del(references, evidence.asked.steps)
            for reference in (*references, AVERAGE):
                values = evidence.values("ins_del", protocol, reference, method)
                cells.append(_cell([(image, value) for (image, _), value in values.items()]))
        rows.append((method, cells))
    return rows


def _cell(values: list[tuple[str, float]]) -> str:
    if not values:
        return "–"
    row = summarise("", "", "", "", by_image(values))
    return f"{row.mean:.3f}" + (f" ± {row.standard_error:.3f}" if row.n > 1 else "")
