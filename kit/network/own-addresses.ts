/**
 * All addresses of this machine, asked of the kernel's own tables: the list that Node gives leaves out interfaces that
 * are up without a link, such as a bridge that nobody is connected to, and their addresses answer all the same.
 */
import { readFileSync } from "node:fs";
import { networkInterfaces } from "node:os";

/** IPv4, and IPv6 in its shortest form. Loopback is among them. Addresses may come later: ask each time. */
export function ownAddresses(): Set<string> {
  const listed = Object.values(networkInterfaces()).flatMap(
    (each) => each?.map(({ address }) => address) ?? [],
  );
  return new Set([
    ...listed,
    ...localV4(textOf("/proc/net/fib_trie")),
    ...localV6(textOf("/proc/net/if_inet6")),
  ]);
}

/** From the routing table as the kernel prints it: an address stands above its line "/32 host LOCAL". */
export function localV4(table: string): string[] {
  return [...table.matchAll(/\|-- ([0-9.]+)\n(?:\s+\/\d+ .*\n)*?\s+\/32 host LOCAL/g)].map(
    ([, address = ""]) => address,
  );
}

/** From lines that begin with 32 hexadecimal digits. */
export function localV6(table: string): string[] {
  return [...table.matchAll(/^([0-9a-f]{32}) /gm)].map(([, digits = ""]) => {
    const groups = digits.match(/.{4}/g) ?? [];
    return new URL(`http://[${groups.join(":")}]/`).hostname.slice(1, -1);
  });
}

/** Not every system has these tables. */
function textOf(path: string): string {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return "";
  }
}
