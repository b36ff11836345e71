import { expect, it } from 'vitest';
import { fromHex, hexLines, payloadText } from '../src/lib/bytes';
import { both, command, flowFilter, portFilter, quote, topFlowFilter } from '../src/lib/filters';
import { visible } from '../src/lib/format';
import { parseRfc3339 } from '../src/lib/time';

it('narrows a filter', () => {
  expect(both('', 'host 192.0.2.7')).toBe('host 192.0.2.7');
  expect(both('tcp or udp', 'host 192.0.2.7')).toBe('(tcp or udp) and host 192.0.2.7');
  expect(both('tcp and host 192.0.2.7', 'host 192.0.2.7')).toBe('tcp and host 192.0.2.7');
});

it('writes the filter of a flow', () => {
  const flow = { src_ip: '192.0.2.7', src_port: 4000, dest_ip: '198.51.100.2', dest_port: 80, proto: 6 };
  expect(flowFilter(flow)).toBe('tcp and host 192.0.2.7 and host 198.51.100.2 and port 4000 and port 80');
  expect(portFilter(17, 53)).toBe('udp port 53');
  const ends = [{ address: '2001:db8::1' }, { address: '2001:db8::2' }];
  expect(topFlowFilter({ flow: '', ends, proto: 58, packets: 1, bytes: 1 })).toBe('icmp6 and host 2001:db8::1 and host 2001:db8::2');
});

it('quotes commands, and writes no token', () => {
  expect(quote(`it's`)).toBe(`'it'\\''s'`);
  const range = { from: parseRfc3339('2026-11-20T19:15:03.5Z')!, to: parseRfc3339('2026-11-20T19:15:04Z')! };
  const query = { range, filter: 'udp port 53', communityId: '' };
  const at = new URL('https://tap.example:8443/scope/');
  expect(command('query', query, at)).toBe(
    `retroscope query --url https://tap.example:8443/scope --token-file token --from 2026-11-20T19:15:03.5Z --to 2026-11-20T19:15:04Z -w packets.pcapng 'udp port 53'`,
  );
  expect(command('wireshark', query, at)).toBe(
    `curl -H "Authorization: Bearer $(cat token)" 'https://tap.example:8443/scope/v1/query?from=2026-11-20T19%3A15%3A03.5Z&to=2026-11-20T19%3A15%3A04Z&filter=udp+port+53' | wireshark -k -i -`,
  );
});

it('shows bytes', () => {
  expect(hexLines(fromHex('474554202f0d0a'))).toBe(`0000  ${'47 45 54 20 2f 0d 0a'.padEnd(48)} GET /..`);
  expect(payloadText(fromHex('4745540d0aff'))).toBe('GET\n.');
});

it('shows characters that change the look of a text', () => {
  expect(visible('a\u202eb\u001b[31m')).toBe('a\\u{202e}b\\u{1b}[31m');
});
