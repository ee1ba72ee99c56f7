"""GPUs of one node: DCGM by its bindings or by `dcgmi`, NVML where there is no DCGM. Reads only; decides nothing."""
