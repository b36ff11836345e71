/* Queues that come as C or C++ headers, behind one table of functions for each queue and size of item.
 *
 * The Rust side is bench/src/peers/native.rs; what is declared here is declared there again, field by field.
 *
 * Items are plain bytes of a size that is known when this is compiled, aligned to 8. An item that was sent belongs to the
 * queue until it is received; destroying a queue forgets the items in it.
 *
 * Threads: create and destroy from one; each producer and each consumer, by its number, from one thread at a time.
 */
#ifndef RETROSCOPE_BENCH_QUEUES_H
#define RETROSCOPE_BENCH_QUEUES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct queue_functions {
	/* An empty queue for `capacity` items (1 ... 2^30), or NULL: no memory. */
	void *(*create)(uint32_t capacity, uint32_t producers, uint32_t consumers);
	/* Nobody uses it any more. */
	void (*destroy)(void *queue);
	/* Copies one item in; false: the queue is full, nothing was copied. `producer` is the number of the thread's end, from 0. */
	bool (*try_send)(void *queue, uint32_t producer, const void *item);
	/* Copies one item out; false: the queue is empty, nothing was written. */
	bool (*try_receive)(void *queue, uint32_t consumer, void *item);
};

/* Sizes of items: a pointer or token. */
#define FOR_EACH_ITEM_BYTES(F) F(8)

/* The functions of a queue for items of that many bytes, or NULL: not one of the sizes above. Valid for ever. */
const struct queue_functions *readerwriterqueue_functions(uint32_t item_bytes);
const struct queue_functions *concurrentqueue_functions(uint32_t item_bytes);
/* One producer and one consumer. */
const struct queue_functions *rte_ring_sp_functions(uint32_t item_bytes);
/* Any number of each, DPDK's default: a thread that was preempted between its two steps holds up the others. */
const struct queue_functions *rte_ring_mp_functions(uint32_t item_bytes);
/* Any number of each, "relaxed tail synchronisation": the last thread to finish moves the tail for all. */
const struct queue_functions *rte_ring_rts_functions(uint32_t item_bytes);
/* Boost's queues: one producer and one consumer, and any number of each. */
const struct queue_functions *boost_spsc_functions(uint32_t item_bytes);
const struct queue_functions *boost_mpmc_functions(uint32_t item_bytes);
/* TBB's queue for any number of each. */
const struct queue_functions *tbb_bounded_functions(uint32_t item_bytes);
/* folly's queues, where they were compiled: one producer and one consumer, and any number of each. */
const struct queue_functions *folly_pcq_functions(uint32_t item_bytes);
const struct queue_functions *folly_mpmc_functions(uint32_t item_bytes);

#ifdef __cplusplus
}
#endif

#endif
