/**
 * One rule of the engine's machine for the bridge of this agent's hands: what comes from there and is for the machine
 * itself, or for everybody on the link, is dropped. The kernel decides which addresses are the machine's at the moment a
 * packet comes, so those that appear later are guarded too, as are ports that it forwards. It speaks of that bridge alone.
 */
import { access, readFile } from "node:fs/promises";
import type { Clock } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import { HandError } from "../driver.ts";
import { feedCommand } from "./feed-command.ts";

/** Neighbours ask for each other's IPv6 addresses by it. */
const RULES: Readonly<Record<"iptables" | "ip6tables", readonly string[]>> = {
  iptables: [],
  ip6tables: ["!", "-p", "ipv6-icmp"],
};

/** Puts the rule there unless it is. Rejects with HandError, with the reason, when it cannot. */
export async function guardMachine(bridge: string, clock: Clock): Promise<void> {
  try {
    await access(`/sys/class/net/${bridge}/bridge`).catch(() => {
      throw new Error("the engine runs on another machine, or in another network namespace");
    });
    await guard("iptables", bridge, clock);
    // Without IPv6 in the kernel there is nothing to guard.
    if (await readFile("/proc/net/if_inet6").catch(() => undefined)) await guard("ip6tables", bridge, clock);
  } catch (error) {
    throw new HandError(
      `the network mode unrestricted needs a rule that keeps hands from the machine, which this hand agent cannot set: ${messageOf(error)}`,
    );
  }
}

/** After the bridge is gone. */
export async function removeGuard(bridge: string, clock: Clock): Promise<void> {
  for (const program of ["iptables", "ip6tables"] as const)
    await change(program, "-D", bridge, clock).catch(() => {});
}

async function guard(program: "iptables" | "ip6tables", bridge: string, clock: Clock): Promise<void> {
  await change(program, "-C", bridge, clock).catch(() => change(program, "-I", bridge, clock));
}

/** In the table that is asked before any other, and before ports are forwarded. */
function change(
  program: "iptables" | "ip6tables",
  how: "-C" | "-I" | "-D",
  bridge: string,
  clock: Clock,
): Promise<void> {
  const what = [
    "-i",
    bridge,
    ...RULES[program],
    "-m",
    "addrtype",
    "!",
    "--dst-type",
    "UNICAST",
    "-j",
    "DROP",
  ];
  return feedCommand([program, "--wait", "5", "-t", "raw", how, "PREROUTING", ...what], "", clock);
}
