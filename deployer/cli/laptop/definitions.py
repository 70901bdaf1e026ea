"""Commands to write definitions: init, lint, schema."""

import argparse
from pathlib import Path
from typing import Any

from deployer.cli.site import common
from deployer.connected.image import init as initialising
from deployer.connected.image.definition.definition import load, schema
from deployer.connected.image.lint.lint import lint
from deployer.contract.base import json_records
from deployer.contract.base.errors import Refused, UsageError
from deployer.contract.base.guess import guess
from deployer.contract.base.text import counted
from deployer.contract.rules.findings import errors
from deployer.system import terminal

#: The schemas of records by command, which scripts/output_schemas.py makes.
_OUTPUTS = Path(__file__).with_name("outputs.json")


def add_parsers(subparsers: Any) -> None:
    """Register this group's commands."""
    command = common.add_command(subparsers, "init", _init)
    text = "name of the definition; its folder is bundles/NAME, or NAME if there is no folder bundles"
    common.add(command, "name", "NAME", text, nargs="?")
    text = (
        "what it starts as: Python with mpi4py (none), a C program that the Dockerfile compiles, or a framework; "
        "pytorch-ddp and jax train on two nodes. One of: " + ", ".join(initialising.KINDS) + " (default: none)"
    )
    choice = {"dest": "template", "choices": initialising.KINDS, "default": "none"}
    common.add(command, "--template", "--framework", "KIND", text, **choice)
    text = "use an image that exists: a file (docker save, SIF), an image of the Docker engine or of a registry, or "
    text += "what a definition file of Apptainer makes of one; "
    text += "its MPI and its command are written too (NAME by default: that of the image)"
    common.add(command, "--from-image", "REF", text)
    common.flag(command, "--dry-run", "print which files would be written")

    command = common.add_command(subparsers, "lint", _lint)
    common.add(command, "definition", "DEF", "a folder with a bundle.yaml, or that file")
    common.repeated(command, "--accept", "CODE", "ignore this rule")

    command = common.add_command(subparsers, "schema", _schema, has_record=False)
    common.add(command, "--output", "COMMAND", "print the JSON schema of what `COMMAND --json` prints", nargs="+")


def _init(args: argparse.Namespace) -> None:
    if args.from_image:
        if args.template != "none":
            raise UsageError("--template cannot be used with --from-image: the definition is for the image as it is")
        from deployer.connected.bundle import from_image

        definition = from_image.definition(args.from_image, args.name, Path(), args.dry_run)
    elif args.name:
        definition = initialising.init(args.name, args.template, Path(), args.dry_run)
    else:
        raise UsageError("init requires NAME, or --from-image REF", "deployer init my-model")
    if common.as_json(args, definition.record()):
        return
    terminal.show(*(f"{'would write' if args.dry_run else 'wrote'} {path}" for path in definition.files))
    if not args.dry_run:
        common.suggest(args, "lint", str(definition.folder))


def _lint(args: argparse.Namespace) -> None:
    definition = load(args.definition)
    linted = lint(definition, args.accept)
    failed = errors(linted.findings)
    findings = [item.record() for item in linted.findings]
    if not common.as_json(args, {"findings": findings, "image": linted.image}):
        for item in linted.findings:
            severity = terminal.word(item.severity)
            terminal.show(f"{item.subject}: {severity} {item.code}: {item.message}", f"    {item.remedy}")
        if not linted.image and definition.needs_engine:
            terminal.warn("its layers were not checked: the image is not built, or no Docker engine answers")
        if not linted.findings:
            terminal.show("nothing found")
        elif not (failed or terminal.is_quiet()):
            terminal.show(common.more(item.code for item in linted.findings))
    if failed:
        codes = ", ".join(dict.fromkeys(item.code for item in failed))
        hint = "correct them, or ignore a rule: --accept CODE"
        raise Refused(f"{counted(len(failed), 'error')} found: {codes}", hint)
    if definition.is_data:
        common.suggest(args, "pack", args.definition, "-o", f"{definition.name}.tar")
    else:
        common.suggest(args, "build", args.definition)


def _schema(args: argparse.Namespace) -> None:
    if args.output:
        known = json_records.parse(_OUTPUTS.read_bytes(), str(_OUTPUTS))
        command = " ".join(args.output)
        if command not in known:
            raise UsageError(f"no command {command!r} prints a record{guess(command, known)}", "see: docs/records.md")
        terminal.show_json(known[command], indent=2)
    else:
        terminal.show_json(schema(), indent=2)
