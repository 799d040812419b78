/* Buffers for CUPTI's activity records, see cupti.c. One set for the process, as CUPTI's callbacks are. */
#ifndef STEPSCOPE_CUPTI_H
#define STEPSCOPE_CUPTI_H

#include "kineto.h"

/* Buffers that exist at most; CUPTI drops records, and counts them, when all wait to be written. */
enum { SS_CUPTI_BUFFERS = 128, SS_CUPTI_KINDS = 64 };

/* The two callbacks, for cuptiActivityRegisterCallbacks. */
SS_EXPORT void ss_cupti_requested(uint8_t **buffer, size_t *size, size_t *most);
SS_EXPORT void ss_cupti_completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* Lend buffers of `size` bytes from now on; none any more. Buffers that CUPTI still has are freed when it completes them. */
SS_EXPORT void ss_cupti_open(uint64_t size);
SS_EXPORT void ss_cupti_close(void);

/* Take the buffer that was completed first, NULL if there is none; it is given back after use. */
SS_EXPORT uint8_t *ss_cupti_take(uint64_t *valid);
SS_EXPORT void ss_cupti_give_back(const uint8_t *data);

/* Buffers that CUPTI has; requests that found none since ss_cupti_open. */
SS_EXPORT int64_t ss_cupti_lent(void);
SS_EXPORT uint64_t ss_cupti_refused(void);

/* Find the distinct pointers to names in a buffer of records.
 * sizes: bytes of a record by kind, 0 if unknown. names: offset of the pointer by kind, 0 if it has none.
 * found: `room` slots, a power of two; the first ones get the pointers. At most half of it is filled.
 * Returns how many. */
SS_EXPORT int64_t ss_cupti_names(const uint8_t *data, uint64_t valid, const uint32_t *sizes, const uint32_t *names,
                                 uint64_t *found, uint64_t room);

#endif
