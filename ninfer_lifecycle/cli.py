"""`ninfer`: the command line. A subcommand's module in `commands/` is imported when that subcommand is called, or when
a shell asks what could complete it.

`main` is the one place where errors become exit codes; the error and its advice go to stderr.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import typer

from ninfer_lifecycle.errors import ExitCode, NinferError, as_told
from ninfer_lifecycle.hosts.signals import Terminated, sigterm_raises


@dataclass(frozen=True, slots=True)
class Command:
    """Where a subcommand lives: `attribute` of commands/`module`.py, a function or a typer app of subcommands."""

    module: str
    attribute: str
    help: str


COMMANDS: dict[str, Command] = {
    "qualify": Command("qualify", "qualify", "Start an engine, probe it, write a signed receipt."),
    "probe": Command("probe", "app", "List and describe probe plans; run one against a running engine."),
    "gate": Command("gate", "gate", "Decide whether a receipt lets a release through."),
    "receipt": Command("receipt", "app", "Verify and show receipts."),
    "report": Command("report", "app", "Write a receipt as HTML, Prometheus text, JUnit, job summary or notes."),
    "dashboard": Command("dashboard", "app", "Build or serve a site over a folder of receipts and running probes."),
    "key": Command("key", "app", "Make signing keys."),
    "profile": Command("profile", "app", "List, validate, show, lock and compare profiles."),
    "promote": Command("promote", "promote", "Make a qualified profile live on a lane."),
    "rollback": Command("promote", "rollback", "Make the release that was live before live again."),
    "release": Command("release", "app", "Show lanes and their history; recover them; take one out of service."),
    "fleet": Command("fleet", "app", "Check the signed statement over a fleet (`ninfer qualify --fleet` makes it)."),
    "deploy": Command("deploy", "deploy", "Run a profile as replicas on a Docker Swarm, behind a front."),
    "undeploy": Command("undeploy", "undeploy", "Take a deployment off the swarm."),
    "render": Command("render", "render", "Write a profile as a file for Compose, Swarm or systemd."),
    "up": Command("up", "up", "Start an engine and leave it running."),
    "down": Command("up", "down", "Stop an engine that `up` started."),
    "status": Command("up", "status", "Show what `up` started, and how it is."),
    "logs": Command("up", "logs", "Print the last lines of an engine that `up` started."),
    "doctor": Command("doctor", "doctor", "Check this machine, and what a profile needs of it, before a start."),
    "sweep": Command("sweep", "sweep", "Remove what dead runs left on the Docker daemon."),
    "top": Command("top", "top", "Watch a running engine: load, pools, reuse."),
    "size": Command("size", "size", "Derive slots and catalog from what is meant to run, with memory and proof."),
    "simulate": Command("simulate", "simulate", "Run a trace through the cache's policy, beside other policies."),
    "image": Command("image", "app", "Build the engine's container image."),
    "schema": Command("schema", "app", "Print JSON Schemas, for editors."),
}
"""Every subcommand, in the order of the overview. To add one: a module in commands/ and a line here."""


def build_app(arguments: Sequence[str]) -> typer.Typer:
    """The typer app for one command line: only the subcommand that it names is imported."""
    app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False,
                      help="Build, start, probe, sign for and roll out configurations of the ninfer engine.")
    app.callback()(_overview)
    wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
    for name, command in COMMANDS.items():
        if name != wanted:
            app.command(name, help=command.help)(_not_loaded)
            continue
        found = getattr(importlib.import_module(f"ninfer_lifecycle.commands.{command.module}"), command.attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name, help=command.help)
        else:
            app.command(name)(found)
    return app


def typed_words(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The words after `ninfer` of the line that a shell wants completed; none when this is no such call.

    bash gives them in COMP_WORDS, the other shells in typer's own variable; typer reads the same two.
    """
    if not environment.get("_NINFER_COMPLETE", "").startswith("complete_"):
        return ()
    line = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or ""
    return tuple(line.split()[1:])


def _overview() -> None:
    """Its presence makes every command a subcommand, also a single one."""


def _not_loaded() -> None:
    """Stands for a subcommand in the overview."""


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code. Effects: those of the subcommand; errors are printed to stderr."""
    try:
        with sigterm_raises():
            build_app(arguments or typed_words(os.environ))(args=list(arguments), prog_name="ninfer")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except (NinferError, OSError) as error:
        told = as_told(error)
        if told is None:
            raise
        print_error(told)
        return int(told.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("ninfer: interrupted\n")
        return int(ExitCode.INTERRUPTED)
    except Terminated:
        sys.stderr.write("ninfer: terminated\n")
        return int(ExitCode.TERMINATED)
    return 0


def print_error(error: NinferError) -> None:
    """What happened, then what to do about it."""
    sys.stderr.write(f"ninfer: {error.message}\n")
    if error.advice:
        sys.stderr.write(f"  {error.advice}\n")


def main() -> None:
    """Entry point of `ninfer`."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
