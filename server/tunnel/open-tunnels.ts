/** The tunnels that go through this replica: bounded, and ended when they stand still or this replica stops. */
import { type Clock, within } from "../../kit/clock.ts";
import { notFound, TendonError } from "../../kit/errors.ts";
import type { TunnelPart } from "../../kit/tunnel/tunnel-part.ts";
import type { TunnelCall } from "../ports/tunnels.ts";
import { Joint } from "./joint.ts";
import { refusal } from "./rules.ts";

export interface TunnelLimits {
  /** Through this replica. */
  readonly all: number;
  /** Of one hand agent: its connection carries so many streams, and calls need some. */
  readonly ofAgent: number;
  readonly ofHand: number;
  /** For who was asked to open its end. */
  readonly openWithinMs: number;
}

export const TUNNEL_LIMITS: TunnelLimits = { all: 4_000, ofAgent: 1_000, ofHand: 256, openWithinMs: 10_000 };

/** Who a tunnel counts for. */
export interface Counted {
  readonly handAgentId?: string;
  readonly handId?: string;
}

interface Entry extends Counted {
  readonly joint: Joint;
  /** The connection that the asked end hangs on; empty until one was asked. */
  asked: string;
}

const SWEEP_MS = 1_000;

export class OpenTunnels {
  private readonly clock: Clock;
  private readonly limits: TunnelLimits;
  private readonly entries = new Map<string, Entry>();
  private stopSweeping = () => {};
  private refused: TendonError | undefined;

  constructor(clock: Clock, limits: TunnelLimits) {
    this.clock = clock;
    this.limits = limits;
  }

  get size(): number {
    return this.entries.size;
  }

  start(): void {
    this.stopSweeping = this.clock.every(SWEEP_MS, () => {
      for (const { joint } of this.entries.values()) joint.endIfQuiet();
    });
  }

  stop(): void {
    this.stopSweeping();
    this.endAll(new TendonError("DRAINING", "the server stops; connect again", { part: "tunnel" }));
  }

  /** No new ones from now on. */
  refuse(error: TendonError): void {
    this.refused = error;
  }

  endAll(error: TendonError): void {
    for (const { joint } of this.entries.values()) joint.fail(error);
  }

  /** A new one. Throws LIMIT_EXCEEDED, DRAINING. */
  add(tunnelId: string, counted: Counted): Joint {
    if (this.refused !== undefined) throw this.refused;
    const { handAgentId, handId } = counted;
    const all = [...this.entries.values()];
    const count = (test: (entry: Entry) => boolean) => all.filter(test).length;
    const isFull =
      all.length >= this.limits.all ||
      (handId !== undefined && count((each) => each.handId === handId) >= this.limits.ofHand) ||
      (handAgentId !== undefined && count((each) => each.handAgentId === handAgentId) >= this.limits.ofAgent);
    if (isFull) throw refusal("LIMIT_EXCEEDED", "too many connections are open; try again later");
    if (this.entries.has(tunnelId)) throw new TendonError("ALREADY_EXISTS", "the tunnel is open already");
    const joint = new Joint(this.clock, () => this.entries.delete(tunnelId));
    this.entries.set(tunnelId, { joint, asked: "", ...counted });
    return joint;
  }

  /** Waits for the end that was asked for over the connection `by`. When it does not come, the tunnel has failed. */
  async awaitAsked(tunnelId: string, by: string, asked: Promise<unknown>, joint: Joint): Promise<void> {
    const entry = this.entries.get(tunnelId);
    if (entry !== undefined) entry.asked = by;
    asked.catch((error: unknown) => joint.fail(error));
    const { openWithinMs } = this.limits;
    try {
      await within(this.clock, openWithinMs, joint.arrived(1), () =>
        refusal("DEADLINE_EXCEEDED", `the other end was not opened within ${openWithinMs} ms`),
      );
    } catch (error) {
      joint.fail(error);
      throw error;
    }
  }

  /** The end that was asked for is here: what its call is to be sent. NOT_FOUND for what nobody asked `agent` for. */
  join(
    tunnelId: string,
    parts: AsyncIterator<TunnelPart>,
    call: TunnelCall,
    agent?: string,
  ): AsyncGenerator<TunnelPart> {
    const entry = this.entries.get(tunnelId);
    const isAsked = entry !== undefined && entry.asked !== "" && !entry.joint.hasArrived(1);
    if (!isAsked || (agent !== undefined && entry.asked !== agent)) throw notFound("tunnel", tunnelId);
    return entry.joint.carry(1, parts, call);
  }

  /** A connection over which ends were asked for has ended. */
  connectionGone(asked: string, error: TendonError): void {
    for (const entry of this.entries.values()) if (entry.asked === asked) entry.joint.fail(error);
  }
}
