"""What an audit was asked for: written into its folder before any work, so that it can be resumed and judged again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aha.bench.store import ROWS
from aha.core.store import read_record, write_record
from aha.core.validation import from_json
from aha.errors import OutputError, SpecError

RECORD = "audit-settings.json"
PAGE, JSON = "audit.html", "audit.json"


@dataclass(frozen=True)
class AuditRequest:
    """What is audited, and how.

    Attributes:
        model: text of the model.
        digest: of its weights.
        model_text: the model as a call writes it.
        method: text of the method.
        in_full: the same with all parameters.
        facts: what the method says of itself for this model, such as its explainer.
        data: text of the data.
        target: the explained class.
        limit: number of images.
        steps: of deletion and insertion.
        seed: of the choice of images, of methods and metrics.
        against: what the maps are compared with; empty for nothing.
        headroom: budget of the search; 0 for none.
        truth: the metric that looks at boxes or masks; empty where the data have none.
        begun: date of the first call.
    """

    model: str
    digest: str
    model_text: str
    method: str
    in_full: str
    facts: Mapping[str, Any]
    data: str
    target: str
    limit: int
    steps: int
    seed: int
    against: str = ""
    headroom: int = 0
    truth: str = ""
    begun: str = ""

    def write(self, folder: Path) -> None:
        """Into the folder of the audit."""
        write_record(folder / RECORD, asdict(self))


def is_audit(folder: Path) -> bool:
    """Is it the folder of an audit?"""
    return (folder / RECORD).is_file()


def read_asked(folder: Path) -> AuditRequest:
    """What the audit of a folder was asked for.

    Raises:
        OutputError: It holds no audit, or its record is damaged.
    """
    if not is_audit(folder):
        raise OutputError(f"{folder} is not the folder of an audit; create one with: aha audit")
    try:
        return from_json(AuditRequest, read_record(folder / RECORD))
    except (OSError, SpecError) as error:
        raise OutputError(f"{folder / RECORD} is damaged ({error}); run aha audit again with another --out") from None


def check_same(folder: Path, asked: AuditRequest) -> AuditRequest:
    """Refuses a folder that holds something else; gives what is asked, with the date on which the audit was begun."""
    if not is_audit(folder):
        if (folder / ROWS).is_dir():
            raise OutputError(f"{folder} is the folder of a run, not of an audit; choose another --out")
        return asked
    former = read_asked(folder)
    for name in ("model", "digest", "in_full", "data", "target", "seed", "steps"):
        was, now = getattr(former, name), getattr(asked, name)
        if was != now:
            what = "other weights" if name == "digest" else f"{name.replace('in_full', 'method')} {was}, not {now}"
            raise OutputError(f"{folder} holds an audit with {what}; choose another --out")
    return AuditRequest(**{**vars(asked), "begun": former.begun})
