/** A log in memory with the contract's promises: dense positions, idempotent appends, fencing, one result per call. */
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type Event,
  type EventInput,
  EventSchema,
  type LeaseProof,
} from "../../proto/gen/tendon/v1/event_pb.js";
import { EventOrder, type GetEventsRequest } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { WorkConnection } from "./scripted-work-connection.ts";

export interface ScriptedSession {
  readonly id: string;
  readonly spec: AgentSpec;
  readonly events: readonly Event[];
  readonly epoch: bigint;
  readonly isHeld: boolean;
  /** Appends as a client does, and offers the session when there is work. */
  send(...events: { type: string; payload: object }[]): string[];
  say(text: string): string;
  /** Gives the lease to nobody, under a newer epoch, without telling the holder. */
  fence(): void;
  types(): string[];
  payloads(type: string): Record<string, unknown>[];
}

/** What a session needs of the server that it is at. */
interface SessionHost {
  /** Texts above this are left out of pushes. */
  readonly inlineLimit: number;
  /** Gives the session to a harness when it has work and none. */
  offer(session: Session): void;
}

export class Session implements ScriptedSession {
  readonly id = newId("session");
  readonly events: Event[] = [];
  readonly spec: AgentSpec;
  private readonly server: SessionHost;
  epoch = 0n;
  leaseId: string | undefined;
  holder: WorkConnection | undefined;
  known = 0n;
  rested = 0n;
  notBeforeMs = 0;

  constructor(server: SessionHost, spec: AgentSpec, log: readonly Event[]) {
    this.server = server;
    this.spec = spec;
    for (const event of log) this.events.push(event);
  }

  get head(): bigint {
    return BigInt(this.events.length);
  }

  get isHeld(): boolean {
    return this.leaseId !== undefined;
  }

  get hasWork(): boolean {
    const isWork = ({ type }: Event) => type.startsWith("user.") || type === "agent.tool_result";
    const newest = this.events.findLast(isWork)?.position ?? 0n;
    const isRunning = this.status() !== "session.status_idle" && this.events.length > 0 && newest > 0n;
    return newest > this.rested || (isRunning && !this.isHeld);
  }

  private status(): string {
    return (
      this.events.findLast(({ type }) => type.startsWith("session.status_"))?.type ?? "session.status_idle"
    );
  }

  types(): string[] {
    return this.events.map(({ type }) => type);
  }

  payloads(type: string): Record<string, unknown>[] {
    return this.events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload));
  }

  send(...events: { type: string; payload: object }[]): string[] {
    const inputs = events.map(({ type, payload }) => ({
      id: newId("event"),
      type,
      payload: JSON.stringify(payload),
    }));
    this.append(inputs);
    return inputs.map(({ id }) => id);
  }

  say(text: string): string {
    return this.send({ type: "user.message", payload: { content: [{ type: "text", text }] } })[0]!;
  }

  fence(): void {
    this.epoch += 1n;
    this.leaseId = newId("lease");
    this.holder = undefined;
  }

  check(lease: LeaseProof | undefined): void {
    if (lease === undefined || lease.leaseId !== this.leaseId || lease.epoch !== this.epoch)
      throw new TendonError("LEASE_FENCED", "a newer brain holds this session");
  }

  append(
    inputs: readonly (Pick<EventInput, "id" | "type" | "payload"> & Partial<EventInput>)[],
    byHolder = false,
  ) {
    const known = inputs.map(({ id }) => this.events.find((event) => event.id === id));
    if (known.every((event) => event !== undefined))
      return known.map((event) => ({ id: event!.id, position: event!.position, duplicate: true }));
    for (const { type, payload } of inputs) {
      const answered = answeredBy(type, payload);
      if (answered && this.events.some((event) => answeredBy(event.type, event.payload) === answered))
        throw new TendonError("CALL_ALREADY_ANSWERED", `${answered} has a result`);
    }
    const first = this.head + 1n;
    const receipts = inputs.map(({ id, type, payload, internal = "", threadId = "" }) => {
      const position = this.head + 1n;
      const createdAt = timestampFromDate(new Date());
      this.events.push(
        create(EventSchema, { id, position, type, payload: payload || "{}", internal, threadId, createdAt }),
      );
      return { id, position, duplicate: false };
    });
    if (byHolder && first === this.known + 1n) this.known = this.head;
    this.push();
    this.server.offer(this);
    return receipts;
  }

  push(): void {
    if (this.holder === undefined || this.head <= this.known) return;
    const events = this.events.slice(Number(this.known));
    this.known = this.head;
    const isSmall = events.every(({ payload }) => payload.length <= this.server.inlineLimit);
    const value = { leaseId: this.leaseId!, head: this.head, events: isSmall ? events : [] };
    this.holder.send({ case: "logAdvanced", value: { $typeName: "tendon.v1.LogAdvanced", ...value } });
  }
}

export function answeredBy(type: string, payload: string): string | undefined {
  if (!/_result$/.test(type)) return undefined;
  const { tool_use_id, custom_tool_use_id } = JSON.parse(payload || "{}");
  return tool_use_id ?? custom_tool_use_id;
}

/** Five events at most, so that readers have to go on. */
export function sliceOf(
  log: readonly Event[],
  request: GetEventsRequest,
): { events: Event[]; hasMore: boolean } {
  const { afterPosition, beforePosition, limit, types, order } = request;
  const fitting = log.filter(
    ({ position, type }) =>
      position > afterPosition &&
      (beforePosition === 0n || position < beforePosition) &&
      (types.length === 0 || types.includes(type)),
  );
  if (order === EventOrder.DESCENDING) fitting.reverse();
  const events = fitting.slice(0, Math.min(limit || 100, 5));
  return { events, hasMore: events.length < fitting.length };
}

export function shortened(event: Event, limit: number): Event {
  const copy = create(EventSchema, { ...event });
  if (event.payload.length > limit) {
    copy.payload = "";
    copy.payloadOmitted = {
      $typeName: "tendon.v1.OmittedText",
      sizeBytes: BigInt(Buffer.byteLength(event.payload)),
      sha256: "",
    };
  }
  return copy;
}
