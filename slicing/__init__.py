"""Slicing: partial models, their dependency DAG, and which weight is averaged with whom.

`models` names the partial models and who implements them, `network` maps the scalars of a network's flat vector to
neurons (`trace` finds that map for a torch module), `assign` hands neurons out to models, `plan` compiles averaging
groups, `flat` flattens, gathers and scatters, `describe` is for drawing. Only `trace`, `rules` and `flat` import torch.
"""
