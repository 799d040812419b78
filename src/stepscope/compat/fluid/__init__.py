"""The documented interface of ``paddle.fluid.profiler``, recording with stepscope."""
