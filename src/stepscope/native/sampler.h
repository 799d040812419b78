/* Samples of the Python stacks of all threads, read without the GIL. What is read, and where it lies, is a matter of
 * stepscope/collect/surgery/python_layout.py; stepscope/collect/host/stack_samples.py starts and empties the sampler.
 */
#ifndef SS_SAMPLER_H
#define SS_SAMPLER_H

#include <stdint.h>

#ifdef _WIN32
#define SS_SAMPLER_EXPORT __declspec(dllexport)
#else
#define SS_SAMPLER_EXPORT __attribute__((visibility("default")))
#endif

/* Where CPython keeps what is read: offsets in bytes, in the order of `NAMES` in python_layout.py. 0: not there. */
enum ss_offset {
    SS_INTERPRETERS, SS_INTERP_NEXT, SS_THREADS, SS_RUNTIME_GIL, SS_CEVAL_GIL, SS_GIL_SIZE, SS_GIL_HOLDER,
    SS_GIL_LOCKED, SS_GC_COLLECTING, SS_THREAD_NEXT, SS_THREAD_INTERP, SS_THREAD_CFRAME, SS_CFRAME_FRAME,
    SS_THREAD_FRAME, SS_THREAD_TID, SS_THREAD_CHUNK, SS_THREAD_TOP, SS_FRAME_SIZE, SS_FRAME_PREVIOUS, SS_FRAME_CODE,
    SS_FRAME_INSTRUCTION, SS_FRAME_OWNER, SS_CODE_SIZE, SS_CODE_FILE, SS_CODE_QUALNAME, SS_CODE_LINES, SS_CODE_FIRST,
    SS_CODE_INSTRUCTIONS, SS_BYTES_SIZE, SS_BYTES_DATA, SS_TEXT_LENGTH, SS_TEXT_STATE, SS_TEXT_ASCII, SS_TEXT_COMPACT,
    SS_OFFSETS
};

/* What a thread does; the order of `SAMPLE_STATES` in stepscope/trace/schema.py. */
enum ss_state {
    SS_PYTHON, SS_NATIVE, SS_COLLECTING, SS_GIL, SS_CORE, SS_LOCK, SS_SLEEP, SS_IO, SS_CHILD, SS_WAITING
};

/* What `ss_sampler_figures` gives, as 64-bit integers; the order of `FIGURES` in stack_samples.py. */
typedef struct {
    uint64_t ticks;    /* how often the threads were looked at */
    uint64_t covered;  /* ns from the start to the last tick, without times at which the process stood still */
    uint64_t late;     /* ticks more than 1 ms late */
    uint64_t samples;  /* threads looked at, those that had not moved among them */
    uint64_t walks;    /* stacks read */
    uint64_t torn;     /* of them, stacks that changed too much to be told */
    uint64_t moved;    /* stacks of which only the outer part held still */
    uint64_t lost;     /* samples and stacks for which there was no room */
    uint64_t cut;      /* stacks deeper than can be read */
    uint64_t cpu;      /* ns of CPU time of the sampling thread */
    uint64_t refused;  /* reads of another process that the system refused */
    uint64_t stopped;  /* 1: it stopped itself, as too many stacks were torn */
    uint64_t waiting;  /* rows that wait to be taken */
} ss_figures;

/* One process that is read. */
typedef struct {
    int pid;
    uint32_t serial;
    uint64_t runtime, code_type;
} ss_process;

/* What the walk remembers of a thread, and found in it last. */
typedef struct {
    uint64_t tstate, chunk, chunk_bytes, cframe;
    uint32_t tid;
} ss_walked;

enum { SS_WHOLE, SS_MOVED, SS_TORN };

/* sampler_memory.c: reads of memory that may be gone: a bad address is an error, never a signal. */
#include <sys/types.h>
struct iovec;
extern int64_t ss_at[SS_OFFSETS];
int ss_memory_open(int plain);
void ss_memory_close(void);
int ss_read(int pid, void *to, uint64_t from, size_t size);
int ss_read_pieces(int pid, struct iovec *to, struct iovec *from, int count);

/* sampler_stacks.c: stacks, and the tables in which each stands once. */
int ss_stacks_open(void);
void ss_stacks_close(int in_child);
void ss_stacks_tick(uint64_t tick, uint64_t trusted);
int ss_walk(ss_process *process, ss_walked *thread, uint32_t *stack);

extern ss_figures ss_sampler;

#endif
