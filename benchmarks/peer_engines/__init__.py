"""Other engines beside ours, each behind the one interface that `benchmarks.peers_bench` measures."""
