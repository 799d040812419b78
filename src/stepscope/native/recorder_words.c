/* Words of the native recorder → columns, see recorder_words.h. */
#include <string.h>

#include "recorder_words.h"

enum tag {
    END = 1, BEGIN, NAME, INPUTS, FORWARD, IDENTITY, END_OF, DEPTH, LEVEL, MEMORY, VALUE, DEFINE, RAW, LINE, LAUNCH
};

#define VALUE_BITS ((UINT64_C(1) << 60) - 1)
#define BYTES_IN_RAW 7
#define VALUES_OF_MEMORY 5
/* Times farther from a knot are damage, and stay within 64 bits. */
#define MOST_NS 4611686018427387904.0

static inline unsigned tag_of(uint64_t word) { return (unsigned)(word >> 60); }

/* The value of the word at `*i` if it has this tag, and one step on; else 0. */
static inline uint64_t optional(const uint64_t *words, int64_t count, int64_t *i, enum tag tag) {
    return *i < count && tag_of(words[*i]) == tag ? words[(*i)++] & VALUE_BITS : 0;
}

/* How many words with this tag there are from `i` on, `most` at most. */
static int64_t run_of(const uint64_t *words, int64_t count, int64_t i, enum tag tag, int64_t most) {
    int64_t n = 0;
    while (n < most && i + n < count && tag_of(words[i + n]) == tag) n++;
    return n;
}

/* An operator begins at `i`; returns the index behind it. */
static int64_t begin(const uint64_t *words, int64_t count, int64_t i, ss_recorder_walk *walk, const ss_recorder_columns *to) {
    if (i + 1 >= count || tag_of(words[i + 1]) != NAME) {
        walk->damaged++;
        return i + 1;
    }
    int64_t row = walk->rows++;
    to->begin[row] = words[i] & VALUE_BITS;
    to->name[row] = words[i + 1] & VALUE_BITS;
    i += 2;
    to->inputs[row] = (uint32_t)optional(words, count, &i, INPUTS);
    to->forward[row] = optional(words, count, &i, FORWARD);
    to->identity[row] = optional(words, count, &i, IDENTITY);
    to->line[row] = (uint32_t)optional(words, count, &i, LINE);
    to->launch[row] = optional(words, count, &i, LAUNCH);
    to->end[row] = 0;
    to->state[row] = SS_OPEN;
    if (to->identity[row]) return i;
    if (walk->depth < to->room)
        to->stack[walk->depth++] = row;
    else
        to->state[row] = SS_LOST;
    return i;
}

/* The operator `level` frames further out than the innermost one ends. */
static void end(uint64_t ticks, uint64_t level, ss_recorder_walk *walk, const ss_recorder_columns *to) {
    if (level >= (uint64_t)walk->depth) {
        walk->unmatched++;
        walk->unknown -= walk->unknown > 0;
        return;
    }
    int64_t *place = to->stack + walk->depth - 1 - (int64_t)level;
    to->end[*place] = ticks;
    to->state[*place] = SS_ENDED;
    memmove(place, place + 1, (size_t)level * sizeof *place);
    walk->depth--;
}

/* The recorder says how many are open: where they are not those that we know, we do not know which. */
static void check_depth(int64_t depth, ss_recorder_walk *walk, const ss_recorder_columns *to) {
    if (walk->unknown < 0 || depth != walk->depth + walk->unknown) {
        while (walk->depth) to->state[to->stack[--walk->depth]] = SS_LOST;
        walk->unknown = depth;
    }
}

static int64_t definition(const uint64_t *words, int64_t count, int64_t i, ss_recorder_walk *walk,
                          const ss_recorder_columns *to) {
    int64_t raw = ((int64_t)(words[i] & UINT32_MAX) + BYTES_IN_RAW - 1) / BYTES_IN_RAW;
    int64_t there = run_of(words, count, i + 1, RAW, raw);
    if (there == raw)
        to->definition[walk->definitions++] = i;
    else
        walk->damaged++;
    return i + 1 + there;
}

void ss_recorder_words(const uint64_t *words, int64_t count, ss_recorder_walk *walk, const ss_recorder_columns *to) {
    for (int64_t i = 0; i < count;) {
        uint64_t value = words[i] & VALUE_BITS;
        switch (tag_of(words[i])) {
        case BEGIN:
            i = begin(words, count, i, walk, to);
            break;
        case END:
            end(value, 0, walk, to);
            i++;
            break;
        case LEVEL:
            if (i + 1 < count && tag_of(words[i + 1]) == END)
                end(words[++i] & VALUE_BITS, value, walk, to);
            else
                walk->damaged++;
            i++;
            break;
        case END_OF:
            if (i + 1 < count && tag_of(words[i + 1]) == IDENTITY) {
                to->ended[walk->endings] = value;
                to->ended_row[walk->endings] = walk->rows;
                to->ended_identity[walk->endings++] = words[++i] & VALUE_BITS;
            } else {
                walk->damaged++;
            }
            i++;
            break;
        case DEPTH:
            check_depth((int64_t)value, walk, to);
            i++;
            break;
        case MEMORY:
            if (run_of(words, count, i + 1, VALUE, VALUES_OF_MEMORY) == VALUES_OF_MEMORY) {
                to->memory[walk->memories++] = i;
                i += VALUES_OF_MEMORY;
            } else {
                walk->damaged++;
            }
            i++;
            break;
        case DEFINE:
            i = definition(words, count, i, walk, to);
            break;
        default:
            walk->damaged++;
            i++;
        }
    }
}

/* The knot before a time, or the last but one; the time before it is likely beside. */
static int64_t piece_of(uint64_t t, int64_t piece, int64_t knots, const uint64_t *at) {
    if (t >= at[piece] && (piece + 2 >= knots || t < at[piece + 1])) return piece;
    int64_t low = 0, high = knots - 2;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (at[middle] <= t)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static inline int64_t rounded_down(double x) {
    if (!(x > -MOST_NS)) return -(int64_t)MOST_NS;
    if (x >= MOST_NS) return (int64_t)MOST_NS;
    int64_t whole = (int64_t)x;
    return whole - (x < (double)whole);
}

void ss_recorder_times(int64_t count, uint64_t *ticks, int64_t knots, const uint64_t *at, const int64_t *ns) {
    int64_t piece = 0, known = -1;
    double slope = 0;
    for (int64_t i = 0; i < count; i++) {
        uint64_t t = ticks[i];
        piece = piece_of(t, piece, knots, at);
        if (piece != known) slope = (double)(ns[piece + 1] - ns[piece]) / (double)(at[piece + 1] - at[piece]);
        known = piece;
        /* Only the time since the knot passes through a float: half a second, exact to less than a nanosecond. */
        double since = t >= at[piece] ? (double)(t - at[piece]) : -(double)(at[piece] - t);
        ticks[i] = (uint64_t)(ns[piece] + rounded_down(since * slope));
    }
}
