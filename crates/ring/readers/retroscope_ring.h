/*
 * retroscope_ring.h - reads the packets of a ring that another process writes, or has written.
 *
 * This header is the whole reader. It needs 64-bit Linux, and GCC or Clang with -std=gnu11 or
 * newer (C++ works too). It maps the ring read-only, so the writer never waits for it. The writer
 * may overwrite a bucket while the reader copies the bucket. The reader notices this, drops the
 * copy, and counts the records that it missed.
 *
 *     struct rring ring;
 *     struct rring_cursor cursor = {0};                  // of producer 0
 *     struct rring_copy copy = {0};
 *     struct rring_packet packet;
 *     int error = rring_open(&ring, "/dev/shm/ring");
 *     if (error == RRING_OK) {
 *         while ((error = rring_next(&ring, &cursor, &copy)) == RRING_OK && copy.count > 0)
 *             for (size_t i = 0; i < copy.count; i++) {
 *                 rring_packet(&copy, i, &packet);
 *                 use(packet.data, packet.captured);
 *             }
 *         rring_copy_free(&copy);
 *         rring_close(&ring);
 *     }
 *     if (error != RRING_OK) puts(rring_error(error));
 *
 * All contents of the file are foreign input. Every offset is checked against the length of the
 * file before it is used. One danger remains: if the owner of a named file shortens the file
 * between the check of its length and the next load, SIGBUS ends the process. Retroscope never
 * shortens the file of a ring, and seals a memfd against shortening.
 *
 * Several threads may use one ring. Each thread needs its own cursor and copy.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef RETROSCOPE_RING_H
#define RETROSCOPE_RING_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if UINTPTR_MAX < UINT64_MAX
#error "a ring needs 64-bit addresses"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The layout that this header reads (`VERSION` of src/storage/layout.rs). */
#define RRING_LAYOUT 4
#define RRING_STEPS_MAX 1024
/* Maximum bytes of an interface's name, without the final 0. */
#define RRING_NAME_MAX 54

enum {
	RRING_OK,
	RRING_SYSTEM,      /* a system call failed: errno has the reason */
	RRING_NOT_A_RING,  /* not a regular file, or without the magic of a ring */
	RRING_BYTE_ORDER,  /* written by a machine of the other byte order */
	RRING_VERSION,     /* another layout than RRING_LAYOUT */
	RRING_NOT_READY,   /* the writer still fills the memory, or ended meanwhile */
	RRING_TRUNCATED,   /* the file is shorter than a header, or than its header says */
	RRING_HEADER,      /* the header contradicts itself */
	RRING_OVERWRITTEN, /* the writer claimed the bucket for new records: normal operation */
	RRING_DAMAGED,     /* the bucket contradicts itself, although nobody wrote meanwhile */
	RRING_SHRUNK,      /* the file became shorter after it was opened */
	RRING_MEMORY,      /* no memory for the copy */
	RRING_NOTHING      /* no such bucket, producer or interface */
};

enum { RRING_FREE, RRING_CLAIMED, RRING_OPEN, RRING_CLOSED };
enum { RRING_RUNNING, RRING_ENDED, RRING_KILLED };

/* An open ring. Read-only for the user of this header. */
struct rring {
	int fd;
	int sealed; /* the kernel prevents shortening */
	const unsigned char *base;
	size_t length;
	uint64_t producers, buckets, bucket_bytes, interfaces_max;
	size_t bucket_headers, steps, interfaces, first_bucket; /* offsets, bytes */
	uint64_t process;                                       /* of the writer, in its PID namespace */
	int64_t created_ns;                                     /* since the UNIX epoch; 0 unknown */
};

/* A snapshot of one bucket. Only `index`, `generation` and `state` have a meaning if the state is
 * free or claimed. */
struct rring_bucket {
	uint64_t index, generation;
	int state;
	uint64_t producer;
	uint64_t first;   /* number of the first record, counted per producer */
	uint64_t packets; /* records that can be copied */
	int64_t base_ns;
};

/* Copied records of one bucket. Starts as {0}, and can be used again for the next bucket. */
struct rring_copy {
	struct rring_bucket bucket;
	uint64_t first; /* number of the first copied record */
	size_t count;
	/* The descriptors, the last one first, and then the payload. */
	unsigned char *bytes;
	size_t capacity;
	uint64_t begin;        /* offset of the payload in the bucket */
	size_t payload_length; /* bytes */
};

struct rring_packet {
	uint64_t record;  /* number, counted per producer */
	int64_t time_ns;  /* ring time; rring_stamp_ns() makes the stamp of it */
	uint32_t wire_len;
	uint16_t interface;
	uint8_t direction; /* 0 unknown, 1 inbound, 2 outbound */
	uint8_t tag_restored;
	uint8_t shard;
	size_t captured;
	const unsigned char *data; /* until the copy is used again or freed */
};

/* The place of a reader in the records of one producer. Starts with the number of the producer, and
 * 0 in all other fields: from the oldest record on. `missed` does not count records that
 * were overwritten before the cursor's first bucket. */
struct rring_cursor {
	uint64_t producer;
	uint64_t position; /* number of the next record */
	uint64_t missed;   /* records overwritten unread, except before the first bucket */
	uint64_t damaged;  /* records in damaged buckets */
	int started;
	struct rring_bucket bucket; /* the last bucket copied or found damaged */
};

struct rring_interface {
	uint16_t link_type;
	uint8_t time_domain;
	uint32_t snaplen; /* 0: no limit */
	uint16_t clock;
	int name_truncated;
	char name[RRING_NAME_MAX + 1];
};

struct rring_step {
	uint64_t producer;
	uint16_t clock;
	uint64_t first;
	int64_t offset_ns;
};

static inline const char *rring_error(int error)
{
	static const char *const texts[] = {
		"no error",
		"a system call failed",
		"not a ring of retroscope",
		"written with the other byte order",
		"written with another layout",
		"not ready yet",
		"the file is cut short",
		"the header is damaged",
		"the bucket was overwritten",
		"the bucket is damaged",
		"the file became shorter while it was read",
		"no memory for the copy",
		"no such bucket, producer or interface",
	};
	if (error < 0 || (size_t)error >= sizeof texts / sizeof *texts)
		return "unknown error";
	return texts[error];
}

/* Loads of the mapped memory, which another process writes: each word or byte by one atomic load.
 * The callers have checked that `offset` is inside the mapping, and that words are aligned. */
static inline uint64_t rring_load(const struct rring *ring, size_t offset)
{
	return __atomic_load_n((const uint64_t *)(const void *)(ring->base + offset), __ATOMIC_ACQUIRE);
}

static inline void rring_load_bytes(const struct rring *ring, size_t offset, size_t length,
				    unsigned char *out)
{
	while (length > 0) {
		size_t step = offset % 8 == 0 && length >= 8 ? 8 : 1;
		if (step == 8) {
			const void *word = ring->base + offset;
			uint64_t value = __atomic_load_n((const uint64_t *)word, __ATOMIC_RELAXED);
			memcpy(out, &value, 8);
		} else {
			*out = __atomic_load_n(ring->base + offset, __ATOMIC_RELAXED);
		}
		offset += step;
		out += step;
		length -= step;
	}
}

static inline int rring_check_length(const struct rring *ring)
{
	struct stat stat;
	if (ring->sealed)
		return RRING_OK;
	if (fstat(ring->fd, &stat) != 0)
		return RRING_SYSTEM;
	return (uint64_t)stat.st_size >= ring->length ? RRING_OK : RRING_SHRUNK;
}

static inline void rring_close(struct rring *ring)
{
	if (ring->base != NULL)
		munmap((void *)(uintptr_t)ring->base, ring->length);
	if (ring->fd >= 0)
		close(ring->fd);
	ring->base = NULL;
	ring->fd = -1;
}

static inline uint64_t rring_round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) / to * to;
}

/* The layout is a function of three counts. Computes all offsets again, and believes the header
 * only if every offset in it is the same. */
static inline int rring_check_header(struct rring *ring)
{
	const uint64_t alignment = 2 << 20, interfaces_min = 1024;
	uint64_t word[20], end, room;
	uint64_t state = rring_load(ring, 1024); /* before the header, which it orders */
	for (size_t i = 0; i < 20; i++)
		word[i] = rring_load(ring, i * 8);
	if (word[0] == __builtin_bswap64(UINT64_C(0x726574726f515101)))
		return RRING_BYTE_ORDER;
	if (word[0] != UINT64_C(0x726574726f515101)) /* "retroQQ\x01" */
		return RRING_NOT_A_RING;
	if (word[1] != RRING_LAYOUT)
		return word[1] == 0 ? RRING_NOT_READY : RRING_VERSION;
	if (word[2] > ring->length)
		return RRING_TRUNCATED;
	if (word[3] < 1 || word[3] > 65535 / 4 || word[5] < 1 || word[5] > 65535 || word[7] < 16 ||
	    word[7] > 256 << 20 || word[7] % 16 != 0)
		return RRING_HEADER;
	ring->producers = word[3];
	ring->buckets = word[5];
	ring->bucket_bytes = word[7];
	ring->bucket_headers = 4096 + ring->producers * 128;
	ring->steps = ring->bucket_headers + ring->buckets * 128;
	ring->interfaces = ring->steps + RRING_STEPS_MAX * 32;
	ring->first_bucket = rring_round_up(ring->interfaces + interfaces_min * 64, alignment);
	end = rring_round_up(ring->first_bucket + ring->buckets * ring->bucket_bytes, alignment);
	room = (ring->first_bucket - ring->interfaces) / 64;
	ring->interfaces_max = room < 65536 ? room : 65536;
	ring->created_ns = (int64_t)word[11];
	ring->process = word[14];
	if (word[2] != end || word[4] != 4096 || word[6] != ring->bucket_headers ||
	    word[8] != ring->first_bucket || word[9] != ring->interfaces ||
	    word[10] != ring->interfaces_max || word[16] != ring->steps ||
	    word[17] != RRING_STEPS_MAX)
		return RRING_HEADER;
	return state == 0 ? RRING_NOT_READY : RRING_OK;
}

/* Maps a ring: a file, or /proc/PID/fd/N of a memfd. */
static inline int rring_open(struct rring *ring, const char *path)
{
	struct stat stat;
	void *base;
	int error, seals;
	memset(ring, 0, sizeof *ring);
	/* Non-blocking, because the path may name a pipe. */
	ring->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (ring->fd < 0)
		return RRING_SYSTEM;
	if (fstat(ring->fd, &stat) != 0) {
		error = RRING_SYSTEM;
	} else if (!S_ISREG(stat.st_mode)) {
		error = RRING_NOT_A_RING;
	} else if (stat.st_size < 4096) {
		error = RRING_TRUNCATED;
	} else {
		ring->length = (size_t)stat.st_size;
		base = mmap(NULL, ring->length, PROT_READ, MAP_SHARED, ring->fd, 0);
		ring->base = base == MAP_FAILED ? NULL : (const unsigned char *)base;
		error = ring->base == NULL ? RRING_SYSTEM : rring_check_header(ring);
	}
	if (error == RRING_OK) {
		seals = fcntl(ring->fd, 1034 /* F_GET_SEALS */);
		ring->sealed = seals >= 0 && (seals & 2 /* F_SEAL_SHRINK */) != 0;
		/* Captured packets do not belong in a core dump. */
		(void)madvise(base, ring->length, 16 /* MADV_DONTDUMP */);
	} else {
		int saved = errno;
		rring_close(ring);
		errno = saved;
	}
	return error;
}

/* The state of the process that writes the ring, in `*writer`: RRING_RUNNING, RRING_ENDED (it
 * closed the ring) or RRING_KILLED. A writer locks the file while its ring lives. */
static inline int rring_writer(const struct rring *ring, int *writer)
{
	int error = rring_check_length(ring), locked;
	if (error != RRING_OK)
		return error;
	/* The lock first: a writer stores that it ended before it releases the lock. */
	locked = flock(ring->fd, LOCK_SH | LOCK_NB) != 0;
	if (locked && errno != EWOULDBLOCK)
		return RRING_SYSTEM;
	if (!locked)
		(void)flock(ring->fd, LOCK_UN);
	if (rring_load(ring, 1024) == 2)
		*writer = RRING_ENDED;
	else
		*writer = locked ? RRING_RUNNING : RRING_KILLED;
	return RRING_OK;
}

/* Whether a control word is of an open or closed bucket of this generation. */
static inline int rring_is_readable(uint64_t control, uint64_t generation)
{
	return (control & 3) >= RRING_OPEN && control >> 16 == generation;
}

/* The header of a bucket, all of one generation. The caller has checked the length of the file, and
 * that the bucket exists. RRING_DAMAGED: the header contradicts itself. */
static inline int rring_read_bucket(const struct rring *ring, uint64_t index,
				    struct rring_bucket *bucket)
{
	size_t header = ring->bucket_headers + index * 128;
	uint64_t control = 0;
	for (int attempt = 0; attempt < 8; attempt++) {
		control = rring_load(ring, header);
		bucket->index = index;
		bucket->generation = control >> 16;
		bucket->state = (int)(control & 3);
		bucket->packets = rring_load(ring, header + 8);
		bucket->base_ns = (int64_t)rring_load(ring, header + 48);
		bucket->producer = rring_load(ring, header + 56);
		bucket->first = rring_load(ring, header + 72);
		/* Pairs with the writer's fence after a claim: if a load above saw a word of a later
		 * generation, the load below sees that generation. */
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		control = rring_load(ring, header);
		if (control >> 16 != bucket->generation)
			continue;
		if (bucket->state < RRING_OPEN)
			return RRING_OK;
		if (bucket->packets > ring->bucket_bytes / 16 || bucket->producer >= ring->producers ||
		    bucket->first > UINT64_MAX - bucket->packets)
			return RRING_DAMAGED;
		return RRING_OK;
	}
	bucket->generation = control >> 16;
	bucket->state = RRING_CLAIMED;
	return RRING_OK;
}

/* A snapshot of the bucket `index`, below `ring->buckets`. */
static inline int rring_bucket(const struct rring *ring, uint64_t index,
			       struct rring_bucket *bucket)
{
	int error = rring_check_length(ring);
	if (error == RRING_OK && index >= ring->buckets)
		error = RRING_NOTHING;
	return error == RRING_OK ? rring_read_bucket(ring, index, bucket) : error;
}

static inline void rring_copy_free(struct rring_copy *copy)
{
	free(copy->bytes);
	memset(copy, 0, sizeof *copy);
}

static inline const unsigned char *rring_copied_descriptor(const struct rring_copy *copy, size_t index)
{
	return copy->bytes + (copy->count - 1 - index) * 16;
}

/* Decodes one copied record, which must begin at `begin` in the copied payload. Returns the end of
 * the record there, or SIZE_MAX if the record contradicts itself. */
static inline size_t rring_decode(const struct rring_copy *copy, size_t index, size_t begin,
				  struct rring_packet *packet)
{
	const unsigned char *payload = copy->bytes + copy->count * 16;
	const uint64_t sign = UINT64_C(1) << 47; /* of the time, 48 bits */
	uint64_t word[2];
	size_t at, left;
	memcpy(word, rring_copied_descriptor(copy, index), 16);
	packet->record = copy->first + index;
	packet->time_ns = (int64_t)((uint64_t)copy->bucket.base_ns +
				    (((word[0] << 16 >> 16) ^ sign) - sign));
	packet->wire_len = (uint32_t)(word[0] >> 48);
	packet->captured = word[1] >> 28 & 0x7ffff;
	packet->interface = word[1] >> 47 & 0xff;
	packet->direction = word[1] >> 55 & 3;
	packet->tag_restored = word[1] >> 57 & 1;
	packet->shard = (uint8_t)(word[1] >> 59);
	at = (size_t)((word[1] & 0xfffffff) - copy->begin);
	if (at != begin || at > copy->payload_length || packet->captured > 256 << 10)
		return SIZE_MAX;
	left = copy->payload_length - at;
	if ((word[1] >> 58 & 1) != 0) {
		uint16_t length;
		if (left < 16)
			return SIZE_MAX;
		memcpy(&length, payload + at, 2);
		memcpy(&packet->interface, payload + at + 2, 2);
		memcpy(&packet->wire_len, payload + at + 4, 4);
		memcpy(&packet->time_ns, payload + at + 8, 8);
		if (length < 16 || length > left)
			return SIZE_MAX;
		at += length;
		left -= length;
	}
	packet->data = payload + at;
	return packet->captured <= left ? at + packet->captured : SIZE_MAX;
}

/* Copies the committed records of a bucket after the first `skip`. Checks only that the copied
 * bytes are inside the bucket. */
static inline int rring_fill(const struct rring *ring, const struct rring_bucket *bucket,
			     uint64_t skip, uint64_t committed, struct rring_copy *copy)
{
	size_t start = ring->first_bucket + bucket->index * ring->bucket_bytes;
	uint64_t word[2], end;
	size_t room, needed;
	unsigned char *bytes;
	if (committed > ring->bucket_bytes / 16)
		return RRING_DAMAGED;
	if (skip >= committed)
		return RRING_OK;
	room = ring->bucket_bytes - committed * 16; /* for the payload */
	copy->count = committed - skip;
	/* The first and the last descriptor say which bytes are payload. */
	rring_load_bytes(ring, start + ring->bucket_bytes - (skip + 1) * 16, 16, (unsigned char *)word);
	copy->begin = word[1] & 0xfffffff;
	rring_load_bytes(ring, start + room, 16, (unsigned char *)word);
	end = (word[1] & 0xfffffff) + (word[1] >> 28 & 0x7ffff);
	if ((word[1] >> 58 & 1) != 0) {
		uint16_t length;
		if ((word[1] & 0xfffffff) > room || room - (word[1] & 0xfffffff) < 16)
			return RRING_DAMAGED;
		rring_load_bytes(ring, start + (word[1] & 0xfffffff), 2, (unsigned char *)&length);
		end += length;
	}
	if (end > room || copy->begin > end)
		return RRING_DAMAGED;
	copy->payload_length = end - copy->begin;
	needed = copy->count * 16 + copy->payload_length;
	if (needed > copy->capacity) {
		bytes = (unsigned char *)realloc(copy->bytes, needed);
		if (bytes == NULL)
			return RRING_MEMORY;
		copy->bytes = bytes;
		copy->capacity = needed;
	}
	rring_load_bytes(ring, start + room, copy->count * 16, copy->bytes);
	rring_load_bytes(ring, start + copy->begin, copy->payload_length, copy->bytes + copy->count * 16);
	return RRING_OK;
}

/* Copies the committed records of a bucket after the first `skip`; from an open bucket, the records
 * committed now. RRING_OVERWRITTEN: the bucket is no longer of this generation. If the copy fails,
 * `copy->count` is 0. */
static inline int rring_copy_bucket(const struct rring *ring, const struct rring_bucket *bucket,
				    uint64_t skip, struct rring_copy *copy)
{
	struct rring_packet packet;
	size_t header, at = 0;
	uint64_t committed;
	int error = rring_check_length(ring);
	copy->count = 0;
	if (error != RRING_OK)
		return error;
	if (bucket->index >= ring->buckets)
		return RRING_NOTHING;
	header = ring->bucket_headers + bucket->index * 128;
	if (!rring_is_readable(rring_load(ring, header), bucket->generation))
		return RRING_OVERWRITTEN;
	/* Orders the records: all records below this mark are written. */
	committed = rring_load(ring, header + 8);
	copy->bucket = *bucket;
	copy->bucket.base_ns = (int64_t)rring_load(ring, header + 48);
	copy->first = bucket->first + skip;
	error = rring_fill(ring, bucket, skip, committed, copy);
	/* Pairs with the writer's fence after a claim, as in rring_read_bucket(). */
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (!rring_is_readable(rring_load(ring, header), bucket->generation))
		error = RRING_OVERWRITTEN;
	/* Nobody else writes the copy: now its contents can be checked. */
	for (size_t i = 0; error == RRING_OK && i < copy->count; i++) {
		at = rring_decode(copy, i, at, &packet);
		if (at == SIZE_MAX)
			error = RRING_DAMAGED;
	}
	if (error != RRING_OK)
		copy->count = 0;
	return error;
}

/* The copied packet with this index, which is below `copy->count`. */
static inline void rring_packet(const struct rring_copy *copy, size_t index,
				struct rring_packet *packet)
{
	uint64_t word[2];
	memset(packet, 0, sizeof *packet);
	memcpy(word, rring_copied_descriptor(copy, index), 16);
	(void)rring_decode(copy, index, (size_t)((word[1] & 0xfffffff) - copy->begin), packet);
}

/* The bucket of the cursor's producer with the oldest records from the cursor's position on. */
static inline int rring_find(const struct rring *ring, const struct rring_cursor *cursor,
			     struct rring_bucket *found)
{
	struct rring_bucket bucket;
	int error = rring_check_length(ring), result = RRING_NOTHING;
	memset(found, 0, sizeof *found);
	if (error != RRING_OK)
		return error;
	for (uint64_t index = 0; index < ring->buckets; index++) {
		if (rring_read_bucket(ring, index, &bucket) != RRING_OK || bucket.state < RRING_OPEN ||
		    bucket.producer != cursor->producer ||
		    bucket.first + bucket.packets <= cursor->position ||
		    (result == RRING_OK && bucket.first >= found->first))
			continue;
		*found = bucket;
		result = RRING_OK;
	}
	return result;
}

/* Whether the cursor's last bucket is still open and has no new records. Then no later bucket of
 * the producer has any. */
static inline int rring_is_idle(const struct rring *ring, const struct rring_cursor *cursor)
{
	struct rring_bucket now;
	return cursor->started && rring_read_bucket(ring, cursor->bucket.index, &now) == RRING_OK &&
	       now.generation == cursor->bucket.generation && now.state == RRING_OPEN &&
	       now.first + now.packets == cursor->position;
}

/* Copies the next records of the cursor's producer, and moves the cursor after them. With
 * `copy->count` 0 there are no new records now, or the writer overwrote too many buckets during the
 * attempts to copy them.
 * `cursor->missed` and `cursor->damaged` count the records that the cursor passed without copying
 * them. */
static inline int rring_next(const struct rring *ring, struct rring_cursor *cursor,
			     struct rring_copy *copy)
{
	struct rring_bucket found, again;
	uint64_t start, end;
	int error = rring_check_length(ring);
	copy->count = 0;
	if (error != RRING_OK)
		return error;
	if (cursor->producer >= ring->producers)
		return RRING_NOTHING;
	if (rring_is_idle(ring, cursor))
		return RRING_OK;
	/* Bounded, so that no file can keep the reader here. Each damaged bucket is passed once. */
	for (uint64_t attempt = 0; attempt < 64 + ring->buckets; attempt++) {
		error = rring_find(ring, cursor, &found);
		if (error != RRING_OK)
			return error == RRING_NOTHING ? RRING_OK : error;
		if (found.first > cursor->position && cursor->started) {
			/* A bucket that opened during the search may have been passed by. Every bucket
			 * before `found` is open or closed now, or was overwritten. */
			error = rring_find(ring, cursor, &again);
			if (error == RRING_OK && again.first < found.first)
				found = again;
		}
		start = found.first > cursor->position ? found.first : cursor->position;
		error = rring_copy_bucket(ring, &found, start - found.first, copy);
		if (error == RRING_OVERWRITTEN)
			continue;
		if (error != RRING_OK && error != RRING_DAMAGED)
			return error;
		end = error == RRING_OK ? start + copy->count : found.first + found.packets;
		if (error == RRING_DAMAGED)
			cursor->damaged += end - start;
		if (cursor->started)
			cursor->missed += start - cursor->position;
		cursor->started = 1;
		cursor->position = end;
		cursor->bucket = found;
		if (copy->count > 0)
			return RRING_OK;
	}
	return RRING_OK;
}

/* The interface with this number. RRING_NOTHING: the table has no such interface. */
static inline int rring_interface(const struct rring *ring, uint16_t id,
				  struct rring_interface *interface)
{
	unsigned char slot[64];
	size_t length;
	int error = rring_check_length(ring);
	if (error != RRING_OK)
		return error;
	/* The count orders the slots, which are never written again. */
	if (id >= rring_load(ring, 1032) || id >= ring->interfaces_max)
		return RRING_NOTHING;
	rring_load_bytes(ring, ring->interfaces + (size_t)id * 64, 64, slot);
	memset(interface, 0, sizeof *interface);
	memcpy(&interface->link_type, slot, 2);
	interface->time_domain = slot[2];
	interface->name_truncated = slot[3] >> 7;
	memcpy(&interface->snaplen, slot + 4, 4);
	memcpy(&interface->clock, slot + 8, 2);
	length = slot[3] & 0x7f;
	memcpy(interface->name, slot + 10, length < RRING_NAME_MAX ? length : RRING_NAME_MAX);
	return RRING_OK;
}

/* The steps of the clocks, `*count` of them, for rring_stamp_ns(). Must be read after the records
 * were copied. */
static inline int rring_steps(const struct rring *ring, struct rring_step steps[RRING_STEPS_MAX],
			      size_t *count)
{
	int error = rring_check_length(ring);
	*count = 0;
	if (error != RRING_OK)
		return error;
	for (size_t slot = 0; slot < RRING_STEPS_MAX; slot++) {
		for (int attempt = 0; attempt < 8; attempt++) {
			size_t at = ring->steps + slot * 32;
			uint64_t version = rring_load(ring, at);
			uint64_t place = rring_load(ring, at + 8);
			struct rring_step step = {place >> 16, (uint16_t)place,
						  rring_load(ring, at + 16),
						  (int64_t)rring_load(ring, at + 24)};
			if (version == 0)
				break;
			__atomic_thread_fence(__ATOMIC_ACQUIRE);
			if (version % 2 == 0 && rring_load(ring, at) == version) {
				steps[(*count)++] = step;
				break;
			}
		}
	}
	return RRING_OK;
}

/* The stamp, ns since the UNIX epoch, of a record with this number and ring time. `clock` is that
 * of the packet's interface. */
static inline int64_t rring_stamp_ns(const struct rring_step *steps, size_t count, uint64_t producer,
				     uint16_t clock, uint64_t record, int64_t time_ns)
{
	const struct rring_step *last = NULL;
	for (const struct rring_step *step = steps; step < steps + count; step++)
		if (step->producer == producer && step->clock == clock && step->first <= record &&
		    (last == NULL || step->first >= last->first))
			last = step;
	return (int64_t)((uint64_t)time_ns + (last == NULL ? 0 : (uint64_t)last->offset_ns));
}

#ifdef __cplusplus
}
#endif

#endif
