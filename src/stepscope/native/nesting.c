/* How the spans of a track nest: the fast twin of stepscope/read/common/nesting.py, where the rules are explained. */
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

/* Finds the parents of one track's ordered spans, whose first index is `first`. */
static void walk(const span *spans, int64_t count, int64_t first, int64_t *parent, int32_t *depth, uint8_t *crossing) {
    int64_t top = -1; /* index within the track; the stack is the chain of parents above it */
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

/* Groups the indices of each track's spans together, tracks in order; `place[track]` ends as the index behind the track's
 * last. Returns the most spans of a track. */
static int64_t by_track(int64_t count, int64_t tracks, const int32_t *track, int64_t *place, int64_t *order) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) place[track[i] + 1]++;
    for (int64_t i = 0; i < tracks; i++) {
        if (place[i + 1] > most) most = place[i + 1];
        place[i + 1] += place[i];
    }
    for (int64_t i = 0; i < count; i++) order[place[track[i]]++] = i;
    return most;
}

int ss_nest(int64_t count, const int32_t *track, const int64_t *ts, const int64_t *dur, int64_t *order, int64_t *parent,
            int32_t *depth, uint8_t *crossing) {
    int64_t tracks = 0;
    for (int64_t i = 0; i < count; i++) {
        if (track[i] < 0) return -SS_UNUSUAL;
        if (track[i] >= tracks) tracks = (int64_t)track[i] + 1;
    }
    int64_t *place = calloc((size_t)tracks + 1, sizeof *place);
    if (!place) return -SS_NO_MEMORY;
    /* One track at a time is in memory twice; what is in order already leaves the second untouched. */
    size_t room = ((size_t)by_track(count, tracks, track, place, order) + 1) * sizeof(span);
    span *spans = malloc(room), *spare = malloc(room);
    int result = spans && spare ? 0 : -SS_NO_MEMORY;
    if (spans) ss_expect_use(spans, room);
    for (int64_t i = 0, first = 0; !result && i < tracks; first = place[i++]) {
        int64_t in_track = place[i] - first;
        for (int64_t j = 0; j < in_track; j++) {
            int64_t at = order[first + j];
            spans[j] = (span){ts[at], (int64_t)((uint64_t)ts[at] + (uint64_t)dur[at]), at};
        }
        span *sorted = sort(spans, spare, in_track);
        for (int64_t j = 0; j < in_track; j++) order[first + j] = sorted[j].index;
        walk(sorted, in_track, first, parent, depth, crossing);
    }
    free(place);
    free(spans);
    free(spare);
    return result;
}

void ss_nearest(int64_t count, const int64_t *parent, const uint8_t *chosen, int64_t *result) {
    for (int64_t i = 0; i < count; i++)
        result[i] = chosen[i] ? i : parent[i] < 0 || parent[i] >= i ? -1 : result[parent[i]];
}

void ss_inherit(int64_t count, const int64_t *parent, const int8_t *own, int8_t *result) {
    for (int64_t i = 0; i < count; i++)
        result[i] = own[i] >= 0 || parent[i] < 0 || parent[i] >= i ? own[i] : result[parent[i]];
}
