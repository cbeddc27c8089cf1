/**
 * What a hand with the network `unrestricted` may not reach, as rules inside its network namespace, where it has no right
 * to change them: metadata services, link-local addresses, and the addresses that the engine's machine has by then (what
 * comes later: `machine-guard.ts`), so that a program learns at once that it may not. The agent puts them there by
 * `nsenter`, before anything of the hand runs; the engine itself needs iptables, so it is there.
 */
import { readFile } from "node:fs/promises";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import { ownAddresses } from "../../../kit/network/own-addresses.ts";
import { HandError } from "../driver.ts";
import { feedCommand } from "./feed-command.ts";

/** Link-local with the metadata service of most clouds; Alibaba's; Oracle's old one. */
const BLOCKED_V4 = ["169.254.0.0/16", "100.100.100.200/32", "192.0.0.192/32"] as const;
/** Amazon's, Google's; and link-local, where neighbours are still asked for their addresses. */
const BLOCKED_V6 = ["fd00:ec2::254/128", "fd20:ce::254/128", "fe80::/10"] as const;
const CHAIN = "TENDON-HAND";

export interface NetworkRulesOptions {
  /** The container's first process, as the engine's machine numbers it. */
  readonly pid: number;
  /** What its environment holds and no other process's: the number could be another machine's. */
  readonly mark: string;
  /** The network's gateway: the engine's machine. */
  readonly gateways: readonly string[];
  readonly clock: Clock;
}

/** Rejects with HandError, with the reason, when the rules are not all in place. */
export async function blockMetadata({ pid, mark, gateways, clock }: NetworkRulesOptions): Promise<void> {
  const refuse = (why: string) =>
    new HandError(
      `the network mode unrestricted needs rules inside the container's network, which this hand agent cannot set: ${why}`,
    );
  const environ = await readFile(`/proc/${pid}/environ`, "utf8").catch((error: unknown) => {
    throw refuse(`it cannot look at the container's process (${messageOf(error)})`);
  });
  if (!environ.split("\0").includes(mark)) throw refuse("the engine runs on another machine");
  const own = [...ownAddresses()].filter((address) => address !== "::1" && !address.startsWith("127."));
  const v4 = [...BLOCKED_V4, ...gateways, ...own].filter((address) => !address.includes(":"));
  const v6 = [...BLOCKED_V6, ...gateways, ...own].filter((address) => address.includes(":"));
  const set = async (program: string, rules: string) => {
    const command = ["nsenter", `--net=/proc/${pid}/ns/net`, program, "--noflush", "--wait"];
    await feedCommand(command, rules, clock).catch((error: unknown) => {
      throw refuse(messageOf(error));
    });
  };
  await set("iptables-restore", rulesOf(v4, []));
  // Without IPv6 in the kernel there is nothing to block.
  if (await readFile(`/proc/${pid}/net/if_inet6`).catch(() => undefined))
    await set("ip6tables-restore", rulesOf(v6, ["-p ipv6-icmp -j ACCEPT"]));
}

export function rulesOf(blocked: readonly string[], before: readonly string[]): string {
  const lines = [
    "*filter",
    `:${CHAIN} - [0:0]`,
    `-I OUTPUT 1 -j ${CHAIN}`,
    ...before.map((rule) => `-A ${CHAIN} ${rule}`),
    ...[...new Set(blocked)].map((address) => `-A ${CHAIN} -d ${address} -j REJECT`),
    "COMMIT",
  ];
  return `${lines.join("\n")}\n`;
}
