/* Functions of dpdk.c and feed.c. Structures have the layout of the Rust structures in src/sys/. */
#ifndef RETROSCOPE_DPDK_H
#define RETROSCOPE_DPDK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_memzone;

/* A port's description by its driver. */
struct rsd_device {
	uint64_t rss_types;
	char driver[32];
	int32_t node;
	uint16_t queues_max, descriptors_min, descriptors_max, mtu_max;
	uint8_t key_bytes;
	bool can_strip, can_stamp, can_scatter;
};

/* Configuration of a port. `mtu` 0: the driver's default. */
struct rsd_setup {
	uint32_t mtu;
	uint16_t queues;
	bool strip, stamp, scatter;
};

struct rsd_counters {
	uint64_t received, missed, refused, no_buffer;
};

struct rsd_link {
	uint32_t megabits; /* 0: unknown, also while the link is down: it may come up at another speed */
	bool is_up;
};

/* Memory of a pool: mbufs up to `own_at`, then bytes that no driver uses. */
struct rsd_pool {
	struct rte_mempool *mempool;
	const struct rte_memzone *zone;
	uint8_t *memory;
	size_t own_at, bytes;
};

/* Where packets are expected: `flag` and `offset` of stamps in an mbuf (`flag` 0: no stamps), and the memory of `mempool`,
 * in which offsets count. */
struct rsd_view {
	uint64_t flag;
	const uint8_t *memory;
	struct rte_mempool *mempool;
	uint32_t bytes;
	int32_t offset;
};

/* A received packet. `offset` RSD_ELSEWHERE: it is not in one piece in the pool's memory. `bytes`: the length in its head. */
struct rsd_frame {
	uint32_t offset, bytes;
	uint16_t tci;
	bool is_tagged, is_stamped;
};
#define RSD_ELSEWHERE UINT32_MAX

/* Any thread, once per process. `arguments` must stay valid for the life of the process. */
int rsd_start(int count, char **arguments, bool keep_quiet);
/* At the end of the process. `clean_up`: no port is open and no thread uses the library. Otherwise removes only folders. */
void rsd_end(bool clean_up);
size_t rsd_take_words(char *into, size_t room);
const char *rsd_version(void);
/* After rsd_start, any thread. Registers the calling thread. */
int rsd_register_thread(void);
void rsd_unregister_thread(void);
/* After rsd_start. Calls `work` once on the environment's interrupt thread. */
int rsd_on_own_thread(void (*work)(void *), void *argument);

/* After rsd_start, one thread at a time for all ports together. */
int rsd_probe(const char *device);
int rsd_find(const char *name, uint16_t *port);
int rsd_describe(uint16_t port, struct rsd_device *device);
/* `key_bytes` 0: one queue, or queues between which the port does not spread packets. */
int rsd_configure(uint16_t port, const struct rsd_setup *setup, uint8_t *key, uint8_t key_bytes);
int rsd_rss_key(uint16_t port, uint8_t *key, uint8_t bytes);
int rsd_set_rss_key(uint16_t port, uint8_t *key, uint8_t bytes);
int rsd_set_up_queue(uint16_t port, uint16_t queue, uint16_t descriptors, int node, struct rte_mempool *pool);
int rsd_start_port(uint16_t port);
int rsd_set_promiscuous(uint16_t port);
void rsd_close(uint16_t port);
/* `packed`: buffers may cross page boundaries, because no device reads or writes them. */
int rsd_pool(const char *name, struct rsd_pool *pool, uint32_t count, uint16_t room, size_t own_bytes, int node,
	     bool packed);
/* Every mbuf must have been returned, or must not be used any more. */
void rsd_free_pool(struct rsd_pool *pool);

/* After rsd_start, any thread. */
int rsd_stamp_place(uint64_t *flag);

/* While the port is open, one thread at a time per port. */
int rsd_counters(uint16_t port, struct rsd_counters *counters);
int rsd_link(uint16_t port, struct rsd_link *link);
int rsd_clock(uint16_t port, uint64_t *ticks);

/* While the port is started, one thread at a time per queue. `mbufs` and `frames` have `room` places. Sets `plain` to whether
 * all frames are whole packets in buffers of the view's pool without other references. */
uint16_t rsd_receive(uint16_t port, uint16_t queue, const struct rsd_view *view, struct rte_mbuf **mbufs,
		     struct rsd_frame *frames, uint16_t room, bool *plain);
/* The stamp of a packet that has one. */
uint64_t rsd_stamp(const struct rsd_view *view, const struct rte_mbuf *mbuf);
/* Copies the segments' bytes, at most `room`. Returns the number of bytes. */
uint32_t rsd_gather(const struct rte_mbuf *mbuf, uint8_t *into, uint32_t room);
void rsd_free(struct rte_mbuf **mbufs, uint16_t count);
/* Frees mbufs for which rsd_receive has set `plain`, all at once. */
void rsd_free_plain(const struct rsd_view *view, struct rte_mbuf **mbufs, uint16_t count);

/* The layout of a test packet: bytes of a segment (at most 2048), and bytes that its head claims in addition. */
struct rsd_shape {
	uint32_t more;
	uint16_t segment, tci;
	bool is_tagged;
};

/* Returns 1 if the ring took the packet, 0 if it is full. One thread at a time. */
int rsd_feed(const char *ring, const uint8_t *bytes, uint32_t length, const struct rsd_shape *shape);

#endif
