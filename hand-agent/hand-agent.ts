/** The whole agent as one service: takes up what an earlier life left, and keeps the connection. */

import { within } from "../kit/clock.ts";
import { type Connection as Dialled, type DialOptions, dial } from "../kit/dial/dial.ts";
import { isTendonError, messageOf } from "../kit/errors.ts";
import type { Service } from "../kit/lifecycle.ts";
import { StartupError } from "../kit/program.ts";
import type { SigningKey } from "../kit/sign/key-file.ts";
import { HandAgentService } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type AgentParts, type AgentPartsSettings, makeAgentParts } from "./agent-parts.ts";
import { carryOut } from "./commands.ts";
import { claimDataDir, type DataDir } from "./data-dir.ts";
import { logOffers, probeDrivers } from "./driver-offers.ts";
import type { Driver } from "./drivers/driver.ts";
import { enrollUntilDone } from "./enrollment.ts";
import type { Executions } from "./executions.ts";
import {
  AgentToken,
  EXIT_REVOKED,
  enroll,
  type Identity,
  loadIdentity,
  loadKey,
  revokedText,
} from "./identity.ts";
import { inTime } from "./in-time.ts";
import { proxyRefusal } from "./proxy-refusal.ts";
import { ServerGeneration } from "./server-generation.ts";
import { settled } from "./settled.ts";
import { Connection, type Tunnel } from "./tunnel/connection.ts";
import { buildGreeting } from "./tunnel/greeting.ts";
import { type Attempt, Supervisor } from "./tunnel/supervisor.ts";

export interface HandAgentOptions extends AgentPartsSettings {
  url: string;
  /** Needed until the agent has an identity. */
  joinToken?: string | undefined;
  dataDir: string;
  name: string;
  labels: Readonly<Record<string, string>>;
  caFile?: string | undefined;
  proxy: DialOptions["proxy"];
  once?: boolean;
  build: string;
  /** Made for the data directory once that is claimed. */
  drivers(dataDir: string, installationId: () => string): Driver[];
  /** How long running calls may go on once the agent was told to stop. */
  drainMs?: number;
  welcomeWithinMs?: number;
}

const DEFAULT_DRAIN_MS = 4_000;
/** For the server to take the last results. */
const LAST_RESULTS_MS = 1_000;
/** For what the server has asked for when the connection ends. */
const COMMANDS_WITHIN_MS = 5_000;
/** For an operator to see what a restored database does not know. */
const KEEP_AFTER_RESTORE_MS = 7 * 24 * 3_600_000;
const LOOK_AT_MACHINE_MS = 30_000;
/** Tokens live for four minutes. */
const RENEW_TOKEN_MS = 60_000;

export class HandAgent implements Service {
  readonly name = "hand-agent";
  /** Rejects with StartupError when the agent cannot go on, such as when it was revoked. */
  readonly ended: Promise<never>;
  private readonly options: HandAgentOptions;
  private readonly stopper = new AbortController();
  private readonly hurrier = new AbortController();
  private readonly supervisor: Supervisor;
  private rejectEnded!: (error: Error) => void;
  private dataDir: DataDir | undefined;
  private parts: AgentParts | undefined;
  private identity: Identity | undefined;
  private joinToken: string | undefined;
  private tunnel: Tunnel | undefined;
  /** Another process took the connection over; until this one has one again. */
  private superseded = false;
  /** Connections are met one after the other: their numbers tell by their order. */
  private meeting: Promise<void> = Promise.resolve();
  /** What the server has asked for and is not done. */
  private readonly commands = new Set<Promise<void>>();
  private running: Promise<void> | undefined;
  private starting: Promise<void> | undefined;
  private stopping: Promise<void> | undefined;

  constructor(options: HandAgentOptions) {
    this.options = options;
    this.joinToken = options.joinToken;
    this.ended = new Promise((_, reject) => {
      this.rejectEnded = reject;
    });
    this.ended.catch(() => {});
    const { clock, log, once } = options;
    this.supervisor = new Supervisor({
      newAttempt: () => this.newAttempt(),
      enrollAgain: () => this.enrollAgain(),
      clock,
      log,
      ...(once === undefined ? {} : { once }),
    });
  }

  /** Resolves when the agent is enrolled and dials; rejects with StartupError when that cannot be. */
  start(): Promise<void> {
    this.starting ??= this.startUp().catch(async (error) => {
      await this.parts?.offline.stop();
      await this.parts?.hands.stop();
      await this.parts?.journal.close();
      await this.dataDir?.release();
      this.parts = undefined;
      this.dataDir = undefined;
      throw error;
    });
    return this.starting;
  }

  stop(): Promise<void> {
    this.stopping ??= this.shutDown();
    return this.stopping;
  }

  /** While it stops: what still runs is ended now instead of being waited for. */
  hurry(): void {
    this.hurrier.abort();
  }

  private async startUp(): Promise<void> {
    const { options } = this;
    this.dataDir = await claimDataDir(options.dataDir, { clock: options.clock });
    const dataDir = this.dataDir.path;
    this.dialOrRefuse().close(); // a URL, proxy or CA file that cannot be used is told at once
    const drivers = options.drivers(dataDir, () => this.identity?.installationId ?? "");
    const key = await loadKey(dataDir).catch((error) => {
      throw new StartupError(messageOf(error));
    });
    // Both take their time; what one of them leaves behind is awaited also when the other fails.
    const joining = (async () => (await loadIdentity(dataDir)) ?? (await this.enrollFirst(key, dataDir)))();
    const [joined, offers] = await Promise.all([settled(joining), probeDrivers(drivers)]);
    this.identity = joined();
    logOffers(options.log, offers);
    const installationId = () => this.identity!.installationId;
    const tunnel = () => this.tunnel;
    const agentId = () => this.identity!.handAgentId;
    const belongings = { dataDir: this.dataDir, key, drivers, offers, installationId, agentId, tunnel };
    const parts = makeAgentParts(options, belongings);
    this.parts = parts;
    await parts.hands.recover().catch((error) => {
      throw new StartupError(messageOf(error));
    });
    parts.executions.restore();
    if (this.stopper.signal.aborted) return;
    this.running = this.supervise();
  }

  private async supervise(): Promise<void> {
    const end = await this.supervisor.run();
    if (end.kind === "revoked") {
      this.rejectEnded(new StartupError(revokedText(this.parts!.dataDir.path), EXIT_REVOKED));
    } else if (end.kind === "ended") this.rejectEnded(new StartupError(end.detail));
  }

  private async newAttempt(): Promise<Attempt> {
    const { clock, log, welcomeWithinMs } = this.options;
    const token = new AgentToken(this.parts!.key, this.identity!.handAgentId, clock);
    await token.renew();
    await this.parts!.machine.look();
    const dialled = this.dial(() => token.value());
    const stopRenewing = clock.every(RENEW_TOKEN_MS, () => void token.renew());
    const stopLooking = clock.every(LOOK_AT_MACHINE_MS, () => void this.parts!.machine.look());
    let stood = () => {};
    const connection = new Connection({
      client: dialled.client(HandAgentService),
      greeting: () => this.greeting(),
      onStanding: (tunnel) => {
        stood();
        this.stand(tunnel);
      },
      onCommand: (tunnel, command) => this.goesOn(carryOut({ ...this.parts!, log }, tunnel, command)),
      clock,
      ...(welcomeWithinMs === undefined ? {} : { welcomeWithinMs }),
    });
    return {
      run: async (onStanding) => {
        let hasStood = false;
        stood = () => {
          hasStood = true;
          onStanding();
        };
        try {
          const outcome = await connection.run();
          if (outcome.kind === "duplicated") this.superseded = true;
          if (outcome.kind !== "broken" || hasStood) return outcome;
          const refusal = await proxyRefusal(this.options);
          return refusal === undefined ? outcome : { kind: "broken", detail: refusal };
        } finally {
          this.tunnel = undefined;
          this.parts!.sandboxTunnels.disconnected();
          this.parts!.offline.disconnected();
          stopRenewing();
          stopLooking();
          dialled.close();
        }
      },
      stop: () => connection.stop(),
    };
  }

  private stand(tunnel: Tunnel): void {
    const { log } = this.options;
    const { generation, replicaId, installationId } = tunnel.welcome;
    this.tunnel = tunnel;
    this.superseded = false;
    log.info({ generation: Number(generation), replica: replicaId, url: this.options.url }, "connected");
    if (installationId !== this.identity!.installationId) {
      log.error({ installationId }, "the server is another installation than the one this agent joined");
    }
    this.parts!.sandboxTunnels.connected(tunnel);
    this.parts!.offline.connected();
    this.meeting = this.meeting.then(() => this.meetServer(generation));
    this.parts!.executions.attach({
      openStream: () => tunnel.client.streamExecution({ signal: tunnel.signal }),
      signal: tunnel.signal,
    });
    if (this.stopping !== undefined) tunnel.send(DRAINING);
  }

  private goesOn(command: Promise<void> | undefined): void {
    if (command === undefined) return;
    const done = command
      .catch((error) => this.options.log.error({ err: error }, "a command failed"))
      .then(() => void this.commands.delete(done));
    this.commands.add(done);
  }

  private async meetServer(generation: bigint): Promise<void> {
    const { dataDir, hands } = this.parts!;
    const { log } = this.options;
    try {
      if (!(await new ServerGeneration(dataDir.path).met(generation))) return;
      log.error(
        "the server's database was set back: hands that it does not know any more are kept for 7 days",
      );
      await hands.keepUnowned(this.options.clock.nowMs() + KEEP_AFTER_RESTORE_MS);
    } catch (error) {
      log.warn({ err: error }, "the number of the connection could not be noted");
    }
  }

  private greeting() {
    const { offers, journal, hands, executions } = this.parts!;
    const { build, labels, capacity } = this.options;
    return buildGreeting({
      build,
      installationId: this.identity!.installationId,
      journalId: journal.id,
      drivers: offers.map(({ description }) => description),
      labels,
      capacity,
      hands: hands.statuses(),
      executions: executions.statuses(),
      machine: this.parts!.machine.machine,
      superseded: this.superseded,
    });
  }

  private dial(token?: () => string): Dialled {
    const { url, caFile, proxy, clock } = this.options;
    return dial({ url, caFile, proxy, clock, token });
  }

  private dialOrRefuse(): Dialled {
    try {
      return this.dial();
    } catch (error) {
      throw new StartupError(messageOf(error));
    }
  }

  private async enrollFirst(key: SigningKey, dataDir: string): Promise<Identity> {
    if (this.joinToken === undefined) {
      const help = 'make one with "tendon hand-agent join-token" and give it as TENDON_JOIN_TOKEN_FILE';
      throw new StartupError(`this hand agent has not joined a server yet and has no join token; ${help}`);
    }
    const { clock, log, once } = this.options;
    return enrollUntilDone({
      enroll: () => this.enrollWith(key, dataDir, this.joinToken!),
      clock,
      log,
      once: once ?? false,
      signal: this.stopper.signal,
    });
  }

  private async enrollWith(key: SigningKey, dataDir: string, joinToken: string): Promise<Identity> {
    const { name, labels, url } = this.options;
    const dialled = this.dialOrRefuse();
    try {
      const client = dialled.client(HandAgentService);
      return await enroll({ client, key, joinToken, name, labels, dataDir, serverUrl: url });
    } catch (error) {
      const refusal = isTendonError(error, "UNAVAILABLE") ? await proxyRefusal(this.options) : undefined;
      throw refusal === undefined ? error : new Error(refusal);
    } finally {
      dialled.close();
    }
  }

  /** A server whose database is new does not know the agent; the join token, if there is one, is tried once more. */
  private async enrollAgain(): Promise<boolean> {
    const { joinToken } = this;
    if (joinToken === undefined) return false;
    this.joinToken = undefined;
    const { key, dataDir } = this.parts!;
    try {
      this.identity = await this.enrollWith(key, dataDir.path, joinToken);
      return true;
    } catch (error) {
      this.options.log.error(`could not join again: ${messageOf(error)}`);
      return false;
    }
  }

  private async shutDown(): Promise<void> {
    this.stopper.abort(new StartupError("the hand agent was stopped"));
    await this.starting?.catch(() => {});
    const { parts } = this;
    if (parts !== undefined) {
      this.tunnel?.send(DRAINING);
      parts.hands.drain();
      parts.executions.drain();
      await this.finishCalls(parts.executions);
      await parts.transfers.stop();
      await parts.offline.stop();
      await parts.hands.stop();
      this.supervisor.stop();
      await this.running;
      // Nothing more is asked for. What was, is written down before another process has the directory.
      await this.commandsDone();
      await this.meeting;
      await parts.executions.settled();
      await parts.journal.close();
    }
    await this.dataDir?.release();
  }

  private async commandsDone(): Promise<void> {
    const { clock, log } = this.options;
    const late = () => new Error("its driver does not answer");
    await within(clock, COMMANDS_WITHIN_MS, Promise.all(this.commands), late).catch((error) =>
      log.warn({ err: error }, "a command of the server's is left unfinished"),
    );
  }

  /** Lets calls end by themselves for a while, then ends them; their results go to the server or stay in the journal. */
  private async finishCalls(executions: Executions): Promise<void> {
    const { clock, drainMs, log } = this.options;
    const patience = drainMs ?? DEFAULT_DRAIN_MS;
    const idle = await inTime(clock, patience, (signal) => executions.whenIdle(signal), this.hurrier.signal);
    if (!idle) {
      log.warn("calls still run; they are ended");
      await executions.stopAll("the hand agent is stopping");
    }
    if (this.tunnel !== undefined)
      await inTime(clock, LAST_RESULTS_MS, (signal) => executions.whenStored(signal));
  }
}

const DRAINING = { case: "draining", value: { $typeName: "tendon.v1.HandAgentDraining" } } as const;
