"""Files of the native recorder, which :mod:`stepscope.collect.torch.native_collector` describes."""
