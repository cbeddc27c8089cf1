/**
 * Signs where tamper-evident sessions come to rest. The append that made one rest left a row for it, so nothing is lost with
 * the server that should have signed: what waits is looked for by every server, and the first signature stays.
 *
 * What is added to a session that rests is signed soon after, for all that came together: the next rest may be far, and
 * comes never to an archived session. Nothing in the database asks for that, so a server that dies in between leaves it out.
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
  readonly checkpoints: Pick<CheckpointStore, "unsigned" | "sign" | "request">;
  readonly signingKey: SigningKey;
  /** Watchers of the session have something to be told. */
  readonly onSigned: (sessionId: string, position: number) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

const SWEEP_EVERY_MS = 5_000;
/** Whoever appended signs at once; only what was left alone is swept up. */
const LEFT_ALONE_MS = 2_000;
/** What comes to a session within this time is signed together. */
const LOOK_EVERY_MS = 1_000;
/** The brain of a session may have yet to say that it has dealt with all. */
const LOOKS = 5;
const MAX_LOOKED_AT = 2_000;
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
  /** Sessions that something was added to, and how often they are still looked at. */
  private readonly added = new Map<string, number>();
  private looking: Promise<void> | undefined;
  private stops: (() => void)[] = [];
  private running: Promise<void> | undefined;
  private sweeps = false;
  private stopping = false;

  constructor(deps: CheckpointSignerDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    const { clock } = this.deps;
    this.stops = [
      clock.every(SWEEP_EVERY_MS, () => this.sweep()),
      clock.every(LOOK_EVERY_MS, () => this.look()),
    ];
    // What was left when the last server ended.
    this.sweep();
  }

  /** What is not signed by then is signed by another server, or later. */
  async stop(): Promise<void> {
    this.stopping = true;
    for (const stop of this.stops) stop();
    await this.looking;
    await this.running;
  }

  /** The session came to rest by an append of this replica. */
  due(sessionId: string): void {
    if (this.dueSessions.size < MAX_DUE) this.dueSessions.add(sessionId);
    this.run();
  }

  /** Something was added to the session, which may rest. */
  addedTo(sessionId: string): void {
    if (this.added.size < MAX_DUE || this.added.has(sessionId)) this.added.set(sessionId, LOOKS);
  }

  private look(): void {
    if (this.looking || this.stopping || this.added.size === 0) return;
    this.looking = this.requestForAdded()
      .catch((error) =>
        this.deps.log.warn({ error: messageOf(error) }, "could not ask what is to be signed now"),
      )
      .finally(() => {
        this.looking = undefined;
      });
  }

  private async requestForAdded(): Promise<void> {
    const sessionIds: string[] = [];
    for (const [sessionId, looks] of this.added) {
      if (sessionIds.length === MAX_LOOKED_AT) break;
      sessionIds.push(sessionId);
      // Whoever was looked at goes behind those that were not.
      this.added.delete(sessionId);
      if (looks > 1) this.added.set(sessionId, looks - 1);
    }
    for (const sessionId of await this.deps.checkpoints.request(sessionIds)) {
      this.added.delete(sessionId);
      this.due(sessionId);
    }
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
