/* How spans of a track lie in each other: the fast twin of stepscope/read/nesting.py, where the rules are explained. */
#include "kineto_state.h"

typedef struct {
    int64_t start, end, index;
} span;

/* Order within a track: by start, longest first, then as in the input. */
static inline bool before(const span *a, const span *b) {
    if (a->start != b->start) return a->start < b->start;
    return a->end != b->end ? a->end > b->end : a->index < b->index;
}

/* Returns the end of the run that begins at `from`. */
static int64_t run_end(const span *spans, int64_t from, int64_t count) {
    int64_t i = from + 1;
    while (i < count && before(&spans[i - 1], &spans[i])) i++;
    return i;
}

static void merge(const span *a, int64_t n, const span *b, int64_t m, span *to) {
    while (n && m) {
        bool first = before(a, b);
        *to++ = first ? *a : *b;
        a += first, n -= first;
        b += !first, m -= !first;
    }
    memcpy(to, a, (size_t)n * sizeof *a);
    memcpy(to + n, b, (size_t)m * sizeof *b);
}

/* Sorts by merging the runs that are already there: traces are written nearly in order. Returns where the result is. */
static span *sort(span *spans, span *spare, int64_t count) {
    while (run_end(spans, 0, count) < count) {
        for (int64_t i = 0; i < count;) {
            int64_t middle = run_end(spans, i, count);
            int64_t end = middle < count ? run_end(spans, middle, count) : middle;
            merge(spans + i, middle - i, spans + middle, end - middle, spare + i);
            i = end;
        }
        span *swap = spans;
        spans = spare;
        spare = swap;
    }
    return spans;
}

/* Finds the parents of one track's ordered spans, whose first place is `first`. */
static void walk(const span *spans, int64_t count, int64_t first, int64_t *parent, int32_t *depth, uint8_t *crossing) {
    int64_t top = -1; /* place within the track; the stack is the chain of parents above it */
    for (int64_t i = 0; i < count; i++) {
        const span *s = &spans[i];
        bool crosses = false;
        while (top >= 0) {
            const span *above = &spans[top];
            if (above->end >= s->end && (above->end > s->start || above->start == s->start)) break;
            crosses |= s->start < above->end && above->end < s->end;
            top = parent[first + top] < 0 ? -1 : parent[first + top] - first;
        }
        parent[first + i] = top < 0 ? -1 : first + top;
        depth[first + i] = top < 0 ? 0 : depth[first + top] + 1;
        crossing[first + i] = crosses;
        top = i;
    }
}

/* Puts the spans of each track together, tracks in order; `place[track]` ends as the place behind the track's last. */
static void by_track(int64_t count, const int32_t *track, const int64_t *ts, const int64_t *dur, int64_t *place, span *to) {
    for (int64_t i = 0; i < count; i++)
        to[place[track[i]]++] = (span){ts[i], (int64_t)((uint64_t)ts[i] + (uint64_t)dur[i]), i};
}

int ss_nest(int64_t count, const int32_t *track, const int64_t *ts, const int64_t *dur, int64_t *order, int64_t *parent,
            int32_t *depth, uint8_t *crossing) {
    int64_t tracks = 0;
    for (int64_t i = 0; i < count; i++) {
        if (track[i] < 0) return -SS_UNUSUAL;
        if (track[i] >= tracks) tracks = (int64_t)track[i] + 1;
    }
    int64_t *place = calloc((size_t)tracks + 1, sizeof *place);
    span *spans = malloc(((size_t)count + 1) * sizeof *spans), *spare = malloc(((size_t)count + 1) * sizeof *spare);
    int result = place && spans && spare ? 0 : -SS_NO_MEMORY;
    if (spans) ss_expect_use(spans, ((size_t)count + 1) * sizeof *spans);
    if (spare) ss_expect_use(spare, ((size_t)count + 1) * sizeof *spare);
    if (!result) {
        for (int64_t i = 0; i < count; i++) place[track[i] + 1]++;
        for (int64_t i = 0; i < tracks; i++) place[i + 1] += place[i];
        by_track(count, track, ts, dur, place, spans);
        for (int64_t i = 0, first = 0; i < tracks; first = place[i++]) {
            int64_t in_track = place[i] - first;
            span *sorted = sort(spans + first, spare + first, in_track);
            for (int64_t j = 0; j < in_track; j++) order[first + j] = sorted[j].index;
            walk(sorted, in_track, first, parent, depth, crossing);
        }
    }
    free(place);
    free(spans);
    free(spare);
    return result;
}

void ss_inherit(int64_t count, const int64_t *parent, const int64_t *own, int64_t *result) {
    for (int64_t i = 0; i < count; i++)
        result[i] = own[i] >= 0 || parent[i] < 0 || parent[i] >= i ? own[i] : result[parent[i]];
}
