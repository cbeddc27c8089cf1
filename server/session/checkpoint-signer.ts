/**
 * Signs where tamper-evident sessions come to rest. The append that made one rest left a row for it, so nothing is lost with
 * the server that should have signed: what waits is looked for by every server, and the first signature stays.
 *
 * What a database says is signed, so whoever writes to it could have other hashes signed in the place of old ones. This
 * server does not do it for what it has signed itself: it remembers the newest position of the sessions it signed last.
 */
import { signCheckpoint } from "../../kit/chain/checkpoint.ts";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { SigningKey } from "../../kit/sign/key-file.ts";
import type { CheckpointStore, UnsignedCheckpoint } from "../store/checkpoints.ts";

export interface CheckpointSignerDeps {
  readonly checkpoints: Pick<CheckpointStore, "unsigned" | "sign">;
  readonly signingKey: SigningKey;
  /** Watchers of the session have something to be told. */
  readonly onSigned: (sessionId: string, position: number) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

const SWEEP_EVERY_MS = 5_000;
/** Whoever appended signs at once; only what was left alone is swept up. */
const LEFT_ALONE_MS = 2_000;
const AT_ONCE = 100;
/** What else waits is found by the next sweep. */
const MAX_DUE = 10_000;
const MAX_REMEMBERED = 20_000;

export class CheckpointSigner implements Service {
  readonly name = "checkpoint signer";
  private readonly deps: CheckpointSignerDeps;
  private readonly dueSessions = new Set<string>();
  private readonly signedHere = new Map<string, number>();
  private readonly refused = new Set<string>();
  private stopCalling = () => {};
  private running: Promise<void> | undefined;
  private sweeps = false;
  private stopping = false;

  constructor(deps: CheckpointSignerDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    this.stopCalling = this.deps.clock.every(SWEEP_EVERY_MS, () => this.sweep());
    // What was left when the last server ended.
    this.sweep();
  }

  /** What is not signed by then is signed by another server, or later. */
  async stop(): Promise<void> {
    this.stopping = true;
    this.stopCalling();
    await this.running;
  }

  /** The session came to rest by an append of this replica. */
  due(sessionId: string): void {
    if (this.dueSessions.size < MAX_DUE) this.dueSessions.add(sessionId);
    this.run();
  }

  sweep(): void {
    this.sweeps = true;
    this.run();
  }

  private run(): void {
    if (this.running || this.stopping) return;
    const running = this.work().then(
      () => true,
      (error: unknown) => {
        this.deps.log.warn({ error: messageOf(error) }, "checkpoints could not be signed now");
        return false;
      },
    );
    this.running = running.then((wentWell) => {
      this.running = undefined;
      // After a failure the next sweep tries again.
      if (wentWell && this.dueSessions.size > 0) this.run();
    });
  }

  private async work(): Promise<void> {
    const { checkpoints } = this.deps;
    while (!this.stopping && (this.dueSessions.size > 0 || this.sweeps)) {
      const [sessionId] = this.dueSessions;
      if (sessionId !== undefined) {
        this.dueSessions.delete(sessionId);
        await this.signAll(await checkpoints.unsigned({ sessionId, waitingMs: 0, limit: AT_ONCE }));
        continue;
      }
      const waiting = await checkpoints.unsigned({ waitingMs: LEFT_ALONE_MS, limit: AT_ONCE });
      // A full list may not be all there is.
      this.sweeps = (await this.signAll(waiting)) === AT_ONCE;
    }
  }

  /** How many there are that others had not signed. */
  private async signAll(unsigned: readonly UnsignedCheckpoint[]): Promise<number> {
    const { checkpoints, signingKey, clock, onSigned } = this.deps;
    let signed = 0;
    for (const facts of unsigned) {
      if (this.stopping) break;
      if (this.wasSignedHere(facts)) continue;
      failpoint("server.before_checkpoint");
      const checkpoint = signCheckpoint(signingKey, { ...facts, signedAt: new Date(clock.nowMs()) });
      if (!(await checkpoints.sign(checkpoint))) continue;
      signed += 1;
      this.remember(facts);
      onSigned(facts.sessionId, facts.position);
    }
    return signed;
  }

  private wasSignedHere({ sessionId, position }: UnsignedCheckpoint): boolean {
    if (position > (this.signedHere.get(sessionId) ?? 0)) return false;
    const name = `${sessionId} ${position}`;
    if (!this.refused.has(name)) {
      this.deps.log.error(
        { sessionId, position },
        "a checkpoint at or behind one that this server has signed is to be signed again: it is not, the log may have been tampered with",
      );
      if (this.refused.size < MAX_REMEMBERED) this.refused.add(name);
    }
    return true;
  }

  private remember({ sessionId, position }: UnsignedCheckpoint): void {
    this.signedHere.delete(sessionId);
    this.signedHere.set(sessionId, position);
    if (this.signedHere.size > MAX_REMEMBERED) this.signedHere.delete(this.signedHere.keys().next().value!);
  }
}
