"""A run's numbers as files: CSV, Parquet, Markdown and LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aha.bench.reporting.tables import Table, by_class, headline, summary_tables
from aha.bench.run_reader import Group, Run, read_run
from aha.bench.runner import BenchRun
from aha.core.disk import write_atomically, writing
from aha.errors import MissingExtra
from aha.results.score_table import Row, Scores, csv_bytes, latex_table, markdown_table, parquet_bytes

Captioned = Sequence[tuple[str, Table]]
"""Tables with what stands above them."""


SCORES, SUMMARY = "scores.csv", "summary.csv"


def write_tables(run: BenchRun) -> Scores:
    """Writes `scores.csv` and `summary.csv` of a run's folder, and gives the scores that its plan asks for."""
    read = read_run(run.out)
    with writing(run.out):
        for name, content in ((SCORES, scores_csv(read.groups)), (SUMMARY, summary_csv(read.groups))):
            write_atomically(run.out / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    scores = Scores(protocols=run.work.protocols, model=run.model.spec)
    for group in read_run(run.out, run.planned_keys()).groups:
        scores.extend(group.scores)
    return scores


def scores_csv(groups: Sequence[Group]) -> bytes:
    """All values, in the columns of `aha evaluate`."""
    return csv_bytes(_heads(groups), _rows(groups))


def scores_parquet(groups: Sequence[Group]) -> bytes | None:
    """The same as a Parquet file; nothing where pyarrow is not installed."""
    try:
        return parquet_bytes(_heads(groups), _rows(groups))
    except MissingExtra:
        return None


def _heads(groups: Sequence[Group]) -> list[str]:
    """Two more columns where there are several models or kinds of target."""
    return [*Row._fields, "target_kind", "model"] if len(groups) > 1 else list(Row._fields)


def _rows(groups: Sequence[Group]) -> Iterable[Sequence[Any]]:
    if len(groups) == 1:
        return groups[0].scores.rows
    return ((*row, group.target_kind, group.model) for group in groups for row in group.scores.rows)


def summary_csv(groups: Sequence[Group]) -> bytes:
    """Means, errors, ranks and significance, also of single references."""
    heads = [
        "model",
        "target_kind",
        "protocol",
        "method",
        "metric",
        "reference",
        "mean",
        "standard_error",
        "low",
        "high",
    ]
    heads += ["n", "rank", "p"]
    rows = (
        [
            group.model,
            group.target_kind,
            table.protocol,
            method,
            *column,
            e.mean,
            e.error,
            *e.interval,
            e.n,
            e.rank or "",
            e.p,
        ]
        for group in groups
        for table in summary_tables(group, each_reference=True)
        for method, entries in table.rows.items()
        for column, e in entries.items()
    )
    return csv_bytes(heads, rows)


def per_class_csv(run: Run) -> bytes:
    """The headline metric for each class."""
    heads = ["model", "target_kind", "metric", "reference", "class", "name", "images", "method", "mean"]
    return csv_bytes(heads, (row for group in run.groups for row in _class_rows(run, group)))


def _class_rows(run: Run, group: Group) -> Iterable[Sequence[Any]]:
    chosen = headline(group)
    if chosen is None:
        return
    for index, n, means in by_class(group):
        common = (group.model, group.target_kind, *chosen[1], index, run.class_name(group.model, index), n)
        for method, mean in zip(group.methods, means, strict=True):
            if mean is not None:
                yield (*common, method, mean)


def tables_markdown(tables: Captioned) -> bytes:
    """The tables of the page; bold is what these images cannot tell from the best."""
    return "\n\n".join(_laid_out(tables, markdown_table)).encode()


def tables_latex(tables: Captioned) -> bytes:
    """The same for a paper, with booktabs."""
    text = "\n\n".join(_laid_out(tables, latex_table))
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", text).encode()


def _laid_out(tables: Captioned, layout: Callable[[str, list[str], list[list[str]]], str]) -> Iterable[str]:
    for caption, table in tables:
        body = [[method, *(_cell(table, method, column) for column in table.columns)] for method in table.rows]
        yield layout(caption, ["method", *table.heads], body)


def _cell(table: Table, method: str, column: tuple[str, str]) -> str:
    entry = table.rows[method].get(column)
    if entry is None:
        return "–"
    text = table.mean(column, entry) + ("" if math.isnan(entry.error) else f" ± {table.error(column, entry)}")
    # Bold as in papers: the best, and those that these images cannot tell from it.
    return f"**{text}**" if entry.is_top else text
