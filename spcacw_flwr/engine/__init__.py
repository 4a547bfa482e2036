"""The parts that run a method: the loop, the gate, and the files of a run."""
