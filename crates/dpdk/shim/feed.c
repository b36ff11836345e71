/* For tests: puts packets of any shape into a ring of `net_ring`, as a NIC's driver would deliver them. */
#include "dpdk.h"

#include <errno.h>
#include <string.h>

#include <rte_errno.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

int rsd_feed(const char *name, const uint8_t *bytes, uint32_t length, const struct rsd_shape *shape)
{
	struct rte_ring *ring = rte_ring_lookup(name);
	struct rte_mempool *pool = rte_mempool_lookup("rs_feed");
	if (ring == NULL)
		return -ENOENT;
	if (pool == NULL)
		pool = rte_pktmbuf_pool_create("rs_feed", 16383, 0, 0, RTE_MBUF_DEFAULT_BUF_SIZE, SOCKET_ID_ANY);
	if (pool == NULL)
		return -rte_errno;
	struct rte_mbuf *head = NULL, **end = &head;
	for (uint32_t at = 0; at < length || head == NULL; at += shape->segment) {
		struct rte_mbuf *segment = rte_pktmbuf_alloc(pool);
		if (segment == NULL) {
			rte_pktmbuf_free(head);
			return -ENOMEM;
		}
		segment->data_len = (uint16_t)RTE_MIN((uint32_t)shape->segment, length - at);
		memcpy(rte_pktmbuf_mtod(segment, uint8_t *), bytes + at, segment->data_len);
		*end = segment;
		end = &segment->next;
		head->nb_segs += segment == head ? 0 : 1;
	}
	head->pkt_len = length + shape->more;
	if (shape->is_tagged) {
		head->ol_flags |= RTE_MBUF_F_RX_VLAN | RTE_MBUF_F_RX_VLAN_STRIPPED;
		head->vlan_tci = shape->tci;
	}
	if (shape->more != 0 && head->nb_segs == 1)
		head->data_len = (uint16_t)head->pkt_len;
	if (rte_ring_sp_enqueue(ring, head) == 0)
		return 1;
	rte_pktmbuf_free(head);
	return 0;
}
