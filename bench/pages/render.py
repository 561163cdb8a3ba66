"""Draws what streambp-bench hands over: a report as a page (page.html, page.md), a table of records as a Parquet file.

    python render.py html|markdown|parquet      JSON on stdin, the file on stdout

The document of a report is bench/report_pages/document.h's, the columns of a table bench/records/flat_records.h's. Both pages are templates of Jinja2: its
escaping (HTML) and `plain` (Markdown) keep a text of a record from being markup.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

NEEDS = {"html": ("jinja2", "matplotlib"), "markdown": ("jinja2",), "parquet": ("pyarrow",)}


def plain(text):
    """Text in which Markdown finds no markup and a table no border."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", text)


def page(kind, document):
    import jinja2

    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=kind == "html", trim_blocks=True, lstrip_blocks=True,
                                     undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["plain"] = plain
    if kind == "markdown":
        return environment.get_template("page.md").render(document)
    import charts

    blocks = (block for section in document["sections"] for block in section["blocks"] if block["kind"] == "chart")
    for number, block in enumerate(blocks):
        block["drawings"] = [jinja2.utils.markupsafe.Markup(svg) for svg in charts.drawings(block["plots"], f"f{number}-")]
        block["legend"] = charts.legend(block["plots"])
    return environment.get_template("page.html").render(document)


def parquet(columns, file):
    import pyarrow
    import pyarrow.parquet

    def values(column):
        mixed = any(isinstance(one, float) for one in column)
        return [float(one) if mixed and one is not None else one for one in column]

    table = pyarrow.table([pyarrow.array(values(one["values"])) for one in columns], names=[one["name"] for one in columns])
    pyarrow.parquet.write_table(table, file)


def main():
    kind = sys.argv[1]
    missing = [name for name in NEEDS[kind] if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"needs {' and '.join(missing)}, which {sys.executable} has not: {sys.executable} -m pip install {' '.join(missing)}")
    given = json.load(sys.stdin)
    if kind == "parquet":
        parquet(given, sys.stdout.buffer)
    else:
        sys.stdout.buffer.write(page(kind, given).encode())


if __name__ == "__main__":
    main()
