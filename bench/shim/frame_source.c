/*
 * Sends frames out of one end of a veth pair faster than a packet socket can. The kernel runs an XDP program on live frames
 * (BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, Linux 5.18), and the program redirects each frame to the interface.
 * The frame reaches the other end's receive queue with the number of the calling CPU, modulo the number of queues.
 *
 * frame_source IFACE PEER SIZE MS RATE BURST: for MS milliseconds, sends RATE frames a second (0: as fast as possible) of
 * SIZE bytes out of IFACE, in bursts of BURST (at most 256). Prints the number of frames and CLOCK_REALTIME -
 * CLOCK_MONOTONIC in ns. PEER, the other end, must be in the same network namespace. Its GRO is switched on: without GRO
 * or an XDP program, a veth device has no receive queue for such frames.
 *
 * The frames are UDP. The payload begins with the monotonic time in ns, in the byte order of the host, at which the program
 * sent the frame. The source port has the low bits of this time, so that the frames have many flows.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Offsets in a frame, and limits. */
enum { PORT = 34, PAYLOAD = 42, BURST_MAX = 256, LEAST = 60, MOST = 1514 };

/* Shared by the program and this process. A burst is one batch of the kernel; its first frame decides whether it is sent. */
struct state {
	uint64_t next_ns, end_ns, gap_ns, sent, at, burst, sends;
};

static int fail(const char *what)
{
	fprintf(stderr, "frame_source: %s: %s\n", what, strerror(errno));
	return 1;
}

static void ignore(int signal)
{
	(void)signal;
}

static int bpf(int command, union bpf_attr *attr)
{
	return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

#define INSN(c, d, s, o, i) { .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) }
#define MOV(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define MOVI(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define ADD(d, s) INSN(BPF_ALU64 | BPF_ADD | BPF_X, d, s, 0, 0)
#define ADDI(d, i) INSN(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define LOAD(w, d, s, o) INSN(BPF_LDX | BPF_MEM | (w), d, s, o, 0)
#define STORE(w, d, o, s) INSN(BPF_STX | BPF_MEM | (w), d, s, o, 0)
#define JUMP(c, d, s, o) INSN(BPF_JMP | (c) | BPF_X, d, s, o, 0)
#define JUMPI(c, d, i, o) INSN(BPF_JMP | (c) | BPF_K, d, 0, o, i)
#define CALL(f) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, f)
#define EXIT() INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
#define GET(d, field) LOAD(BPF_DW, d, 9, offsetof(struct state, field))
#define PUT(field, s) STORE(BPF_DW, 9, offsetof(struct state, field), s)

static int load(int map, int interface)
{
	const struct bpf_insn program[] = {
		LOAD(BPF_W, 7, 1, offsetof(struct xdp_md, data)),
		LOAD(BPF_W, 8, 1, offsetof(struct xdp_md, data_end)),
		INSN(BPF_LD | BPF_DW | BPF_IMM, 9, BPF_PSEUDO_MAP_VALUE, 0, map),
		INSN(0, 0, 0, 0, 0),
		CALL(BPF_FUNC_ktime_get_ns),
		GET(1, at),
		JUMPI(BPF_JNE, 1, 0, 13),
		/* The first frame of a batch: send this batch if it is due. */
		MOVI(2, 0),
		GET(3, end_ns),
		JUMP(BPF_JGE, 0, 3, 9),
		GET(3, next_ns),
		JUMP(BPF_JLT, 0, 3, 7),
		MOVI(2, 1),
		GET(4, gap_ns),
		ADD(3, 4),
		/* If the sender is late by more than a burst, it does not catch up. */
		ADD(4, 3),
		JUMP(BPF_JGE, 4, 0, 1),
		MOV(3, 0),
		PUT(next_ns, 3),
		PUT(sends, 2),
		/* All frames. */
		ADDI(1, 1),
		GET(2, burst),
		JUMP(BPF_JLT, 1, 2, 1),
		MOVI(1, 0),
		PUT(at, 1),
		GET(2, sends),
		JUMPI(BPF_JEQ, 2, 0, 12),
		MOV(3, 7),
		ADDI(3, PAYLOAD + 8),
		JUMP(BPF_JGT, 3, 8, 9),
		GET(2, sent),
		ADDI(2, 1),
		PUT(sent, 2),
		STORE(BPF_DW, 7, PAYLOAD, 0),
		STORE(BPF_H, 7, PORT, 0),
		MOVI(1, interface),
		MOVI(2, 0),
		CALL(BPF_FUNC_redirect),
		EXIT(),
		MOVI(0, XDP_DROP),
		EXIT(),
	};
	static char log[1 << 16];
	union bpf_attr attr = {
		.prog_type = BPF_PROG_TYPE_XDP,
		.insns = (uintptr_t)program,
		.insn_cnt = sizeof program / sizeof *program,
		.license = (uintptr_t)"GPL",
		.log_buf = (uintptr_t)log,
		.log_size = sizeof log,
		.log_level = 1,
	};
	const int fd = bpf(BPF_PROG_LOAD, &attr);
	if (fd < 0)
		fprintf(stderr, "%s", log);
	return fd;
}

static int switch_gro_on(const char *interface)
{
	struct ethtool_value value = { .cmd = ETHTOOL_SGRO, .data = 1 };
	struct ifreq request = { .ifr_data = (void *)&value };
	const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
	return fd < 0 ? fd : ioctl(fd, SIOCETHTOOL, &request);
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void put16(uint8_t *to, uint32_t value)
{
	to[0] = (uint8_t)(value >> 8);
	to[1] = (uint8_t)value;
}

/* A UDP packet from 10.0.0.1 to 10.0.0.2, port 9, to a MAC address that no host has. */
static void make_frame(uint8_t *frame, uint32_t size)
{
	static const uint8_t head[] = { 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2 };
	uint32_t sum = 0;

	memcpy(frame, head, sizeof head);
	put16(frame + 16, size - 14);
	for (int at = 14; at < 34; at += 2)
		sum += (uint32_t)frame[at] << 8 | frame[at + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	put16(frame + 24, ~sum);
	put16(frame + 36, 9);
	put16(frame + 38, size - 34);
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "usage: frame_source IFACE PEER SIZE MS RATE BURST\n");
		return 2;
	}
	const uint32_t size = (uint32_t)atoi(argv[3]), burst = (uint32_t)atoi(argv[6]);
	const uint64_t time_ns = strtoull(argv[4], NULL, 10) * 1000000;
	const double rate = atof(argv[5]);
	const unsigned interface = if_nametoindex(argv[1]);
	if (size < LEAST || size > MOST || burst < 1 || burst > BURST_MAX) {
		fprintf(stderr, "frame_source: a number is out of range\n");
		return 2;
	}
	if (interface == 0 || switch_gro_on(argv[2]) < 0)
		return fail("the interfaces");

	union bpf_attr attr = {
		.map_type = BPF_MAP_TYPE_ARRAY,
		.key_size = 4,
		.value_size = sizeof(struct state),
		.max_entries = 1,
		.map_flags = BPF_F_MMAPABLE,
	};
	const int map = bpf(BPF_MAP_CREATE, &attr);
	const int program = map < 0 ? map : load(map, (int)interface);
	if (program < 0)
		return fail("the XDP program (needs root)");
	volatile struct state *state = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
	if (state == MAP_FAILED)
		return fail("mmap");

	uint8_t frame[MOST] = { 0 };
	make_frame(frame, size);
	const uint64_t start_ns = now_ns(CLOCK_MONOTONIC);
	state->next_ns = start_ns;
	state->end_ns = start_ns + time_ns;
	state->gap_ns = rate > 0 ? (uint64_t)(1e9 * burst / rate) : 0;
	state->burst = burst;
	/* The program sends until end_ns. The signal ends the call, whose begin and end take milliseconds. */
	const struct sigaction action = { .sa_handler = ignore };
	const struct itimerval timer = { .it_value = { .tv_sec = (time_t)(time_ns / 1000000000), .tv_usec = time_ns / 1000 % 1000000 + 1 } };
	union bpf_attr run = { 0 };
	run.test.prog_fd = (uint32_t)program;
	run.test.data_in = (uintptr_t)frame;
	run.test.data_size_in = size;
	run.test.repeat = (INT32_MAX / burst) * burst;
	run.test.flags = BPF_F_TEST_XDP_LIVE_FRAMES;
	run.test.batch_size = burst;
	if (sigaction(SIGALRM, &action, NULL) < 0 || setitimer(ITIMER_REAL, &timer, NULL) < 0)
		return fail("the timer");
	if (bpf(BPF_PROG_TEST_RUN, &run) < 0 && errno != EINTR)
		return fail("BPF_PROG_TEST_RUN (needs Linux 5.18)");
	printf("%llu %llu\n", (unsigned long long)state->sent,
	       (unsigned long long)(now_ns(CLOCK_REALTIME) - now_ns(CLOCK_MONOTONIC)));
	return 0;
}
