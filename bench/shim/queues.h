/* Tables of functions for queues in C and C++ headers, one table for each queue and item size.
 *
 * bench/src/peers/native.rs repeats these declarations, field by field.
 *
 * Items are plain bytes, aligned to 8, of a size that is known at compile time. Destroying a queue discards its items.
 *
 * Threads: one thread creates and destroys. Only one thread at a time may use the number of a producer or consumer.
 */
#ifndef RETROSCOPE_BENCH_QUEUES_H
#define RETROSCOPE_BENCH_QUEUES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct queue_functions {
	/* Returns an empty queue for `capacity` items (1 ... 2^30), or NULL without memory. */
	void *(*create)(uint32_t capacity, uint32_t producers, uint32_t consumers);
	/* No thread may use the queue any more. */
	void (*destroy)(void *queue);
	/* Copies one item in; false: the queue is full, nothing was copied. `producer` is the producer's number, from 0. */
	bool (*try_send)(void *queue, uint32_t producer, const void *item);
	/* Copies one item out; false: the queue is empty, nothing was written. */
	bool (*try_receive)(void *queue, uint32_t consumer, void *item);
};

/* Item sizes: a pointer or token. */
#define FOR_EACH_ITEM_BYTES(F) F(8)

/* Functions of a queue for items of `item_bytes`, or NULL for another size than those above. Valid for ever. */
const struct queue_functions *readerwriterqueue_functions(uint32_t item_bytes);
const struct queue_functions *concurrentqueue_functions(uint32_t item_bytes);
/* SPSC: one producer and one consumer. */
const struct queue_functions *rte_ring_sp_functions(uint32_t item_bytes);
/* MPMC: any number of producers and consumers, DPDK's default. A thread that is preempted between its two steps delays the other threads. */
const struct queue_functions *rte_ring_mp_functions(uint32_t item_bytes);
/* MPMC with "relaxed tail synchronisation": the last thread to finish moves the tail for all. */
const struct queue_functions *rte_ring_rts_functions(uint32_t item_bytes);
/* Boost's queues: SPSC and MPMC. */
const struct queue_functions *boost_spsc_functions(uint32_t item_bytes);
const struct queue_functions *boost_mpmc_functions(uint32_t item_bytes);
/* TBB's queue: MPMC. */
const struct queue_functions *tbb_bounded_functions(uint32_t item_bytes);
/* folly's queues, if they are compiled: SPSC and MPMC. */
const struct queue_functions *folly_pcq_functions(uint32_t item_bytes);
const struct queue_functions *folly_mpmc_functions(uint32_t item_bytes);

#ifdef __cplusplus
}
#endif

#endif
