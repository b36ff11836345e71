/* DPDK's rte_ring without EAL: the ring is in memory of aligned_alloc().
 *
 * rte_ring_create() allocates from EAL's zones; rte_ring_init() takes a pointer. The inline functions of
 * rte_ring_elem.h then copy items of any size that is a multiple of 4.
 */
#include <stdlib.h>
#include <string.h>

#include <rte_ring.h>
#include <rte_ring_elem.h>

#include "queues.h"

/* Returns an empty ring for `capacity` items of `item_bytes`, or NULL. */
static void *ring_create(uint32_t capacity, uint32_t item_bytes, unsigned int flags)
{
	/* With RING_F_EXACT_SZ, rte_ring_init() needs a power of two above the capacity. */
	const uint32_t slots = rte_align32pow2(capacity + 1);
	const ssize_t bytes = rte_ring_get_memsize_elem(item_bytes, slots);
	if (bytes < 0)
		return NULL;
	struct rte_ring *ring = aligned_alloc(RTE_CACHE_LINE_SIZE, RTE_ALIGN_CEIL((size_t)bytes, RTE_CACHE_LINE_SIZE));
	if (ring == NULL)
		return NULL;
	/* Touches all pages, so that measurements include no page faults. */
	memset(ring, 0, (size_t)bytes);
	if (rte_ring_init(ring, "bench", capacity, flags | RING_F_EXACT_SZ) != 0) {
		free(ring);
		return NULL;
	}
	return ring;
}

/* The functions of one mode for one size. `rte_ring_enqueue_elem` would branch on the mode at each call. */
#define FUNCTIONS(MODE, FLAGS, ENQUEUE, DEQUEUE, BYTES)                                                                    \
	static void *MODE##_create_##BYTES(uint32_t capacity, uint32_t producers, uint32_t consumers)                      \
	{                                                                                                                  \
		(void)producers;                                                                                           \
		(void)consumers;                                                                                           \
		return ring_create(capacity, BYTES, FLAGS);                                                                \
	}                                                                                                                  \
	static bool MODE##_try_send_##BYTES(void *ring, uint32_t producer, const void *item)                               \
	{                                                                                                                  \
		(void)producer;                                                                                            \
		return ENQUEUE(ring, item, BYTES, 1, NULL) == 1;                                                           \
	}                                                                                                                  \
	static bool MODE##_try_receive_##BYTES(void *ring, uint32_t consumer, void *item)                                     \
	{                                                                                                                  \
		(void)consumer;                                                                                            \
		return DEQUEUE(ring, item, BYTES, 1, NULL) == 1;                                                           \
	}                                                                                                                  \
	static const struct queue_functions MODE##_functions_##BYTES = {                                                   \
		.create = MODE##_create_##BYTES,                                                                           \
		.destroy = free,                                                                                           \
		.try_send = MODE##_try_send_##BYTES,                                                                       \
		.try_receive = MODE##_try_receive_##BYTES,                                                                 \
	};

#define SP_FUNCTIONS(BYTES)                                                                                                \
	FUNCTIONS(sp, RING_F_SP_ENQ | RING_F_SC_DEQ, rte_ring_sp_enqueue_bulk_elem, rte_ring_sc_dequeue_bulk_elem, BYTES)
#define MP_FUNCTIONS(BYTES) FUNCTIONS(mp, 0, rte_ring_mp_enqueue_bulk_elem, rte_ring_mc_dequeue_bulk_elem, BYTES)
#define RTS_FUNCTIONS(BYTES)                                                                                               \
	FUNCTIONS(rts, RING_F_MP_RTS_ENQ | RING_F_MC_RTS_DEQ, rte_ring_mp_rts_enqueue_bulk_elem,                           \
		  rte_ring_mc_rts_dequeue_bulk_elem, BYTES)

FOR_EACH_ITEM_BYTES(SP_FUNCTIONS)
FOR_EACH_ITEM_BYTES(MP_FUNCTIONS)
FOR_EACH_ITEM_BYTES(RTS_FUNCTIONS)

#define SP_CASE(BYTES)                                                                                                     \
	case BYTES:                                                                                                        \
		return &sp_functions_##BYTES;
#define MP_CASE(BYTES)                                                                                                     \
	case BYTES:                                                                                                        \
		return &mp_functions_##BYTES;
#define RTS_CASE(BYTES)                                                                                                    \
	case BYTES:                                                                                                        \
		return &rts_functions_##BYTES;

const struct queue_functions *rte_ring_sp_functions(uint32_t item_bytes)
{
	switch (item_bytes) {
		FOR_EACH_ITEM_BYTES(SP_CASE)
	default:
		return NULL;
	}
}

const struct queue_functions *rte_ring_mp_functions(uint32_t item_bytes)
{
	switch (item_bytes) {
		FOR_EACH_ITEM_BYTES(MP_CASE)
	default:
		return NULL;
	}
}

const struct queue_functions *rte_ring_rts_functions(uint32_t item_bytes)
{
	switch (item_bytes) {
		FOR_EACH_ITEM_BYTES(RTS_CASE)
	default:
		return NULL;
	}
}
