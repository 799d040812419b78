"""Files of the native recorder, which :mod:`stepscope.collect.collectors.torch_native` describes."""
