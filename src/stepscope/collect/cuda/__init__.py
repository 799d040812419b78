"""Sources of NVIDIA GPUs: CUPTI, the driver, NVML."""
