/*
 * The minimum work of a recorder: a TPACKET_V3 ring, and one copy of every packet, with a header of 16 bytes, into a ring in
 * memory that was touched before. No filter, no index, no second thread. `make bench-capture` compares other programs with it.
 *
 * minimal_reader IFACE BYTES: captures on IFACE into BYTES of memory until SIGTERM or SIGINT, then prints the numbers
 * of copied packets and of packets that the kernel dropped.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

enum { BLOCK_BYTES = 1 << 18, BLOCKS = 512, RETIRE_MS = 4 };

static volatile sig_atomic_t stopped;

static void stop(int signal)
{
	(void)signal;
	stopped = 1;
}

static int fail(const char *what)
{
	fprintf(stderr, "minimal_reader: %s: %s\n", what, strerror(errno));
	return 1;
}

struct ring {
	uint8_t *memory;
	size_t bytes, at;
	uint64_t packets;
};

/* Copies the packets of a block. */
static void copy_block(struct ring *ring, const struct tpacket_block_desc *block)
{
	const uint8_t *packet = (const uint8_t *)block + block->hdr.bh1.offset_to_first_pkt;

	for (uint32_t left = block->hdr.bh1.num_pkts; left > 0; left--) {
		const struct tpacket3_hdr *header = (const void *)packet;
		const uint64_t time = header->tp_sec * 1000000000ull + header->tp_nsec;
		const size_t size = 16 + ((header->tp_snaplen + 15u) & ~15u);

		if (ring->at + size > ring->bytes)
			ring->at = 0;
		uint8_t *to = ring->memory + ring->at;
		memcpy(to, &time, 8);
		memcpy(to + 8, &header->tp_snaplen, 4);
		memcpy(to + 12, &header->tp_len, 4);
		memcpy(to + 16, packet + header->tp_mac, header->tp_snaplen);
		ring->at += size;
		packet += header->tp_next_offset;
	}
	ring->packets += block->hdr.bh1.num_pkts;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: minimal_reader IFACE BYTES\n");
		return 2;
	}
	struct sigaction action = { .sa_handler = stop };
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);

	struct ring ring = { .bytes = strtoull(argv[2], NULL, 10) };
	ring.memory = mmap(NULL, ring.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (ring.memory == MAP_FAILED)
		return fail("mmap");
	madvise(ring.memory, ring.bytes, MADV_HUGEPAGE);
	memset(ring.memory, 1, ring.bytes);

	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return fail("socket");
	int version = TPACKET_V3;
	if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) < 0)
		return fail("PACKET_VERSION");
	struct tpacket_req3 request = {
		.tp_block_size = BLOCK_BYTES,
		.tp_block_nr = BLOCKS,
		.tp_frame_size = 2048,
		.tp_frame_nr = BLOCK_BYTES / 2048 * BLOCKS,
		.tp_retire_blk_tov = RETIRE_MS,
	};
	if (setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &request, sizeof request) < 0)
		return fail("PACKET_RX_RING");
	uint8_t *blocks = mmap(NULL, (size_t)BLOCK_BYTES * BLOCKS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (blocks == MAP_FAILED)
		return fail("mmap of the socket");
	struct sockaddr_ll address = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)if_nametoindex(argv[1]),
	};
	if (address.sll_ifindex == 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
		return fail(argv[1]);
	fprintf(stderr, "ready\n");

	struct pollfd wait = { .fd = fd, .events = POLLIN };
	for (unsigned at = 0; !stopped;) {
		struct tpacket_block_desc *block = (void *)(blocks + (size_t)at * BLOCK_BYTES);

		if (!(__atomic_load_n(&block->hdr.bh1.block_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
			poll(&wait, 1, 100);
			continue;
		}
		copy_block(&ring, block);
		__atomic_store_n(&block->hdr.bh1.block_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
		at = (at + 1) % BLOCKS;
	}
	struct tpacket_stats_v3 counters;
	socklen_t length = sizeof counters;
	if (getsockopt(fd, SOL_PACKET, PACKET_STATISTICS, &counters, &length) < 0)
		return fail("PACKET_STATISTICS");
	printf("%llu %u\n", (unsigned long long)ring.packets, counters.tp_drops);
	return 0;
}
