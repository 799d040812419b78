/* Buffers for CUPTI's activity records: lent to CUPTI when it asks, kept when they are full, until Python takes them.
 *
 * CUPTI calls ss_cupti_requested and ss_cupti_completed from any thread, its own and the program's, while it holds a
 * lock of its own. They must never wait for Python: a thread that holds Python's lock and waits for CUPTI's would never
 * end (pytorch/pytorch#186295 had that with callbacks of ctypes). So these few lines have no twin in Python. The lock
 * here is held for some stores only, and no thread blocks while holding it.
 *
 * A buffer that is not ours (another user of CUPTI registered before us) is left alone: it is its owner's.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cupti.h"

enum state { EMPTY, FREE, LENT, FULL, TAKEN, LATE };

typedef struct {
    uint8_t *data;
    uint64_t valid, number;
    enum state state;
} slot;

static slot slots[SS_CUPTI_BUFFERS];
static atomic_flag lock = ATOMIC_FLAG_INIT;
static uint64_t buffer_size, completed, refused;

static void enter(void) {
    while (atomic_flag_test_and_set_explicit(&lock, memory_order_acquire)) {}
}

static void leave(void) { atomic_flag_clear_explicit(&lock, memory_order_release); }

static slot *first_in(enum state state) {
    for (int i = 0; i < SS_CUPTI_BUFFERS; i++)
        if (slots[i].state == state) return &slots[i];
    return NULL;
}

static slot *with_data(const uint8_t *data) {
    for (int i = 0; i < SS_CUPTI_BUFFERS; i++)
        if (slots[i].data == data && slots[i].state != EMPTY) return &slots[i];
    return NULL;
}

static void release(slot *s) {
    free(s->data);
    *s = (slot){0};
}

void ss_cupti_requested(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = NULL, *size = 0, *most = 0;
    enter();
    slot *s = buffer_size ? first_in(FREE) : NULL;
    if (!s && buffer_size && (s = first_in(EMPTY)) && !(s->data = malloc(buffer_size))) s = NULL;
    if (s) {
        s->state = LENT;
        *buffer = s->data, *size = buffer_size;
    } else {
        refused++;
    }
    leave();
}

void ss_cupti_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    enter();
    slot *s = buffer ? with_data(buffer) : NULL;
    if (s && s->state == LATE) {
        release(s);
    } else if (s && s->state == LENT) {
        s->valid = valid, s->number = completed++;
        s->state = valid ? FULL : FREE;
    }
    leave();
}

void ss_cupti_open(uint64_t size) {
    enter();
    buffer_size = size, refused = 0;
    leave();
}

void ss_cupti_close(void) {
    enter();
    buffer_size = 0;
    for (int i = 0; i < SS_CUPTI_BUFFERS; i++)
        if (slots[i].state == LENT)
            slots[i].state = LATE; /* its records belong to no later recording */
        else if (slots[i].state != EMPTY && slots[i].state != LATE)
            release(&slots[i]);
    leave();
}

uint8_t *ss_cupti_take(uint64_t *valid) {
    slot *oldest = NULL;
    enter();
    for (int i = 0; i < SS_CUPTI_BUFFERS; i++)
        if (slots[i].state == FULL && (!oldest || slots[i].number < oldest->number)) oldest = &slots[i];
    if (oldest) oldest->state = TAKEN, *valid = oldest->valid;
    leave();
    return oldest ? oldest->data : NULL;
}

void ss_cupti_give_back(const uint8_t *data) {
    enter();
    slot *s = with_data(data);
    if (s && s->state == TAKEN) s->state = FREE;
    leave();
}

int64_t ss_cupti_lent(void) {
    int64_t count = 0;
    enter();
    for (int i = 0; i < SS_CUPTI_BUFFERS; i++) count += slots[i].state == LENT;
    leave();
    return count;
}

uint64_t ss_cupti_refused(void) {
    enter();
    uint64_t count = refused;
    leave();
    return count;
}

int64_t ss_cupti_names(const uint8_t *data, uint64_t valid, const uint32_t *sizes, const uint32_t *names, uint64_t *found,
                       uint64_t room) {
    uint64_t count = 0, mask = room - 1;
    memset(found, 0, room * sizeof *found);
    for (uint64_t at = 0; at + 8 <= valid;) {
        uint32_t kind;
        memcpy(&kind, data + at, sizeof kind);
        uint32_t size = kind < SS_CUPTI_KINDS ? sizes[kind] : 0;
        if (!size || at + size > valid) break; /* damage: the reader counts it */
        uint64_t name = 0;
        if (names[kind]) memcpy(&name, data + at + names[kind], sizeof name);
        at += size;
        if (!name || 2 * count >= room) continue;
        uint64_t place = (name * UINT64_C(0x9E3779B97F4A7C15)) >> 32 & mask;
        while (found[place] && found[place] != name) place = (place + 1) & mask;
        count += !found[place];
        found[place] = name;
    }
    for (uint64_t i = 0, to = 0; i < room && to < count; i++)
        if (found[i]) found[to++] = found[i];
    return (int64_t)count;
}
