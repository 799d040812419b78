"""Raw buffers of CUPTI's Activity API."""
