/*
 * Copies all buckets of a ring again and again while its writer overwrites the buckets, as
 * `read` of role.rs does with this crate: `race RING`. Checks number, length, and first byte of
 * every packet, which follow from its stamp (pattern.rs).
 */
#include "retroscope_ring.h"

#include <inttypes.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	struct rring ring;
	struct rring_bucket bucket;
	struct rring_copy copy = {0};
	uint64_t packets = 0, overwritten = 0, open = 0;
	if (argc != 2 || rring_open(&ring, argv[1]) != RRING_OK)
		return 2;
	for (uint64_t index = 0; packets < 300000 || overwritten < 20 || open < 20; index++) {
		int error = rring_bucket(&ring, index % ring.buckets, &bucket);
		if (error == RRING_OK && (bucket.state < RRING_OPEN || bucket.packets == 0))
			continue;
		if (error == RRING_OK)
			error = rring_copy_bucket(&ring, &bucket, 0, &copy);
		overwritten += error == RRING_OVERWRITTEN;
		if (error == RRING_OVERWRITTEN)
			continue;
		if (error != RRING_OK || copy.count < bucket.packets) {
			printf("bucket %" PRIu64 ": %s\n", bucket.index, rring_error(error));
			return 1;
		}
		for (size_t i = 0; i < copy.count; i++) {
			struct rring_packet packet;
			uint64_t mixed;
			rring_packet(&copy, i, &packet);
			mixed = (uint64_t)packet.time_ns * UINT64_C(0x9e3779b97f4a7c15);
			mixed ^= mixed >> 29;
			if ((uint64_t)packet.time_ns != packet.record || packet.captured != mixed % 301 ||
			    (packet.captured > 0 && packet.data[0] != (mixed & 0xff))) {
				printf("record %" PRIu64 " is not as it was stored\n", packet.record);
				return 1;
			}
		}
		packets += copy.count;
		open += bucket.state == RRING_OPEN;
	}
	printf("checked %" PRIu64 "\n", packets);
	rring_copy_free(&copy);
	rring_close(&ring);
	return 0;
}
