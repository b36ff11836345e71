/* Functions for the engine's use of DPDK. DPDK's data path consists of inline functions and of structures whose layout changes
 * between versions, so Rust cannot call it directly.
 *
 * Functions that can fail return a negated errno after a failure. dpdk.h and the Rust
 * declarations (src/sys/) say which thread may call a function.
 */
#define _GNU_SOURCE
#define ALLOW_EXPERIMENTAL_API

#include "dpdk.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mbuf_dyn.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memzone.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* ---- DPDK's messages ------------------------------------------------------------------------------------------------- */

/* The first bytes of DPDK's log since rsd_take_words last ran, for error messages. Any thread may log. */
static char words[512];
static size_t words_length;
static pthread_mutex_t words_lock = PTHREAD_MUTEX_INITIALIZER;

static ssize_t keep_words(void *cookie, const char *text, size_t length)
{
	(void)cookie;
	pthread_mutex_lock(&words_lock);
	const size_t room = sizeof(words) - words_length;
	const size_t kept = length < room ? length : room;
	memcpy(words + words_length, text, kept);
	words_length += kept;
	pthread_mutex_unlock(&words_lock);
	return (ssize_t)length;
}

size_t rsd_take_words(char *into, size_t room)
{
	pthread_mutex_lock(&words_lock);
	const size_t length = words_length < room ? words_length : room;
	memcpy(into, words, length);
	words_length = 0;
	pthread_mutex_unlock(&words_lock);
	return length;
}

/* ---- The environment --------------------------------------------------------------------------------------------------- */

/* Removes the folders that the environment makes and leaves behind. Without shared files they are empty from the start. Folders
 * that other processes use are not empty, and stay. */
static void remove_folders(void)
{
	char folder[PATH_MAX];
	const char *runtime = rte_eal_get_runtime_dir();
	snprintf(folder, sizeof(folder), "%s", runtime == NULL ? "" : runtime);
	char *slash = strrchr(folder, '/');
	if (slash == NULL || rmdir(folder) != 0)
		return;
	*slash = '\0';
	rmdir(folder);
}

int rsd_start(int count, char **arguments, bool keep_quiet)
{
	if (keep_quiet) {
		const cookie_io_functions_t functions = {.write = keep_words};
		FILE *stream = fopencookie(NULL, "w", functions);
		if (stream != NULL) {
			setvbuf(stream, NULL, _IOLBF, BUFSIZ);
			rte_openlog_stream(stream);
		}
		rte_log_set_global_level(RTE_LOG_ERR);
	}
	if (rte_eal_init(count, arguments) < 0)
		return -(rte_errno != 0 ? rte_errno : EINVAL);
	remove_folders();
	return 0;
}

void rsd_end(bool clean_up)
{
	if (clean_up)
		rte_eal_cleanup();
	remove_folders();
}

int rsd_register_thread(void)
{
	return rte_thread_register() == 0 ? 0 : -(rte_errno != 0 ? rte_errno : EINVAL);
}

void rsd_unregister_thread(void)
{
	rte_thread_unregister();
}

int rsd_on_own_thread(void (*work)(void *), void *argument)
{
	return rte_eal_alarm_set(1, work, argument);
}

const char *rsd_version(void)
{
	return rte_version();
}

/* ---- Devices ------------------------------------------------------------------------------------------------------------ */

int rsd_probe(const char *device)
{
	return rte_dev_probe(device);
}

int rsd_find(const char *name, uint16_t *port)
{
	return rte_eth_dev_get_port_by_name(name, port);
}

int rsd_describe(uint16_t port, struct rsd_device *device)
{
	struct rte_eth_dev_info info;
	const int status = rte_eth_dev_info_get(port, &info);
	if (status != 0)
		return status;
	memset(device, 0, sizeof(*device));
	snprintf(device->driver, sizeof(device->driver), "%s", info.driver_name == NULL ? "" : info.driver_name);
	device->rss_types = info.flow_type_rss_offloads;
	device->queues_max = info.max_rx_queues;
	device->descriptors_min = info.rx_desc_lim.nb_min;
	device->descriptors_max = info.rx_desc_lim.nb_max;
	device->mtu_max = info.max_mtu;
	device->key_bytes = info.hash_key_size;
	device->node = rte_eth_dev_socket_id(port);
	device->can_strip = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_VLAN_STRIP) != 0;
	device->can_stamp = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_TIMESTAMP) != 0;
	device->can_scatter = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
	return 0;
}

int rsd_configure(uint16_t port, const struct rsd_setup *setup, uint8_t *key, uint8_t key_bytes)
{
	struct rte_eth_conf conf;
	memset(&conf, 0, sizeof(conf));
	conf.rxmode.mtu = setup->mtu;
	conf.rxmode.offloads = (setup->strip ? RTE_ETH_RX_OFFLOAD_VLAN_STRIP : 0) |
			       (setup->stamp ? RTE_ETH_RX_OFFLOAD_TIMESTAMP : 0) |
			       (setup->scatter ? RTE_ETH_RX_OFFLOAD_SCATTER : 0);
	if (key_bytes > 0) {
		struct rte_eth_dev_info info;
		const int status = rte_eth_dev_info_get(port, &info);
		if (status != 0)
			return status;
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_key = key;
		conf.rx_adv_conf.rss_conf.rss_key_len = key_bytes;
		conf.rx_adv_conf.rss_conf.rss_hf =
			info.flow_type_rss_offloads & (RTE_ETH_RSS_IP | RTE_ETH_RSS_TCP | RTE_ETH_RSS_UDP | RTE_ETH_RSS_SCTP);
	}
	return rte_eth_dev_configure(port, setup->queues, 0, &conf);
}

int rsd_rss_key(uint16_t port, uint8_t *key, uint8_t bytes)
{
	struct rte_eth_rss_conf conf = {.rss_key = key, .rss_key_len = bytes};
	return rte_eth_dev_rss_hash_conf_get(port, &conf);
}

int rsd_set_rss_key(uint16_t port, uint8_t *key, uint8_t bytes)
{
	struct rte_eth_rss_conf conf = {0};
	int status = rte_eth_dev_rss_hash_conf_get(port, &conf);
	if (status != 0)
		return status;
	conf.rss_key = key;
	conf.rss_key_len = bytes;
	return rte_eth_dev_rss_hash_update(port, &conf);
}

int rsd_set_up_queue(uint16_t port, uint16_t queue, uint16_t descriptors, int node, struct rte_mempool *pool)
{
	uint16_t transmit = 0;
	int status = rte_eth_dev_adjust_nb_rx_tx_desc(port, &descriptors, &transmit);
	if (status != 0)
		return status;
	return rte_eth_rx_queue_setup(port, queue, descriptors, (unsigned int)node, NULL, pool);
}

int rsd_start_port(uint16_t port)
{
	return rte_eth_dev_start(port);
}

int rsd_set_promiscuous(uint16_t port)
{
	return rte_eth_promiscuous_enable(port);
}

void rsd_close(uint16_t port)
{
	struct rte_eth_dev_info info;
	struct rte_device *device = rte_eth_dev_info_get(port, &info) == 0 ? info.device : NULL;
	/* After a failure of one call, the next call is still right. */
	(void)rte_eth_dev_stop(port);
	(void)rte_eth_dev_close(port);
	if (device != NULL)
		(void)rte_dev_remove(device);
}

int rsd_counters(uint16_t port, struct rsd_counters *counters)
{
	struct rte_eth_stats stats;
	const int status = rte_eth_stats_get(port, &stats);
	if (status != 0)
		return status;
	counters->received = stats.ipackets;
	counters->missed = stats.imissed;
	counters->refused = stats.ierrors;
	counters->no_buffer = stats.rx_nombuf;
	return 0;
}

int rsd_link(uint16_t port, struct rsd_link *link)
{
	struct rte_eth_link found;
	const int status = rte_eth_link_get_nowait(port, &found);
	if (status != 0)
		return status;
	link->is_up = found.link_status == RTE_ETH_LINK_UP;
	link->megabits = link->is_up && found.link_speed != RTE_ETH_SPEED_NUM_UNKNOWN ? found.link_speed : 0;
	return 0;
}

int rsd_clock(uint16_t port, uint64_t *ticks)
{
	return rte_eth_read_clock(port, ticks);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------------- */

/* Bytes for `count` buffers. Unless `packed`, DPDK lets no buffer that fits a page cross a page boundary. */
static size_t pool_bytes(uint32_t object, uint32_t count, bool packed)
{
	const size_t page = rte_eal_has_hugepages() ? (size_t)1 << 21 : (size_t)sysconf(_SC_PAGESIZE);
	const size_t each = rte_mempool_calc_obj_size(object, 0, NULL);
	if (packed)
		return RTE_ALIGN_CEIL(each * count, page) + page;
	const size_t in_page = page / each;
	const size_t pages = in_page == 0 ? RTE_ALIGN_CEIL(each, page) / page * count : (count + in_page - 1) / in_page;
	/* One page more, because the memory may not start at a page boundary. */
	return (pages + 1) * page;
}

/* A page of 4 KiB has room for one buffer of 2 KiB and its head. With a buffer per page, the same line of every buffer falls
 * into the same few sets of the first-level cache. Packed buffers avoid this. */
int rsd_pool(const char *name, struct rsd_pool *pool, uint32_t count, uint16_t room, size_t own_bytes, int node,
	     bool packed)
{
	const unsigned int flags = packed ? RTE_MEMPOOL_F_NO_IOVA_CONTIG : 0;
	const uint32_t object = (uint32_t)sizeof(struct rte_mbuf) + room;
	const size_t bytes = pool_bytes(object, count, packed);
	const struct rte_memzone *zone =
		rte_memzone_reserve_aligned(name, bytes + own_bytes, node, 0, (unsigned int)sysconf(_SC_PAGESIZE));
	if (zone == NULL)
		return -(rte_errno != 0 ? rte_errno : ENOMEM);
	struct rte_mempool *mempool = rte_mempool_create_empty(name, count, object, RTE_MIN(256u, count / 4),
							       sizeof(struct rte_pktmbuf_pool_private), node, flags);
	int status = mempool == NULL ? -(rte_errno != 0 ? rte_errno : ENOMEM) : 0;
	if (status == 0)
		status = rte_mempool_set_ops_byname(mempool, rte_mbuf_best_mempool_ops(), NULL);
	if (status == 0) {
		struct rte_pktmbuf_pool_private private_area = {.mbuf_data_room_size = room};
		rte_pktmbuf_pool_init(mempool, &private_area);
		status = rte_mempool_populate_virt(mempool, zone->addr, bytes, zone->hugepage_sz, NULL, NULL);
	}
	if (status < 0 || mempool->populated_size < count) {
		rte_mempool_free(mempool);
		rte_memzone_free(zone);
		return status < 0 ? status : -ENOMEM;
	}
	rte_mempool_obj_iter(mempool, rte_pktmbuf_init, NULL);
	pool->mempool = mempool;
	pool->zone = zone;
	pool->memory = zone->addr;
	pool->own_at = bytes;
	pool->bytes = bytes + own_bytes;
	return 0;
}

void rsd_free_pool(struct rsd_pool *pool)
{
	rte_mempool_free(pool->mempool);
	rte_memzone_free(pool->zone);
}

/* ---- Packets ------------------------------------------------------------------------------------------------------------ */

int rsd_stamp_place(uint64_t *flag)
{
	const int offset = rte_mbuf_dynfield_lookup(RTE_MBUF_DYNFIELD_TIMESTAMP_NAME, NULL);
	const int bit = rte_mbuf_dynflag_lookup(RTE_MBUF_DYNFLAG_RX_TIMESTAMP_NAME, NULL);
	if (offset < 0 || bit < 0)
		return -ENOENT;
	*flag = RTE_BIT64(bit);
	return offset;
}

/* Whether a segment's bytes are inside its buffer. A driver that shares memory with a device may report a wrong length. */
static bool is_sound(const struct rte_mbuf *segment)
{
	return (uint32_t)segment->data_off + segment->data_len <= segment->buf_len;
}

static inline void describe(const struct rte_mbuf *mbuf, const struct rsd_view *view, struct rsd_frame *frame)
{
	const uint64_t flags = mbuf->ol_flags;
	/* For an address below the memory, the unsigned difference is huge. */
	const uintptr_t offset = (uintptr_t)rte_pktmbuf_mtod(mbuf, const uint8_t *) - (uintptr_t)view->memory;
	const bool is_here = offset < view->bytes && mbuf->pkt_len <= view->bytes - offset &&
			     mbuf->data_len == mbuf->pkt_len && is_sound(mbuf);
	frame->offset = is_here ? (uint32_t)offset : RSD_ELSEWHERE;
	frame->bytes = mbuf->pkt_len;
	frame->tci = mbuf->vlan_tci;
	frame->is_tagged = (flags & RTE_MBUF_F_RX_VLAN_STRIPPED) != 0;
	frame->is_stamped = (flags & view->flag) != 0;
}

/* Whether a buffer can return to its pool unchanged, without the work of rte_pktmbuf_prefree_seg(). */
static inline bool is_plain(const struct rte_mbuf *mbuf, const struct rte_mempool *mempool)
{
	return mbuf->pool == mempool && mbuf->next == NULL && mbuf->nb_segs == 1 && rte_mbuf_refcnt_read(mbuf) == 1 &&
	       RTE_MBUF_DIRECT(mbuf);
}

uint16_t rsd_receive(uint16_t port, uint16_t queue, const struct rsd_view *view, struct rte_mbuf **mbufs,
		     struct rsd_frame *frames, uint16_t room, bool *plain)
{
	const uint16_t count = rte_eth_rx_burst(port, queue, mbufs, room);
	const struct rsd_view here = *view;
	bool all_plain = true;
	for (uint16_t i = 0; i < count; i++) {
		describe(mbufs[i], &here, &frames[i]);
		all_plain &= frames[i].offset != RSD_ELSEWHERE && is_plain(mbufs[i], here.mempool);
	}
	*plain = all_plain;
	return count;
}

uint64_t rsd_stamp(const struct rsd_view *view, const struct rte_mbuf *mbuf)
{
	return *RTE_MBUF_DYNFIELD(mbuf, view->offset, const uint64_t *);
}

uint32_t rsd_gather(const struct rte_mbuf *mbuf, uint8_t *into, uint32_t room)
{
	uint32_t copied = 0;
	for (const struct rte_mbuf *segment = mbuf; segment != NULL && copied < room; segment = segment->next) {
		if (!is_sound(segment))
			break;
		const uint32_t bytes = RTE_MIN((uint32_t)segment->data_len, room - copied);
		memcpy(into + copied, rte_pktmbuf_mtod(segment, const uint8_t *), bytes);
		copied += bytes;
	}
	return copied;
}

void rsd_free(struct rte_mbuf **mbufs, uint16_t count)
{
	rte_pktmbuf_free_bulk(mbufs, count);
}

void rsd_free_plain(const struct rsd_view *view, struct rte_mbuf **mbufs, uint16_t count)
{
	rte_mempool_put_bulk(view->mempool, (void *const *)mbufs, count);
}
