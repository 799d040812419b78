r"""What PyTorch does, recorded by observers of our own in C++ instead of Kineto: ``native/recorder``.

An operator costs the training two time stamps and the copy of three words. Threads write into chunks of their own; a
thread of the recorder's, which never takes Python's lock, appends what is new to ``capture/recorder.ssr`` twice a
second while training goes on.

The file has blocks as :mod:`stepscope.trace.frames` describes, with the magic ``SSR1\n``; numbers and structures are
in :mod:`stepscope.trace.recorder`. All integers are little-endian. The first byte of a block says its sort:

* ``F``: facts, packed JSON. The first block: ``process, host, torch, clock`` (``tsc``, or ``monotonic``: ticks are ns of
  CLOCK_MONOTONIC), ``chunk`` (words of a full one), ``options`` (those of the profile), ``sample`` (fraction of the
  operators that is recorded, 1.0 for all; user ranges are never sampled). The last block: ``closed`` (true),
  ``losses`` {name: count}.
* ``C``: the clocks at one moment, at start, before each flush and at stop: ``CLOCK_BLOCK``. Between two of them ticks
  move in a straight line.
* ``T``: a thread's name: ``THREAD_HEAD`` and UTF-8 text. It may come again when the name has changed.
* ``W``: words of one chunk of one thread: ``WORDS_HEAD`` and words of 8 bytes.

A thread fills one chunk after another, numbered from 0. The blocks of a chunk follow each other in the file, perhaps
with blocks of other threads between them; the place of a block's first word in its chunk shows whether one is missing.
Where a chunk's number is missing, that chunk is. ``dropped`` in the head counts operators that were not recorded between
this chunk and the one before, because the disk did not follow. A block never cuts an event: the words of an event,
with the definitions that it needs, are in one block.

A word has a tag in its upper 4 bits and a value in its lower 60:

* ``DEPTH`` the first word of each chunk: how many operators of this thread's stack are open there, those that were
  dropped included. It agrees with the chunk before unless chunks are missing between.
* ``BEGIN`` ticks: an operator begins. The next word is its ``NAME``: scope (4 bits, ``at::RecordScope``, or 15: a call of
  a Python function named ``file(line): function``) · name (20 bits, a definition) · sequence number + 1 (36 bits; 0: it has
  none), from the upper bits down. Then, where they are known: ``INPUTS`` (a definition) · ``FORWARD`` torch's number of
  the thread of the forward operator · ``IDENTITY`` (see ``END_OF``).
* ``END`` ticks: the innermost open operator of this thread's stack ends. Where a ``LEVEL`` word n comes just before, it is
  the one n places further out, and those inside it stay open.
* ``END_OF`` ticks, then ``IDENTITY``: an operator ends whose ``BEGIN`` has this identity, perhaps one of another thread:
  the one with the latest such ``BEGIN``. Operators with an identity (user ranges, asynchronous ones) are not on the
  thread's stack. Without such a ``BEGIN`` it was open before the recording, and is no operator of it.
* ``MEMORY`` ticks, then five ``VALUE`` words: address · bytes (negative: freed) · allocated in all · reserved in all ·
  device (``c10::DeviceType`` × 256 + index + 1). The values are signed 60-bit integers.
* ``DEFINE`` sort (4 bits) · number (24 bits) · length in bytes (32 bits), then ``RAW`` words with 7 bytes each (the lower
  ones of the word, the lowest first). Numbers are valid within the chunk, from the definition on, and count from 1 for
  each sort; number 0 means that there were too many.

An operator without an end was open when the recording stopped, or its end was lost. With sampling, operators that were
not sampled leave no words, so nesting shows only the sampled ones.

The definition of a name is UTF-8. The definition of inputs is a list of items up to its end; an item is a byte of kind
and what belongs to it. ``u`` is an unsigned LEB128 number, ``s`` a zigzag LEB128 one:

* ``OTHER``: None and whatever is no scalar, tensor or list of these; ``UNDEFINED``: a tensor without shape;
* ``TENSOR``: byte ``c10::ScalarType`` · u dimensions n · n × u sizes · byte 1 and n × u strides, or byte 0;
* ``TENSORS``: u count · as many items of kind TENSOR or UNDEFINED;
* ``INTEGER``: s · ``REAL``: 8 bytes IEEE 754 · ``BOOLEAN``: a byte · ``COMPLEX``: two REAL numbers;
* ``LIST``: u count · as many scalar items (INTEGER, REAL, BOOLEAN, COMPLEX, OTHER);
* ``CUT``: the rest of the inputs was too long to note.
"""
