/*
 * Changes bytes of a ring file, one at a time, and reads the ring each time with
 * retroscope_ring.h. Whatever the bytes are, the reader must not crash: `flip RING OFFSET:LENGTH…`.
 * At the end it shortens the file while the ring is open.
 */
#include "retroscope_ring.h"

#include <inttypes.h>
#include <stdio.h>

static struct rring_step steps[RRING_STEPS_MAX];

/* Reads everything. Returns the number of packets, or -1 if the file is refused. */
static int64_t read_all(const char *path, struct rring_copy *copy)
{
	struct rring ring;
	struct rring_bucket bucket;
	struct rring_interface interface;
	int64_t packets = 0;
	size_t count;
	int writer;
	if (rring_open(&ring, path) != RRING_OK)
		return -1;
	rring_writer(&ring, &writer);
	rring_steps(&ring, steps, &count);
	for (uint32_t id = 0; rring_interface(&ring, (uint16_t)id, &interface) == RRING_OK && id < 65535; id++)
		packets += strlen(interface.name) > RRING_NAME_MAX;
	for (uint64_t index = 0; index <= ring.buckets; index++)
		rring_bucket(&ring, index, &bucket);
	for (uint64_t id = 0; id < ring.producers; id++) {
		struct rring_cursor cursor = {.producer = id};
		/* A bucket gives its records once, so there are not more turns than buckets. */
		for (uint64_t turn = 0; rring_next(&ring, &cursor, copy) == RRING_OK && copy->count > 0; turn++) {
			unsigned sum = 0;
			if (turn > ring.buckets)
				abort();
			for (size_t i = 0; i < copy->count; i++) {
				struct rring_packet packet;
				rring_packet(copy, i, &packet);
				for (size_t byte = 0; byte < packet.captured; byte++)
					sum += packet.data[byte];
				packets++;
			}
			rring_stamp_ns(steps, count, id, (uint16_t)sum, cursor.position, sum);
		}
	}
	rring_close(&ring);
	return packets;
}

int main(int argc, char **argv)
{
	static const unsigned char flips[] = {0x01, 0xff};
	struct rring_copy copy = {0};
	struct rring_cursor cursor = {0};
	struct rring ring;
	int64_t good = read_all(argv[1], &copy), refused = 0, taken = 0;
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
				if (read_all(argv[1], &copy) < 0)
					refused++;
				else
					taken++;
			}
			if (pwrite(fd, &byte, 1, offset) != 1)
				return 3;
		}
	}
	if (read_all(argv[1], &copy) != good || rring_open(&ring, argv[1]) != RRING_OK)
		return 4;
	error = ftruncate(fd, 0) != 0 ? RRING_SYSTEM : rring_next(&ring, &cursor, &copy);
	printf("%" PRId64 " %" PRId64 " %" PRId64 " %s\n", good, refused, taken, rring_error(error));
	rring_close(&ring);
	rring_copy_free(&copy);
	return 0;
}
