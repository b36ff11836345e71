/*
 * Changes bytes of a ring file, one at a time, and reads the ring each time with retroscope_ring.h:
 * `flip RING OFFSET:LENGTH…`. Prints for each change: offset, changed bits, copied packets, and a sum
 * over the packets; or offset, changed bits and `refused`. At the end it shortens the file while the
 * ring is open, and prints the error.
 */
#include "retroscope_ring.h"

#include <inttypes.h>
#include <stdio.h>

static struct rring_step steps[RRING_STEPS_MAX];
static struct rring_copy copy;
static uint64_t packets, sum;

static void add(void)
{
	for (size_t i = 0; i < copy.count; i++) {
		struct rring_packet packet;
		rring_packet(&copy, i, &packet);
		packets++;
		sum += packet.record + (uint64_t)packet.time_ns + packet.wire_len + packet.interface +
		       packet.direction + packet.tag_restored + packet.shard + packet.captured;
		if (packet.captured > 0)
			sum += packet.data[0] + packet.data[packet.captured - 1];
	}
}

/* Reads all in every way. Returns whether the file is a ring. */
static int read_all(const char *path)
{
	struct rring ring;
	struct rring_bucket bucket;
	struct rring_interface interface;
	size_t count;
	int writer;
	if (rring_open(&ring, path) != RRING_OK)
		return 0;
	rring_writer(&ring, &writer);
	rring_steps(&ring, steps, &count);
	for (uint16_t id = 0; rring_interface(&ring, id, &interface) == RRING_OK && id < 65535;)
		id++;
	for (uint64_t id = 0; id < ring.producers; id++) {
		struct rring_cursor cursor = {.producer = id};
		/* A bucket gives its records once, so there are not more turns than buckets. */
		for (uint64_t turn = 0; rring_next(&ring, &cursor, &copy) == RRING_OK && copy.count > 0; turn++) {
			if (turn > ring.buckets)
				abort();
			add();
			rring_stamp_ns(steps, count, id, 0, cursor.position, 0);
		}
	}
	packets = sum = 0;
	for (uint64_t index = 0; index < ring.buckets; index++) {
		int error = rring_bucket(&ring, index, &bucket);
		/* Also copies a bucket that contradicts itself, but does not count its packets. */
		if (bucket.state >= RRING_OPEN && rring_copy_bucket(&ring, &bucket, 0, &copy) == RRING_OK &&
		    error == RRING_OK)
			add();
	}
	rring_close(&ring);
	return 1;
}

int main(int argc, char **argv)
{
	static const unsigned char flips[] = {0x01, 0x10, 0x20, 0xff};
	struct rring_cursor cursor = {0};
	struct rring ring;
	int fd = open(argv[1], O_RDWR), error;
	for (int argument = 2; argument < argc; argument++) {
		char *end;
		off_t offset = strtoll(argv[argument], &end, 10), stop = offset + strtoll(end + 1, NULL, 10);
		for (; offset < stop; offset++) {
			unsigned char byte, other;
			if (pread(fd, &byte, 1, offset) != 1)
				return 3;
			for (size_t i = 0; i < sizeof flips; i++) {
				other = byte ^ flips[i];
				if (pwrite(fd, &other, 1, offset) != 1)
					return 3;
				if (read_all(argv[1]))
					printf("%jd %u %" PRIu64 " %" PRIu64 "\n", (intmax_t)offset, flips[i], packets, sum);
				else
					printf("%jd %u refused\n", (intmax_t)offset, flips[i]);
			}
			if (pwrite(fd, &byte, 1, offset) != 1)
				return 3;
		}
	}
	if (rring_open(&ring, argv[1]) != RRING_OK)
		return 4;
	error = ftruncate(fd, 0) != 0 ? RRING_SYSTEM : rring_next(&ring, &cursor, &copy);
	printf("%s\n", rring_error(error));
	rring_close(&ring);
	rring_copy_free(&copy);
	return 0;
}
