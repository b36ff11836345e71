/*
 * Writes a file as FlowScope writes a dump (FlowScope paper, section IV.C): reserves its blocks with fallocate, maps it, and
 * copies packets into the mapping. If the file is full, its size doubles.
 *
 * mapped_writer FILE BYTES PACKET: writes at least BYTES bytes of pcap records with PACKET bytes each, and prints the bytes
 * and the seconds until the disk has all of them.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Initial size of the file, and size of the header of a pcap record, in bytes. */
enum { FIRST = 512 << 20, HEADER = 16 };

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: mapped_writer FILE BYTES PACKET\n");
		return 2;
	}
	const size_t bytes = strtoull(argv[2], NULL, 10), packet = strtoull(argv[3], NULL, 10);
	uint8_t *from = calloc(1, packet ? packet : 1);
	const int file = open(argv[1], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	struct timespec start, end;

	if (file < 0 || from == NULL)
		return fail(argv[1]);
	memset(from, 'x', packet);
	clock_gettime(CLOCK_MONOTONIC, &start);
	size_t size = FIRST, at = 0;
	errno = posix_fallocate(file, 0, (off_t)size);
	if (errno != 0)
		return fail("fallocate");
	uint8_t *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	while (to != MAP_FAILED && at < bytes) {
		if (at + HEADER + packet > size) {
			errno = posix_fallocate(file, (off_t)size, (off_t)size);
			if (errno != 0)
				return fail("fallocate");
			to = mremap(to, size, 2 * size, MREMAP_MAYMOVE);
			size *= 2;
			continue;
		}
		/* Seconds, microseconds, captured and original length, as in a pcap file. */
		const uint32_t header[4] = { (uint32_t)(at >> 20), (uint32_t)at, (uint32_t)packet, (uint32_t)packet };
		memcpy(to + at, header, HEADER);
		memcpy(to + at + HEADER, from, packet);
		at += HEADER + packet;
	}
	if (to == MAP_FAILED || munmap(to, size) < 0)
		return fail("mapping");
	if (ftruncate(file, (off_t)at) < 0 || fsync(file) < 0)
		return fail("writing");
	clock_gettime(CLOCK_MONOTONIC, &end);
	printf("%zu %f\n", at, (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec));
	return 0;
}
