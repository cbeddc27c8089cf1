/** One other replica of the server: the one connection to it, made when first needed, and what waits to be said. */
import { within } from "../../kit/clock.ts";
import { type Connection, type DialOptions, dial } from "../../kit/dial/dial.ts";
import { TendonError } from "../../kit/errors.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { CommandResult } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { PeerService } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { ProxyAnswer } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { PeerCommand, Peers, PeerTransfer } from "../ports/peers.ts";
import { askWithId } from "../ports/proxy-directory.ts";
import type { OpenTransfer } from "../ports/transfers.ts";
import type { FarEnd } from "../ports/tunnels.ts";
import { Announcer } from "./announcer.ts";
import { NoticeQueue } from "./notice-queue.ts";
import { openPeerTransfer } from "./peer-transfer.ts";
import { openPeerTunnel } from "./peer-tunnel.ts";
import { PreviewQueue } from "./preview-queue.ts";

export interface PeerReplicaOptions extends Omit<DialOptions, "clock"> {
  readonly replicaId: string;
  /** The replica that calls. */
  readonly ownReplicaId: string;
  readonly clock: NonNullable<DialOptions["clock"]>;
  /** Sessions that are watched here with previews. */
  readonly previewed: () => string[];
}

/** How much longer than the agent's answer the replica's is waited for; the deadline on the wire is this and one more. */
const SPARE_MS = 1_000;
export const WIRE_SPARE_MS = 2 * SPARE_MS;
const CONTROL_TIMEOUT_MS = 2_000;
const PREVIEW_TIMEOUT_MS = 1_000;

export class PeerReplica {
  readonly replicaId: string;
  readonly url: string;
  readonly previews: PreviewQueue;
  readonly notices: NoticeQueue;
  readonly announcer: Announcer;
  private readonly options: PeerReplicaOptions;
  private connection: Connection | undefined;
  private closed = false;

  constructor(options: PeerReplicaOptions) {
    this.options = options;
    this.replicaId = options.replicaId;
    this.url = options.url;
    const { clock, ownReplicaId, previewed } = options;
    this.previews = new PreviewQueue(clock, async (sessionId, previews) => {
      await this.client().forwardPreviews(
        { sessionId, previews: [...previews] },
        { deadlineMs: PREVIEW_TIMEOUT_MS },
      );
    });
    this.notices = new NoticeQueue(clock, async (kinds) => {
      const notices = kinds.map((kind) => ({ kind }));
      await this.client().forwardNotices({ notices }, { deadlineMs: CONTROL_TIMEOUT_MS });
    });
    this.announcer = new Announcer({
      clock,
      all: previewed,
      send: async ({ fromScratch, watched, unwatched }) => {
        const announcement = {
          replicaId: ownReplicaId,
          fromScratch,
          watched: [...watched],
          unwatched: [...unwatched],
        };
        const { startOver } = await this.client().announceWatched(announcement, {
          deadlineMs: CONTROL_TIMEOUT_MS,
        });
        return startOver;
      },
    });
  }

  /** A replica that does not answer is UNAVAILABLE; DEADLINE_EXCEEDED is the agent's. */
  async command(request: PeerCommand): Promise<CommandResult | undefined> {
    const { handAgentId, generation, command, timeoutMs, signal } = request;
    const late = new AbortController();
    const signals = signal === undefined ? late.signal : AbortSignal.any([signal, late.signal]);
    const answer = this.client().forwardCommand(
      { handAgentId, generation: BigInt(generation), command },
      { deadlineMs: timeoutMs + WIRE_SPARE_MS, signal: signals },
    );
    answer.catch(() => {});
    try {
      const spareMs = timeoutMs + SPARE_MS;
      return (await within(this.options.clock, spareMs, answer, () => this.silent())).result;
    } finally {
      late.abort();
    }
  }

  /** A replica that does not answer is UNAVAILABLE. */
  transfer(request: PeerTransfer): Promise<OpenTransfer> {
    return openPeerTransfer(this.client(), request, this.options.clock);
  }

  /** A replica that does not answer is UNAVAILABLE. */
  tunnel({ wanted, signal }: Omit<Parameters<Peers["tunnel"]>[0], "replicaId">): Promise<FarEnd> {
    return openPeerTunnel(this.client(), wanted, signal, this.options.clock);
  }

  async askProxy({ ask, timeoutMs, signal }: Parameters<Peers["askProxy"]>[0]): Promise<ProxyAnswer> {
    const kind = askWithId(ask, "");
    const options = { deadlineMs: timeoutMs + WIRE_SPARE_MS, ...(signal && { signal }) };
    const { answer } = await this.client().forwardProxyAsk({ kind }, options);
    if (answer === undefined) throw this.silent();
    return answer;
  }

  follow({ executionKey, fromOffset, signal }: Parameters<Peers["follow"]>[0]): ReturnType<Peers["follow"]> {
    return this.client().forwardExecution({ executionKey, fromOffset: BigInt(fromOffset) }, { signal });
  }

  /** Calls that are open end at once. */
  close(): void {
    this.closed = true;
    this.previews.stop();
    this.notices.stop();
    this.announcer.stop();
    this.connection?.close();
    this.connection = undefined;
  }

  private client(): Client<typeof PeerService> {
    if (this.closed) throw new TendonError("UNAVAILABLE", `replica "${this.replicaId}" is gone`);
    this.connection ??= dial(this.options);
    return this.connection.client(PeerService);
  }

  private silent(): TendonError {
    return new TendonError("UNAVAILABLE", `replica "${this.replicaId}" does not answer`);
  }
}
