/** The API's answers, as far as the page reads these. See crates/api/openapi.json. */

export type Role = 'metrics' | 'view' | 'packets' | 'trigger' | 'admin';

export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  field?: string;
  filter?: string;
  offset?: number;
  role?: Role;
  limit?: number;
}

export interface Session {
  caller: string;
  version: string;
  recording: string | null;
  /** Operations that this session may not use, by operationId, and the reason. */
  may_not: Record<string, string>;
}

/** The answer for a client without a session. `tokens`: whether tokens can log in. */
export interface NoSession {
  caller: null;
  tokens: boolean;
}

export interface Missing {
  cause: string;
  from: string;
  to: string;
  packets?: number | null;
  at_most?: number | null;
  by?: Record<string, number>;
  source?: string | null;
}

export interface Scan {
  from?: string | null;
  to?: string | null;
  verdict: string;
  reasons: string;
  missing: Missing[];
  inspected: number;
  /** Packets from dumps, of the time that left the ring. */
  dumps?: { packets: number } | null;
}

export interface Flow {
  src_ip: string;
  src_port?: number | null;
  dest_ip: string;
  dest_port?: number | null;
  proto: number | null;
}

export interface Packet {
  time: string;
  id?: string | null;
  interface: string;
  length: number;
  captured: number;
  summary: string;
  dropped?: number;
  hex?: string;
  flow?: Flow | null;
}

export interface Packets {
  packets: Packet[];
  next?: string | null;
  scan: Scan;
}

interface Counts { packets: number; bytes: number }

export interface TopFlow extends Counts {
  flow: string;
  ends: { address: string; port?: number | null }[];
  proto?: number | null;
  community_id?: string | null;
}

export interface Top extends Counts {
  scan: Scan;
  flows: TopFlow[];
  hosts: (Counts & { address: string })[];
  ports: (Counts & { proto: number; port: number })[];
}

type Slots = (number | null)[];

export interface Timeline {
  from: string;
  slot_seconds: number;
  packets: Slots;
  bytes: Slots;
  lost: Record<string, number[]>;
  down: boolean[];
  triggers: Slots;
  losses_known_to?: string | null;
  whole_from?: string | null;
  /** The largest intervals of each slot, with the parameter `peaks`. */
  peaks?: {
    seconds: number;
    known_from?: string | null;
    packets: Slots;
    bytes: Slots;
    wire_bytes: Slots;
    series?: { name: string; packets: Slots; wire_bytes: Slots; peak_packets: Slots; peak_bytes: Slots }[];
  } | null;
}

export interface Interface { name: string; speed_mbit?: number | null }

export interface Pin {
  name: string;
  from?: string | null;
  to: string;
  revoked: boolean;
  evicted_before: number;
}

export interface Source {
  name: string;
  stored: number;
  received?: number | null;
  lost: Record<string, number | null>;
  shed?: Record<string, number | null>;
  gaps?: number;
  gap_seconds?: number;
  xdp?: { native: boolean; zero_copy: boolean } | null;
}

export interface Doctor {
  findings: { severity: 'ok' | 'note' | 'warn'; check: string; interface?: string | null; what: string; do: string }[];
  loses_packets: boolean;
}

export interface RuleCost {
  rule: string | null;
  dumps: number;
  bytes: number;
  suppressed: number;
  suppressed_by?: Record<string, number>;
}

type Optional<Name extends string, T> = Partial<Record<Name, T | null>>;

/** Fields of a rule that the editor shows. Null or absent: the recorder's option applies. */
export type Rule = { name: string; scan?: RuleScan | null } & Optional<'enabled' | 'single', boolean> &
  Optional<'filter' | 'dump' | 'alert_dump' | 'past' | 'future' | 'scan_past' | 'hold_off' | 'keep_age' | 'into' | 'last_hit', string> &
  Optional<'hits' | 'max_dumps' | 'dumps_per_minute' | 'bytes_per_hour' | 'packets' | 'bytes' | 'keep_bytes', number>;

export type RuleScan = { past: string; running: boolean; stopped: string | null; scan: Scan | null } & Record<'hits' | 'dumps' | 'waited', number>;

export interface RuleTested {
  hits: number;
  first?: string | null;
  last?: string | null;
  most_in_a_second: number;
  packets: Packet[];
  scan: Scan;
}

export type Thread = { name: string } & Record<'cpu_seconds' | 'stored' | 'analyzed' | 'missed' | 'unread' | 'longest_seconds', number | null>;

export interface RecorderStatus {
  sources: Source[];
  buffers?: { source: string; longest_seconds_by_gbit: Record<string, number | null> }[];
  analyzers?: { stored: number; analyzed: number; missed: number; unread: number };
  threads?: Thread[];
  ring: {
    stored: number; stored_bytes: number; evicted: number; evicted_bytes: number;
    free_buckets: number; open_buckets: number; closed_buckets: number; reserved_buckets: number; reservations_revoked?: number;
  };
  tiers?: { tier: 'ram' | 'disk'; class?: string | null; bytes: number; history_seconds?: number | null }[];
  history_seconds?: number | null;
  history_goal_seconds?: number | null;
  history_limit_bytes?: number | null;
  when_full: 'record' | 'protect' | 'wait';
  triggers: number;
  suppressed: number;
  suppressed_by: Record<string, number>;
  clock_steps?: number;
  scripts_failed?: number;
  flows?: { live: number } | null;
  rules: number;
  rule_costs?: RuleCost[];
  inspection: { timed: number; mean_ns?: number | null };
  pins?: Pin[];
}

export type VerdictWord = 'complete' | 'incomplete' | 'failed';

interface DumpFacts {
  id: string;
  rule: string;
  rule_name?: string | null;
  trigger_time: string;
  from: string;
  to: string;
  packets: number;
  bytes: number;
}

export interface StoredDump extends DumpFacts {
  is_open: boolean;
  is_held: boolean;
  files: { name: string; bytes: number; sha256?: string | null }[];
  verdict?: VerdictWord | null;
}

export interface DumpReport extends DumpFacts {
  verdict: VerdictWord;
  clipped: string[];
  missing: Missing[];
  notes?: string[];
  error?: string | null;
  asked_by?: string | null;
  caller?: string | null;
}

export interface Dump {
  number?: number | null;
  report?: DumpReport | null;
  stored?: StoredDump | null;
}

export interface Dumps {
  dumps: Dump[];
  next?: string | null;
}

/** A line of the tree of fields, as Wireshark shows it. */
export interface Field {
  label: string;
  layer?: boolean;
  filter?: string;
  /** Index of the bytes in `Details.sources`; `start` and `length` are a range of these. */
  source?: number;
  start?: number;
  length?: number;
  generated?: boolean;
  severity?: string;
  /** The ID of another packet that the label names. */
  frame?: string;
  fields?: Field[];
}

export interface Details {
  id: string;
  time: string;
  sources: { name: string; length: number; hex: string }[];
  fields: Field[];
  context: { packets: number; before: number; is_limited: boolean };
  is_truncated: boolean;
}

export interface Stream {
  protocol: string;
  client: string;
  server: string;
  segments: { from: 'client' | 'server'; time: string; id?: string | null; hex?: string; missing?: number }[];
  client_bytes: number;
  server_bytes: number;
  remarks: string[];
  is_truncated: boolean;
}
