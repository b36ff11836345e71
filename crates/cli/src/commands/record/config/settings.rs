//! Every key of the configuration. The doc comments are the help of `record` and `flows`, and the
//! descriptions in the JSON schema. If the key has a flag, the first paragraph is the line of `-h`.

use std::{path::PathBuf, time::Duration};

use retroscope_api::Address;
use retroscope_capture::CpuList;
use retroscope_recorder::{
    Analyzers, ClassCutoff, MinFree, NameTemplate, PostCommand, RetentionLimit, SubDirectory,
    ZstdLevel,
};

use super::{
    key::{Key, Setting, settings, table_schema},
    values::{Count, List, Number, Parsed, Size, SizeLimit, TailDrop, choices},
};
use crate::{commands::record::alerts::AlertSource, eve::EveTarget};

settings! {
    /// Settings of `retroscope record`.
    Settings {
        "Input" {
            /// Interface to record (repeatable)
            ///
            /// `TCP@HOST:PORT` reads a stream of pcap or pcapng from there.
            /// `generate:flows=…,size=…,rate=…` makes traffic.
            interface: List<String>,
            /// Read a capture file instead (repeatable)
            ///
            /// The file is pcap or pcapng, also inside gzip or zstd; `-` is stdin. Several files
            /// are merged by time.
            read: List<PathBuf>,
            /// Capture method of interfaces
            ///
            /// `auto` is af-packet, the kernel's packet sockets: every interface, several threads,
            /// and the host keeps its packets. `af-xdp` is faster: a thread for each receive queue,
            /// and the host no longer receives packets from the interface. `pcap` is the system's
            /// libpcap: one thread for each device. `dpdk` needs a build with DPDK.
            engine: Engine = "auto",
            /// Record only packets that match FILTER
            ///
            /// FILTER is a pcap-filter(7) expression. Other packets are neither recorded nor
            /// analyzed.
            filter: Option<String>,
            /// Read the capture filter from FILE
            filter_file: Option<PathBuf>,
            /// Truncate each packet to N bytes (0: no limit)
            snaplen: Parsed<Number<0, { u32::MAX }>> = "0",
            /// No promiscuous mode
            no_promiscuous_mode: bool,
            /// Direction of packets: in, out or inout
            direction: Direction = "inout",
            /// Stop after N packets
            count: Option<Parsed<Count<1>>>,
            /// Stop after TIME (with -r: packet time)
            duration: Option<Parsed<Duration>>,
            /// Let af-xdp or dpdk take an interface that the host uses
            ///
            /// The host uses an interface with an address, a route, a bridge or a VLAN. The host
            /// loses its connections there.
            take_interface: bool,
            /// af-xdp only: poll the driver for N microseconds before sleeping
            ///
            /// Polling lowers latency and raises CPU use. At 8000 or more each thread uses a full
            /// core. The largest value is 100000.
            busy_poll: Option<Parsed<Number<1, 100_000>>>,
            /// af-packet and af-xdp only: the origin of time stamps
            ///
            /// `auto`: the NIC, if it is set to stamp all received packets, otherwise the kernel.
            /// `hardware`: the NIC; the recorder sets it to stamp packets. `kernel`: the kernel.
            time_stamps: StampOrigin = "auto",
            /// af-packet only: how the capture threads of an interface share its packets
            ///
            /// `hash` keeps both directions of a flow together. `qm` follows the receive queue of
            /// the NIC, `cpu` the CPU that received the packet.
            fanout: Spread = "hash",
            /// af-packet only: join IPv4 fragments before the threads share packets
            ///
            /// Joined packets were never on the wire.
            fanout_defrag: bool,
            /// CPUs for the capture threads, in turns, as 2-5,8
            ///
            /// The threads of `TCP@` and `generate:` run anywhere. Without this key the threads
            /// run on CPUs near the interface.
            cpus: Option<Parsed<CpuList>>,
            /// Memory of each capture thread for packets that are not read yet
            ///
            /// The default is 64MiB with af-xdp and pcap. With af-packet it follows the speed of
            /// the link and the memory of the machine.
            capture_buffer: Option<Parsed<Size>>,
            /// Capture threads for each interface
            ///
            /// Without `capture-threads`, af-xdp has one thread for each receive queue. pcap and `read`
            /// have one.
            rx_threads: Parsed<Number<1, 256>> = "1",
            /// Capture threads for all interfaces together
            ///
            /// Several slow interfaces then share a thread. The default is a thread for each
            /// interface, or as `rx-threads` says.
            capture_threads: Option<Parsed<Number<1, 256>>>,
            /// Where packets are analyzed: inline, auto or a number of threads
            ///
            /// `inline`: in the capture threads. N: in N other threads. `auto`: live usually inline
            /// while that keeps up, otherwise in one more thread.
            analyzers: Parsed<Analyzers> = "auto",
            /// Options for DPDK, as its programs take them before `--`
            ///
            /// The default is no hugepages for virtual devices, and --in-memory for NICs.
            eal_args: String,
            /// How late a packet of a file may be
            ///
            /// With `read`, windows stay open for this time longer.
            reorder_window: Parsed<Duration> = "1s",
        }
        "Ring" {
            /// Memory for packets, as 4GiB
            ///
            /// The default is 1GiB, or a quarter of the available memory if that is less. For
            /// `flows` it is 256MiB.
            ring: Option<Parsed<Size>>,
            /// Keep the ring in a file
            ///
            /// The file is on tmpfs or hugetlbfs. `retroscope status` and `query` read it, and it
            /// stays after the end. An older ring file is replaced, unless a recorder uses the
            /// file.
            ring_file: Option<PathBuf>,
            /// Keep the ring in a file without a name
            ///
            /// `retroscope status` and `query` read it as /proc/PID/fd/N while the recorder runs.
            ring_memfd: bool,
            /// Behavior when dumps and pins need all packets in the ring
            ///
            /// `record`: new packets overwrite the oldest packets, and dumps and pins that need
            /// these packets lose them. `protect`: dumps and pins keep their packets, and new
            /// packets are lost.
            when_full: RingFull = "record",
            /// Keep only the beginnings of flows, as 20KiB
            ///
            /// LIMIT is [FILTER=]BYTES[/TIME], for each direction of a flow. `20KiB/5m`: the flow
            /// begins anew after 5 minutes of silence (60 s without TIME). `tcp port 443=20KiB` is
            /// for flows whose first packet matches the expression; the first match wins. SYN, FIN
            /// and RST are kept, and all packets of flows that a trigger matched. The rest counts
            /// as lost by the cause `shed`.
            cutoff: List<Parsed<ClassCutoff>>,
            /// Live, under overload: keep only the first packets of each flow, at least N
            ///
            /// Tail early drop: while the source loses packets, or more than a quarter of the ring
            /// is not analyzed yet, the number of packets of each flow halves every 10 ms, down to
            /// N (`true`: 16). It grows by one every 10 ms without overload. SYN, FIN and RST are
            /// kept, and all packets of flows that a trigger matched. The rest counts as lost by
            /// the cause `shed`.
            ted: Option<Parsed<TailDrop>>,
            /// Shorten flows so that the ring reaches back TIME
            ///
            /// Live: if the packets would not fit, flows keep their first 16 MiB of each direction,
            /// then 8 MiB, and so on down to 4 KiB, and more again when there is room. Each step is
            /// reported. SYN, FIN and RST are kept, and all packets of flows that a trigger
            /// matched. The rest counts as lost by the cause `shed`.
            history_goal: Option<Parsed<Duration>>,
        }
        "Triggers" {
            /// A packet that matches FILTER triggers (repeatable)
            ///
            /// FILTER is a pcap-filter(7) expression.
            trigger: List<String>,
            /// Trigger by a Lua function(pkt) (repeatable)
            ///
            /// The file returns the function, which says whether a packet triggers.
            trigger_lua: List<PathBuf>,
            /// Trigger by a Lua module over flows (repeatable)
            ///
            /// The file returns a table of functions.
            module: List<PathBuf>,
            /// Let the Lua files do what this program can: raw memory (FFI), files, commands
            lua_trusted: bool,
            /// Trigger on IDS alerts.
            alerts: Alerts,
            /// Triggers with a name, and with their own dumps and limits.
            rule: Vec<RuleSettings>,
            /// Disarm all triggers after the first dump
            ///
            /// Recording and SIGUSR1 go on.
            single: bool,
            /// Ignore repeated matches for TIME after a dump
            ///
            /// A match of the same trigger with the same filled-in dump filter starts no dump until
            /// TIME after the previous dump's window.
            hold_off: Parsed<Duration> = "0s",
            /// Maximum number of open dumps
            ///
            /// Further triggers are refused and counted. With several triggers, one trigger may
            /// use half of this limit and of the next two; the others share the rest.
            max_dumps: Parsed<Number<1, 65_536>> = "64",
            /// Maximum number of dumps that start in any minute (0: no limit)
            ///
            /// With `read` it is a minute of the packets. Without this key 400 for triggers, and
            /// no limit for alerts.
            dumps_per_minute: Option<Parsed<Number<0, 1_000_000>>>,
            /// Start no dump while dumps wrote SIZE in the last hour (0: no limit)
            ///
            /// With `read` it is an hour of the packets. A trigger by hand still starts a dump, and
            /// so does a rule that wrote less than its share.
            bytes_per_hour: Parsed<SizeLimit> = "0",
        }
        "Dumps" {
            /// Dump packets that match; empty: everything
            ///
            /// A pcap-filter(7) expression with $srcIP $dstIP $srcPort $dstPort $proto $srcMAC
            /// $dstMAC $vlan of the trigger packet, and the terms $flow $iface $communityId.
            dump: String = "$flow",
            /// Dump by a Lua file
            ///
            /// The file returns function(trigger), which makes a function(pkt) of the trigger
            /// packet, or the text of a `dump` expression.
            dump_lua: Option<PathBuf>,
            /// Dump filter of SIGUSR1; empty: everything
            manual_dump: String,
            /// Dump packets from TIME before the trigger
            past: Parsed<Duration> = "10s",
            /// Dump packets until TIME after the trigger
            future: Parsed<Duration> = "5s",
            /// End a dump after N packets (0: no limit)
            dump_packets: Parsed<Count> = "0",
            /// End a dump after SIZE of captured data (0: no limit)
            dump_bytes: Parsed<SizeLimit> = "0",
            /// Directory for dumps; made if missing
            write: PathBuf = ".",
            /// Format of dump files
            ///
            /// `pcapng` has interfaces, comments, statistics and the verdict. `pcap` is for old
            /// tools: ns stamps, one link type for each file, and the verdict only in the sidecar.
            format: FormatName = "pcapng",
            /// Names of dump files
            ///
            /// Letters, digits, '.', '_', '-', and {time} {date} {number} {rule} {interface}
            /// {host}. If a name is taken, the file gets another number.
            name: Parsed<NameTemplate> = "{time}-{number}-{rule}",
            /// Compress complete dumps: zstd or zstd:LEVEL
            ///
            /// The level is 1 to 19, and 3 if it is left out. The files are called NAME.pcapng.zst.
            compress: Option<Parsed<ZstdLevel>>,
            /// Whether sidecars have the SHA-256 of the files
            ///
            /// The default is true on processors with SHA instructions. Others take 4 to 7 s for
            /// each GB.
            sha256: Option<bool>,
            /// Delete old dumps beyond SIZE, TIME or both
            ///
            /// `50GiB`, `30d` or `50GiB,30d`. The oldest dumps go first. Dumps of earlier recorders
            /// in the directory count. A dump with a file NAME.hold next to it stays.
            keep: Option<Parsed<RetentionLimit>>,
            /// Delete the oldest dumps if the file system has less room, as 10% or 20GiB
            ///
            /// The recorder also deletes dumps when the file system is full.
            min_free: Option<Parsed<MinFree>>,
            /// Run CMD for each finished dump
            ///
            /// No shell runs CMD, but quotes and backslashes group words as in a shell. {file}
            /// {sidecar} {id} {rule} {verdict} are filled in. Without {file} the paths of the
            /// captures are added at the end. CMD has no capabilities, and runs as the user of -Z.
            post: Option<Parsed<PostCommand>>,
            /// How long a `post` command may take; then its process group is ended
            post_limit: Parsed<Duration> = "60s",
            /// How many `post` commands run at once; 1,000 more wait
            post_at_once: Parsed<Number<1, 64>> = "2",
            /// Run `post` as this user, as root only
            ///
            /// A name, or UID:GID. The user must be able to read the dumps.
            post_user: Option<String>,
            /// Leave creation times and host name out
            ///
            /// Two runs over the same files then give the same bytes.
            reproducible: bool,
        }
        "Output" {
            /// Print a JSON summary as last line of stdout
            json: bool,
            /// Write flows and events as EVE JSON
            ///
            /// The lines are appended to a file, go to stdout (`-`), or to the stream socket
            /// `unix:PATH`, at which another program listens. A service opens the file again at
            /// SIGHUP.
            eve: Option<Parsed<EveTarget>>,
            /// Seed of Community IDs
            community_id_seed: Option<Parsed<Number<0, 65_535>>>,
            /// End a flow after TIME without a packet (0: never)
            ///
            /// The default is Suricata's time-outs by protocol and state.
            idle_timeout: Option<Parsed<Duration>>,
            /// Whether fragments belong to the flow of their first fragment
            ///
            /// `join` is the default. With `apart` later fragments of TCP, UDP, SCTP and ICMP belong to
            /// no flow.
            fragments: Option<Fragments>,
            /// Whether VLANs keep flows apart
            ///
            /// `apart` is the default: packets with different VLANs are of different flows. With
            /// `together` the VLAN does not matter.
            vlans: Option<Vlans>,
            /// Maximum number of flows at the same time [default: 1000000]
            ///
            /// A flow takes at most 400 bytes. Above the limit, flows whose time-out is near end
            /// early.
            max_flows: Option<Parsed<Number<1, 100_000_000>>>,
            /// Report only errors
            quiet: bool,
            /// Print statistics of sources and ring at the end
            verbose: bool,
        }
        "Service" {
            /// Serve HTTP.
            api: Api,
            /// Become USER when everything is open
            ///
            /// A name, or UID:GID. Capabilities that writing dumps does not need are dropped in any
            /// case.
            relinquish_privileges: Option<String>,
        }
    }
}

settings! {
    /// Where and how HTTP is served.
    Api {
        "Service" {
            /// Serve the HTTP API at ADDR (repeatable)
            ///
            /// An address with a port, as 127.0.0.1:8080, for clients with a token; or unix:PATH, a
            /// socket for this user, root and its group. docs/api.md describes the API.
            listen: List<Parsed<Address>>,
            /// Serve only metrics at these addresses, for Prometheus
            ///
            /// Over TCP, clients need a token of the role metrics or more. docs/metrics.md
            /// describes the metrics.
            metrics: List<Parsed<Address>>,
            /// Accept this host name in requests, in addition to IP addresses and localhost
            host: List<String>,
            /// File of tokens, by `retroscope token`
            ///
            /// The file is read again when it changes.
            tokens: Option<PathBuf>,
            /// TLS certificate chain (PEM), required for any address other than loopback
            ///
            /// Certificate, key and client authorities are read again when they change.
            tls_cert: Option<PathBuf>,
            /// Key of `tls-cert` (PEM)
            tls_key: Option<PathBuf>,
            /// Accept only clients with a certificate of these authorities (PEM)
            ///
            /// Clients need their tokens as well.
            tls_client_ca: Option<PathBuf>,
            /// Serve the page for browsers, and let them log in
            ///
            /// The page is at the TCP addresses of the API. `false`: only the API.
            page: bool = "true",
            /// Log a browser out after TIME without a request
            session_idle: Parsed<Duration> = "30m",
            /// Log a browser out TIME after its login
            session_lifetime: Parsed<Duration> = "24h",
        }
    }
}

settings! {
    /// Where alerts come from, and what they dump.
    Alerts {
        "Triggers" {
            /// Trigger on IDS alerts from WHERE (repeatable)
            ///
            /// Lines of Suricata's EVE JSON or of Zeek's notice log. The IDS writes to a socket
            /// that the recorder makes (`unix:PATH`, a stream, or `unix-dgram:PATH`), or to files,
            /// whose path may contain `*`, `?` and `[…]`. Live, the recorder follows the files as
            /// they grow. With -r each alert acts in packet time.
            from: List<Parsed<AlertSource>>,
            /// Wait TIME after an alert's stamp before dumping
            delay: Parsed<Duration> = "0s",
            /// Maximum number of open dumps of alerts, in addition to dumps of triggers
            ///
            /// Further alerts are refused and counted.
            max_dumps: Parsed<Number<1, 65_536>> = "4096",
            /// For alerts without addresses: dump at most SIZE
            ///
            /// Of all packets of the alert's interface within a second of the alert.
            budget: Parsed<Size> = "64MiB",
        }
    }
}

settings! {
    /// A rule.
    RuleSettings {
        "Triggers" {
            /// Unique name of 1 to 64 bytes, other than the number of a trigger without a name
            name: String,
            /// Trigger: a pcap-filter(7) expression
            filter: Option<String>,
            /// Trigger: a file as for `trigger-lua`
            lua: Option<PathBuf>,
            /// Trigger: a file as for `module`
            module: Option<PathBuf>,
            /// Dump filter for alerts of Prometheus' Alertmanager that name the rule
            ///
            /// Labels of the alert fill in the template, as 'host {instance}' (docs/alerts.md).
            alert_dump: Option<String>,
            /// Dump filter of the rule [default: `dump` of all]
            dump: Option<String>,
            /// Time before the trigger [default: `past` of all]
            past: Option<Parsed<Duration>>,
            /// Time after the trigger [default: `future` of all]
            future: Option<Parsed<Duration>>,
            /// End a dump after N packets (0: no limit)
            packets: Option<Parsed<Count>>,
            /// End a dump after SIZE of captured data (0: no limit)
            bytes: Option<Parsed<SizeLimit>>,
            /// A directory below `write` for the rule's dumps; made if missing
            into: Option<Parsed<SubDirectory>>,
            /// A text for reports and sidecars, of which 256 bytes are kept
            asked_by: Option<String>,
            /// Disable the rule after its first dump, until it is enabled again
            single: bool,
            /// Ignore repeated matches for TIME after a dump [default: `hold-off` of all]
            hold_off: Option<Parsed<Duration>>,
            /// Maximum number of open dumps of the rule, within `max-dumps` of all (0: no limit)
            max_dumps: Option<Parsed<Count>>,
            /// Maximum number of the rule's dumps that start in any minute (0: no limit)
            dumps_per_minute: Option<Parsed<Count>>,
            /// Start no dump while the rule wrote SIZE in the last hour (0: no limit)
            bytes_per_hour: Option<Parsed<SizeLimit>>,
            /// Delete old dumps of the rule beyond SIZE, TIME or both, within `keep` of all
            keep: Option<Parsed<RetentionLimit>>,
        }
    }
}

choices! {
    /// The capture engine of live interfaces.
    Engine {
        /// The engine `af-packet`.
        Auto = "auto",
        AfPacket = "af-packet",
        AfXdp = "af-xdp",
        Pcap = "pcap",
        Dpdk = "dpdk",
    }
}

choices! {
    /// The direction of recorded packets as seen from this host, in tcpdump's words.
    Direction { In = "in", Out = "out", Inout = "inout" }
}

choices! {
    /// The origin of time stamps.
    StampOrigin { Auto = "auto", Hardware = "hardware", Kernel = "kernel" }
}

choices! {
    /// How the capture threads of an interface share its packets.
    Spread { Hash = "hash", Qm = "qm", Cpu = "cpu" }
}

choices! {
    /// The behavior when dumps and pins need all packets in the ring.
    RingFull { Record = "record", Protect = "protect" }
}

choices! {
    /// The format of dumps.
    FormatName { Pcapng = "pcapng", Pcap = "pcap" }
}

choices! {
    /// Whether later fragments belong to the flow of their first fragment.
    Fragments { Join = "join", Apart = "apart" }
}

choices! {
    /// Whether packets with different VLANs belong to different flows.
    Vlans { Apart = "apart", Together = "together" }
}
