"""What Paddle writes: node trees and Chrome traces of today, and the profile file of ``fluid.profiler``."""
