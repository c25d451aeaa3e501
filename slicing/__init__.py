"""Slicing: partial models, their dependency DAG, and the groups of peers that average each weight.

`models` defines the partial models and the peers that implement them, `network` maps the scalars of a network's flat
vector to neurons (`trace` finds that map for a torch module), `assign` assigns neurons to models, `plan` compiles
averaging groups, `flat` flattens, gathers and scatters, and `describe` prepares a plan for drawing. Only `flat` and the
modules of tracing (`trace`, `rules`, `layers`, `products`, `shadows`) import torch.
"""
