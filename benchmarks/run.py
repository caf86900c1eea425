"""`make bench`: every benchmark, one after another, each in a process of its own. Arguments name some: `forks planner`.

Minutes in all; let the machine be quiet. Every one of them can be run alone: `python -m benchmarks.NAME_bench`.
"""

import subprocess
import sys

BENCHMARKS = {
    "forks": ("benchmarks.fork_bench", ["16384", "57853"]),
    "together": ("benchmarks.together_bench", ["16384"]),
    "model": ("benchmarks.model_bench", []),
    "products": ("benchmarks.products_bench", []),
    "kv": ("benchmarks.kv_quality_bench", []),
    "sessions": ("benchmarks.sessions_bench", []),
    "planner": ("benchmarks.planner_bench", []),
    "simulate": ("benchmarks.simulate_bench", []),
    "store": ("benchmarks.store_bench", []),
    "overhead": ("benchmarks.overhead_bench", []),
    "peers": ("benchmarks.peers_bench", []),
    "load": ("benchmarks.load_bench", []),
    "gaps": ("benchmarks.gaps_bench", ["57853"]),
    "receipts": ("benchmarks.receipts_bench", ["100000"]),
    "site": ("benchmarks.site_bench", ["10000"]),
}


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; 2 for an unknown name, else the first failure's exit code."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"no benchmark is called {', '.join(unknown)}: there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        module, arguments = BENCHMARKS[name]
        print(f"\n## {name}: python -m {' '.join([module, *arguments])}\n", flush=True)
        done = subprocess.run([sys.executable, "-m", module, *arguments], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
