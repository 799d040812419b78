// Keeps one line of torch off standard error while memory is recorded.
#pragma once

namespace stepscope {

// Leave out the line from now on, and no longer; calls come in pairs, which may nest. Not thread-safe: hold the GIL.
void hush();
void unhush();

}  // namespace stepscope
