"""The context cache's brain: checkpoints and their lineage, capacities, costs, the planner, sizing and the simulator.

Pure: no clock, no input or output, no tensors. Times come in as arguments, bytes stay in `memory/`, and page and image
ids are opaque integers that `memory/` issued. One thread calls it.
"""
