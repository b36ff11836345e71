export function fromHex(hex: string): Uint8Array {
  const bytes = new Uint8Array(hex.length >> 1);
  for (let i = 0; i < bytes.length; i++) bytes[i] = Number.parseInt(hex.slice(2 * i, 2 * i + 2), 16);
  return bytes;
}

export const hexOf = (byte: number): string => byte.toString(16).padStart(2, '0');

/** Printable ASCII; other bytes are dots. */
export function ascii(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
}

/** A payload as text: ASCII with line ends and tabs; other bytes are dots. */
export function payloadText(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => ((byte >= 32 && byte < 127) || byte === 10 || byte === 9 ? String.fromCharCode(byte) : byte === 13 ? '' : '.')).join('');
}

/** Lines of a hex dump, as `hexdump -C`. */
export function hexLines(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = bytes.subarray(at, at + 16);
    lines.push(`${at.toString(16).padStart(4, '0')}  ${Array.from(part, hexOf).join(' ').padEnd(48)} ${ascii(part)}`);
  }
  return lines.join('\n');
}
