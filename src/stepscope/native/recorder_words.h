/* Words of the native recorder → columns: the fast twin of stepscope/read/recorder/recorder_words.py; what words mean is explained
 * in stepscope/collect/torch/native_collector.py.
 *
 * Words are read within [words, words + count) only. What does not belong where it stands is skipped and counted.
 */
#ifndef STEPSCOPE_RECORDER_WORDS_H
#define STEPSCOPE_RECORDER_WORDS_H

#include "kineto.h"

/* What becomes of an operator. */
enum ss_recorder_end { SS_OPEN = 0, SS_ENDED = 1, SS_LOST = 2 };

/* One thread's walk. The stack holds the rows of operators that are open; `unknown` are open below it that have no row, -1:
 * their number is unknown. */
typedef struct {
    int64_t depth, unknown;
    int64_t rows, memories, definitions, endings; /* entries of the columns that are filled */
    int64_t unmatched, damaged;                   /* ends without a row; words that do not belong there */
} ss_recorder_walk;

/* Columns to fill: one entry per operator, per report of memory (its index), per definition (its index), and per end by
 * identity. There is room for each word of the block. */
typedef struct {
    int64_t *stack, room;
    uint64_t *begin, *end, *name, *forward, *identity, *launch; /* ticks, and values of words, 0: none */
    uint32_t *inputs, *line;                           /* number of the definition, 0: it has none; 0: it is unknown */
    uint8_t *state;
    int64_t *memory, *definition;
    uint64_t *ended, *ended_identity;
    int64_t *ended_row; /* the row that the next operator would have had */
} ss_recorder_columns;

/* Walks over the words of a block. */
SS_EXPORT void ss_recorder_words(const uint64_t *words, int64_t count, ss_recorder_walk *walk,
                                 const ss_recorder_columns *columns);

/* Ticks → ns in place: between two knots in a straight line, outside as between the two next to it. There are two or more. */
SS_EXPORT void ss_recorder_times(int64_t count, uint64_t *ticks, int64_t knots, const uint64_t *at, const int64_t *ns);

#endif
