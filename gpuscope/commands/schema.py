"""`gpuscope schema`: the JSON Schema of what `--json` prints."""

from __future__ import annotations

import click


@click.command(short_help="Print the JSON Schema of a --json document.")
@click.argument("document", required=False, metavar="[DOCUMENT]")
def command(document: str | None) -> None:
    """Print the JSON Schema (draft 2020-12) of the documents of one kind, or list the kinds.

    \b
    gpuscope schema
    gpuscope schema report > report.schema.json
    """
    import json

    from gpuscope.report.published import DOCUMENTS, json_schema

    if document is not None:
        click.echo(json.dumps(json_schema(document), indent=2))
        return
    for name, published in DOCUMENTS.items():
        printed_by = ", ".join(f"gpuscope {command} --json" for command in published.commands)
        click.echo(f"{name:<18}  version {published.version}  {printed_by}")
