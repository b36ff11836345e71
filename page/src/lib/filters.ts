import type { Flow, Top, TopFlow } from './types';
import { rfc3339, type Range } from './time';

/** Names of IP protocols in pcap-filter(7). */
const PROTOCOLS: Record<number, string> = { 1: 'icmp', 2: 'igmp', 6: 'tcp', 17: 'udp', 50: 'esp', 58: 'icmp6', 132: 'sctp' };
const UNUSUAL: Record<number, string> = { 47: 'GRE', 58: 'ICMPv6' };

export function protocolName(proto: number | null | undefined): string {
  if (proto === null || proto === undefined) return 'not IP';
  return UNUSUAL[proto] ?? PROTOCOLS[proto]?.toUpperCase() ?? `IP protocol ${proto}`;
}

/** The filter of a protocol; empty: no filter selects it. */
export function protocolFilter(proto: number | null | undefined): string {
  if (proto === null || proto === undefined) return 'not ip and not ip6';
  return PROTOCOLS[proto] ?? `proto ${proto}`;
}

export const hostFilter = (address: string): string => `host ${address}`;

export function portFilter(proto: number | null, port: number): string {
  const name = PROTOCOLS[proto ?? 0];
  return `${name ? `${name} ` : ''}port ${port}`;
}

/** The filter of a flow, in both directions. */
export function flowFilter(flow: Flow): string {
  const proto = flow.proto === null ? '' : protocolFilter(flow.proto);
  return ends(proto, { address: flow.src_ip, port: flow.src_port }, { address: flow.dest_ip, port: flow.dest_port });
}

/** The filter of a row of the largest flows; empty: the flow is not IP. */
export function topFlowFilter(flow: TopFlow): string {
  const [a, b] = flow.ends;
  return a && b ? ends(protocolFilter(flow.proto), a, b) : '';
}

type End = { address: string; port?: number | null | undefined };

function ends(proto: string, a: End, b: End): string {
  const parts = [proto, `host ${a.address}`, `host ${b.address}`];
  for (const port of new Set([a.port, b.port])) if (typeof port === 'number') parts.push(`port ${port}`);
  return parts.filter(Boolean).join(' and ');
}

/** A row of the largest hosts, ports or flows. `filter` is empty: no filter selects it. */
export interface TopRow {
  name: string;
  filter: string;
  packets: number;
  bytes: number;
}

export function topRows(top: Top, kind: 'hosts' | 'ports' | 'flows'): TopRow[] {
  if (kind === 'hosts') return top.hosts.map((host) => ({ ...host, name: host.address, filter: hostFilter(host.address) }));
  if (kind === 'ports') return top.ports.map((port) => ({ ...port, name: `${protocolName(port.proto)} ${port.port}`, filter: portFilter(port.proto, port.port) }));
  return top.flows.map((flow) => ({ ...flow, name: flow.flow, filter: topFlowFilter(flow) }));
}

/** Both filters together. A part that the filter has already is not repeated. */
export function both(filter: string, part: string): string {
  const old = filter.trim();
  if (!old || !part) return old || part;
  if (old === part || old.endsWith(` and ${part}`)) return old;
  return `${/\bor\b|\|\|/.test(old) ? `(${old})` : old} and ${part}`;
}

/** A word of a shell's command line. */
export function quote(word: string): string {
  return /^[\w.,:/@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

export interface Query {
  range: Range | null;
  filter: string;
  communityId: string;
}

export function queryParameters({ range, filter, communityId }: Query): Record<string, string | undefined> {
  return {
    from: range ? rfc3339(range.from) : undefined,
    to: range ? rfc3339(range.to) : undefined,
    filter: filter || undefined,
    community_id: communityId || undefined,
  };
}

/** The command line with the same answer. The token is read from a file, never written out. */
export function command(kind: 'query' | 'curl' | 'wireshark', query: Query, base: URL): string {
  const parameters = queryParameters(query);
  if (kind === 'query') {
    const words = ['retroscope', 'query', '--url', base.origin + base.pathname.replace(/\/$/, ''), '--token-file', 'token'];
    if (query.range) words.push('--from', parameters.from!, '--to', parameters.to!);
    if (query.communityId) words.push('--community-id', query.communityId);
    words.push('-w', 'packets.pcapng');
    if (query.filter) words.push(query.filter);
    return words.map(quote).join(' ');
  }
  const url = new URL('v1/query', base);
  for (const [name, value] of Object.entries(parameters)) if (value) url.searchParams.set(name, value);
  const curl = `curl -H "Authorization: Bearer $(cat token)" ${quote(url.href)}`;
  return kind === 'curl' ? `${curl} -o packets.pcapng` : `${curl} | wireshark -k -i -`;
}

const RECENT_KEY = 'retroscope-filters';

export function recentFilters(): string[] {
  try {
    const kept: unknown = JSON.parse(localStorage.getItem(RECENT_KEY) ?? '[]');
    return Array.isArray(kept) ? kept.filter((one) => typeof one === 'string') : [];
  } catch {
    return [];
  }
}

/** Keeps the last twelve filters in the browser. */
export function rememberFilter(filter: string): string[] {
  const kept = [filter, ...recentFilters().filter((one) => one !== filter)].slice(0, 12);
  localStorage.setItem(RECENT_KEY, JSON.stringify(kept));
  return kept;
}
