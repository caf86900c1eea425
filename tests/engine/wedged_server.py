"""A whole server whose engine thread hangs or dies, in a process of its own: what a container would see.

Arguments: hangs | dies, and a model directory. Prints the listening line as any server does.
"""

import sys
import time
from pathlib import Path

from ninfer_engine.contract.flags import EngineFlags
from ninfer_engine.runtime import loop
from ninfer_engine.server import main, serve


def fail(how: str) -> None:
    """The end of the engine thread."""
    if how == "dies":
        raise RuntimeError("the engine thread fails")
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    how, model = sys.argv[1:]
    loop.STEP_LIMIT_S = 1.0
    patience = serve.Patience(drain_s=1, died_s=1.5)
    build = main.build_engine

    def built(flags: EngineFlags, api_key: str | None = None) -> main.Built:
        """An engine that fails at the first prompt of more than 300 tokens."""
        made = build(flags, api_key)
        prefill = made.engine._scheduler._executor.prefill

        def failing(sequence: object, count: int, *more: object) -> None:
            if count > 300:
                fail(how)
            prefill(sequence, count, *more)  # type: ignore[arg-type]  # passed on as it came

        made.engine._scheduler._executor.prefill = failing  # type: ignore[method-assign]  # the fault
        return made

    main.build_engine = built
    costs = Path(__file__).parents[1] / "data" / "costs-tiny.json"
    flags = EngineFlags(model=model, port=0, max_context=4096, kv_capacity=8192, host_kv_mib=16, device="cpu",
                        context_cost_presets=str(costs))
    sys.exit(main.run_server(flags, patience))
