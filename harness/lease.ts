/** A lease as its holder knows it: the right to be a session's brain, until told or found otherwise (E1). */
import { create } from "@bufbuild/protobuf";
import { type LeaseProof, LeaseProofSchema } from "../proto/gen/tendon/v1/event_pb.js";

/** Why whatever runs under a lease has to stop. */
export class LeaseEnded extends Error {
  override readonly name = "LeaseEnded";
}

export class Lease {
  readonly sessionId: string;
  readonly proof: LeaseProof;
  /** Opens the session's MCP endpoints; renewed with the lease. */
  sessionToken: string;
  /** Newest position that the holder has taken in. */
  position = 0n;
  private readonly controller = new AbortController();
  private liveUntilMs: number;

  /** `liveUntilMs` is on the monotonic clock: when the lease ends if no renewal is confirmed. */
  constructor(
    sessionId: string,
    proof: { leaseId: string; epoch: bigint },
    sessionToken: string,
    liveUntilMs: number,
  ) {
    this.sessionId = sessionId;
    this.proof = create(LeaseProofSchema, { leaseId: proof.leaseId, epoch: proof.epoch });
    this.sessionToken = sessionToken;
    this.liveUntilMs = liveUntilMs;
  }

  get id(): string {
    return this.proof.leaseId;
  }

  /** Aborts with a LeaseEnded once the lease is over. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  get isOver(): boolean {
    return this.controller.signal.aborted;
  }

  renewed(liveUntilMs: number): void {
    this.liveUntilMs = Math.max(this.liveUntilMs, liveUntilMs);
  }

  hasRunOut(nowMonotonicMs: number): boolean {
    return nowMonotonicMs >= this.liveUntilMs;
  }

  end(why: string): void {
    if (!this.isOver) this.controller.abort(new LeaseEnded(why));
  }
}
