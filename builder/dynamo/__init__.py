"""The `torch.compile` backend "triton_repo"."""
