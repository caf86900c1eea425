"""The engine's flags: one source for the command line, the profile, the identity and the documentation."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ninfer_engine import cli
from ninfer_engine.contract.base import canonical_json
from ninfer_engine.contract.flags import EngineFlags, identity_flags, markdown_table, to_argv

DOCS = Path(__file__).parents[2] / "docs" / "flags.md"

changed_flags = st.fixed_dictionaries({}, optional={
    "model": st.sampled_from(["m", "/models/a b"]),
    "max_context": st.integers(64, 1 << 20),
    "kv_capacity": st.one_of(st.just("auto"), st.integers(64, 1 << 22)),
    "max_concurrency": st.integers(1, 256),
    "prefill_chunk": st.integers(1, 64).map(lambda pages: pages * 64),
    "expected_forks": st.integers(0, 64),
    "no_prefix_reuse": st.booleans(),
    "check_invariants": st.booleans(),
    "log_level": st.sampled_from(["debug", "info", "warning", "error"]),
    "model_sha256": st.just("ab" * 32),
})


@given(changed_flags)
def test_what_the_command_line_says_is_what_the_engine_gets(values: dict[str, object]) -> None:
    flags = EngineFlags.model_validate(values)
    seen: list[EngineFlags] = []
    app = cli.typer.Typer()
    app.command()(cli.flags_command(seen.append))
    done = CliRunner().invoke(app, to_argv(flags), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert seen == [flags]


@pytest.mark.parametrize("argument", ["--max-context=ten", "--port=70000", "--prefill-chunk=100", "--kv-capacity=1",
                                      "--device=tpu", "--config-sha256=zz"])
def test_a_wrong_value_is_refused_with_the_flags_name(argument: str) -> None:
    done = CliRunner().invoke(cli.app, ["serve", "--model", "m", argument])
    assert done.exit_code == 2
    assert argument.split("=", maxsplit=1)[0] in done.output or "kv_capacity" in done.output


def test_a_place_is_no_part_of_the_identity_and_an_answer_is() -> None:
    base = identity_flags(EngineFlags())
    assert identity_flags(EngineFlags(port=1, log_level="debug", model="elsewhere")) == base
    assert canonical_json(identity_flags(EngineFlags(max_context=4096))) != canonical_json(base)


def test_the_documentation_lists_every_flag_as_it_is() -> None:
    assert DOCS.read_text().split("\n\n", 2)[2] == markdown_table(), "run: ninfer-engine flags, and renew docs/flags.md"
