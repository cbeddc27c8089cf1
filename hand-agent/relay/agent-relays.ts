/** The relays of one hand agent. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { type Clock, within } from "../../kit/clock.ts";
import type { ProxySettings } from "../../kit/dial/proxy-rules.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { NameResolver } from "../../kit/network/name-resolver.ts";
import { HandError } from "../drivers/driver.ts";
import { type OwnProgram, ownProgram } from "../own-program.ts";
import type { SandboxTunnels } from "../tunnels/sandbox-tunnels.ts";
import { ConnectionBudget, type ConnectionLimits } from "./connection-table.ts";
import { HandTunnels } from "./hand-tunnels.ts";
import { HostPolicy } from "./host-policy.ts";
import { listenInNamespace } from "./namespace-listener.ts";
import { Outbound } from "./outbound.ts";
import { ownNetworkArgv } from "./own-network.ts";
import { RELAY_PORT, type Relay, type RelayProbe, type RelayRequest, type Relays } from "./relay.ts";
import { RelayServer } from "./relay-server.ts";

export interface AgentRelaysOptions {
  /** The corporate proxy of the agent's own network. */
  readonly proxy: ProxySettings;
  readonly clock: Clock;
  readonly log: Logger;
  /** How the agent starts itself; default: as it was started. */
  readonly ownProgram?: (args: readonly string[]) => OwnProgram;
  readonly resolver?: NameResolver;
  /** The way to the proxy; without it nothing is carried there. */
  readonly tunnels?: SandboxTunnels;
  readonly limits?: Partial<ConnectionLimits>;
}

/** Each takes two descriptors of the agent. */
const MAX_CONNECTIONS_OF_AGENT = 2_000;
const PROBE_WITHIN_MS = 10_000;
const PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

export class AgentRelays implements Relays {
  private readonly options: AgentRelaysOptions;
  private readonly outbound: Outbound;
  private readonly budget = new ConnectionBudget(MAX_CONNECTIONS_OF_AGENT);
  private probed: Promise<RelayProbe> | undefined;

  constructor(options: AgentRelaysOptions) {
    const { clock, proxy, resolver = new NameResolver({ clock }) } = options;
    this.options = options;
    this.outbound = new Outbound({ clock, proxy, resolver });
  }

  probe(): Promise<RelayProbe> {
    this.probed ??= this.tryOnce();
    return this.probed;
  }

  async start({ handId, namespace, allowedHosts, tunnels: traffic, signal }: RelayRequest): Promise<Relay> {
    const { clock, log, limits } = this.options;
    const policy = new HostPolicy(allowedHosts);
    const tunnels = traffic && new HandTunnels(traffic, this.options.tunnels);
    const servers = await this.listen(namespace, signal);
    const relay = new RelayServer({
      handId,
      policy,
      outbound: this.outbound,
      budget: this.budget,
      clock,
      log,
      ...(tunnels === undefined ? {} : { tunnels }),
      ...(limits === undefined ? {} : { limits }),
    });
    relay.serve(servers);
    return relay;
  }

  private listen(namespace: RelayRequest["namespace"], signal: AbortSignal | undefined) {
    const { clock, ownProgram: program = ownProgram } = this.options;
    return listenInNamespace({ namespace, port: RELAY_PORT, ownProgram: program, clock, signal }).catch(
      (error) => {
        if (error instanceof HandError)
          throw new HandError(`the network cannot be limited: ${error.message}`);
        throw error;
      },
    );
  }

  /** Makes a network of its own, as for a hand, and listens in it. */
  private async tryOnce(): Promise<RelayProbe> {
    const asRoot = process.geteuid?.() === 0;
    const [file = "", ...args] = ownNetworkArgv(["/bin/sh", "-c", "echo ready; read _"], { asRoot });
    const child = spawn(file, args, { stdio: ["pipe", "pipe", "pipe"], env: { PATH } });
    const closed = once(child, "close").catch(() => {});
    child.stdin.on("error", () => {});
    try {
      const ready = new Promise<void>((resolve, reject) => {
        let said = "";
        child.stderr.setEncoding("utf8").on("data", (text: string) => {
          said = (said + text).slice(0, 500);
        });
        child.stdout.once("data", () => resolve());
        child.once("error", reject);
        child.once("close", () => reject(new HandError(said.trim() || "no network of its own")));
      });
      const tooLate = () => new HandError("it took too long");
      await within(this.options.clock, PROBE_WITHIN_MS, ready, tooLate);
      for (const server of await this.listen({ pid: child.pid ?? -1 }, undefined)) server.close();
      return { available: true };
    } catch (error) {
      return { available: false, reason: messageOf(error) };
    } finally {
      child.kill("SIGKILL");
      await closed;
    }
  }
}
