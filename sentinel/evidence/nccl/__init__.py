"""What NCCL and PyTorch tell of collectives: flight recorder, RAS, debug endpoints."""
