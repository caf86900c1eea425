"""One thin typer module a subcommand; `ninfer_lifecycle.cli` loads each when it is called."""
