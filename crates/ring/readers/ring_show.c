/*
 * ring_show - prints the packets of a ring, one a line, with retroscope_ring.h.
 *
 *     cc -O2 -o ring_show ring_show.c
 *     ./ring_show [--follow] RING
 *
 * A line has: number of the producer, number of the record, stamp in ns since the UNIX epoch, bytes
 * on the wire, interface, direction, whether a VLAN tag was restored, shard, captured bytes in
 * hexadecimal digits. With --follow the program ends when the writer of the ring ends.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include "retroscope_ring.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>

static struct rring_step steps[RRING_STEPS_MAX];

static int show(const struct rring *ring, const struct rring_copy *copy)
{
	size_t count;
	int error = rring_steps(ring, steps, &count);
	for (size_t i = 0; error == RRING_OK && i < copy->count; i++) {
		struct rring_packet packet;
		struct rring_interface interface = {0};
		int64_t stamp_ns;
		rring_packet(copy, i, &packet);
		/* A packet of an interface that is not in the table has clock 0. */
		if (count > 0)
			(void)rring_interface(ring, packet.interface, &interface);
		stamp_ns = rring_stamp_ns(steps, count, copy->bucket.producer, interface.clock,
					  packet.record, packet.time_ns);
		printf("%" PRIu64 " %" PRIu64 " %" PRId64 " %" PRIu32 " %u %u %u %u ",
		       copy->bucket.producer, packet.record, stamp_ns, packet.wire_len, packet.interface,
		       packet.direction, packet.tag_restored, packet.shard);
		for (size_t byte = 0; byte < packet.captured; byte++) {
			putchar("0123456789abcdef"[packet.data[byte] >> 4]);
			putchar("0123456789abcdef"[packet.data[byte] & 15]);
		}
		putchar('\n');
	}
	return error;
}

int main(int argc, char **argv)
{
	static const char *const writers[] = {"is running", "ended", "was killed"};
	int follow = argc == 3 && strcmp(argv[1], "--follow") == 0;
	struct rring ring;
	struct rring_copy copy = {0};
	struct rring_cursor *cursors = NULL;
	uint64_t packets = 0, missed = 0, damaged = 0, news = 1;
	int writer = RRING_RUNNING, error;
	if (argc != 2 + follow) {
		fprintf(stderr, "usage: ring_show [--follow] RING\n");
		return 2;
	}
	error = rring_open(&ring, argv[argc - 1]);
	if (error == RRING_OK) {
		cursors = (struct rring_cursor *)calloc(ring.producers, sizeof *cursors);
		error = cursors == NULL ? RRING_MEMORY : RRING_OK;
	}
	for (int ended = 0; error == RRING_OK && (news > 0 || (follow && !ended));) {
		/* Asked before the packets are read, so that no packet of an ended writer is left. */
		error = rring_writer(&ring, &writer);
		ended = writer != RRING_RUNNING;
		news = 0;
		for (uint64_t id = 0; error == RRING_OK && id < ring.producers; id++) {
			cursors[id].producer = id;
			error = rring_next(&ring, &cursors[id], &copy);
			if (error == RRING_OK)
				error = show(&ring, &copy);
			news += copy.count;
		}
		packets += news;
		fflush(stdout);
		if (follow && !ended && news == 0)
			nanosleep(&(struct timespec){0, 10000000}, NULL);
	}
	for (uint64_t id = 0; cursors != NULL && id < ring.producers; id++) {
		missed += cursors[id].missed;
		damaged += cursors[id].damaged;
	}
	if (error != RRING_OK)
		fprintf(stderr, "ring_show: %s: %s%s%s\n", argv[argc - 1], rring_error(error),
			error == RRING_SYSTEM ? ": " : "", error == RRING_SYSTEM ? strerror(errno) : "");
	else
		fprintf(stderr, "%" PRIu64 " packets, %" PRIu64 " missed, %" PRIu64 " damaged; the writer %s\n",
			packets, missed, damaged, writers[writer]);
	free(cursors);
	rring_copy_free(&copy);
	if (ring.base != NULL)
		rring_close(&ring);
	return error == RRING_OK ? 0 : 1;
}
