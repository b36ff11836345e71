/* The functions of dpdk.c. Structures are laid out as their twins in src/dpdk/sys/mod.rs. */
#ifndef RETROSCOPE_DPDK_H
#define RETROSCOPE_DPDK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_memzone;

/* A port as its driver describes it. */
struct rsd_device {
	uint64_t rss_types;
	char driver[32];
	int32_t node;
	uint16_t queues_max, descriptors_min, descriptors_max, mtu_max;
	uint8_t key_bytes;
	bool can_strip, can_stamp, can_scatter;
};

/* How a port is to be configured. `mtu` 0: as the driver has it. */
struct rsd_setup {
	uint32_t mtu;
	uint16_t queues;
	bool strip, stamp, scatter;
};

struct rsd_counters {
	uint64_t received, missed, refused, no_buffer;
};

struct rsd_link {
	uint32_t megabits; /* 0: unknown, as of a link that is down: it may come up at another speed */
	bool is_up;
};

/* Memory of a pool: mbufs up to `own_at`, then bytes that no driver knows. */
struct rsd_pool {
	struct rte_mempool *mempool;
	const struct rte_memzone *zone;
	uint8_t *memory;
	size_t own_at, bytes;
};

/* Where packets are looked for: stamps in an mbuf (`flag` 0: nowhere), and the memory that offsets count in, which is that of
 * `mempool`. */
struct rsd_view {
	uint64_t flag;
	const uint8_t *memory;
	struct rte_mempool *mempool;
	uint32_t bytes;
	int32_t offset;
};

/* A received packet. `offset` RSD_ELSEWHERE: it does not lie in that memory in one piece. `bytes` is what its head says. */
struct rsd_frame {
	uint32_t offset, bytes;
	uint16_t tci;
	bool is_tagged, is_stamped;
};
#define RSD_ELSEWHERE UINT32_MAX

/* Any thread; `arguments` stay valid for the life of the process. Once in a process. */
int rsd_start(int count, char **arguments, bool keep_quiet);
/* At the end of the process. `clean_up`: no port is open and no thread uses the library; else only folders are removed. */
void rsd_end(bool clean_up);
size_t rsd_take_words(char *into, size_t room);
const char *rsd_version(void);
/* After rsd_start, any thread, for itself. */
int rsd_register_thread(void);
void rsd_unregister_thread(void);
/* After rsd_start: calls `work` once on the thread of the environment that waits for interrupts. */
int rsd_on_own_thread(void (*work)(void *), void *argument);

/* After rsd_start, one thread at a time for all ports. */
int rsd_probe(const char *device);
int rsd_find(const char *name, uint16_t *port);
int rsd_describe(uint16_t port, struct rsd_device *device);
/* `key_bytes` 0: one queue, or queues that nobody spreads over. */
int rsd_configure(uint16_t port, const struct rsd_setup *setup, uint8_t *key, uint8_t key_bytes);
int rsd_rss_key(uint16_t port, uint8_t *key, uint8_t bytes);
int rsd_set_rss_key(uint16_t port, uint8_t *key, uint8_t bytes);
int rsd_set_up_queue(uint16_t port, uint16_t queue, uint16_t descriptors, int node, struct rte_mempool *pool);
int rsd_start_port(uint16_t port);
int rsd_set_promiscuous(uint16_t port);
void rsd_close(uint16_t port);
/* `packed`: buffers may lie across the end of a page, because no device reads or writes them. */
int rsd_pool(const char *name, struct rsd_pool *pool, uint32_t count, uint16_t room, size_t own_bytes, int node,
	     bool packed);
/* When every mbuf is back, or nothing will touch those that are not. */
void rsd_free_pool(struct rsd_pool *pool);

/* After rsd_start, any thread. */
int rsd_stamp_place(uint64_t *flag);

/* While the port is open, one thread at a time for a port. */
int rsd_counters(uint16_t port, struct rsd_counters *counters);
int rsd_link(uint16_t port, struct rsd_link *link);
int rsd_clock(uint16_t port, uint64_t *ticks);

/* While the port is started, one thread at a time for a queue. `mbufs` and `frames` have `room` places. `plain`: whether all of them
 * are whole packets in buffers of the view's pool that nobody else refers to. */
uint16_t rsd_receive(uint16_t port, uint16_t queue, const struct rsd_view *view, struct rte_mbuf **mbufs,
		     struct rsd_frame *frames, uint16_t room, bool *plain);
/* The stamp of a packet that has one. */
uint64_t rsd_stamp(const struct rsd_view *view, const struct rte_mbuf *mbuf);
/* Copies at most `room` bytes of all segments. */
uint32_t rsd_gather(const struct rte_mbuf *mbuf, uint8_t *into, uint32_t room);
void rsd_free(struct rte_mbuf **mbufs, uint16_t count);
/* Frees what rsd_receive called plain, in one go. */
void rsd_free_plain(const struct rsd_view *view, struct rte_mbuf **mbufs, uint16_t count);

/* How a packet for a test is made: bytes of a segment (at most 2048), bytes that its head claims beyond them. */
struct rsd_shape {
	uint32_t more;
	uint16_t segment, tci;
	bool is_tagged;
};

/* 1: it was taken; 0: the ring is full. One thread at a time. */
int rsd_feed(const char *ring, const uint8_t *bytes, uint32_t length, const struct rsd_shape *shape);

#endif
