"""The paper's theorems on synthetic problems, where every quantity in them is known.

    python -m spcacw_flwr.experiments.theory experiments/results/theory docs/theory

runs the Pure Clusters case study (Y. Kiselman and K. Y. Levy, arXiv:2606.29322, section
"Illustrative Case Study: Pure Clusters", appendices "Derivation of Baseline Rates", "Cumulative
Bias-Variance Decomposition" and "Extension to Partial Participation") with the methods of this
repository, and writes a table and a picture for each study. ``docs/theory.md`` explains them.
"""
