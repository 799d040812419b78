"""One file per source of measurements, behind the protocol in :mod:`stepscope.collect.collectors.protocol`."""
