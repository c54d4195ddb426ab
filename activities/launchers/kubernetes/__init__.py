"""Containers as pods of a Kubernetes cluster: one indexed Job an allocation (docs/adr/0029)."""
