/** What the agent knows of one hand while it has it. */
import type { ProvisionCommand } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { HandState } from "../proto/gen/tendon/v1/hand_pb.js";
import type { Hand } from "./drivers/driver.ts";
import type { HandRecord } from "./hands-file.ts";
import { mountConfigOf } from "./mounts/mount-config.ts";
import type { HandTools } from "./tools/hand-tools.ts";

/** A hand as the server is told of it. */
export interface HandStatus {
  readonly handId: string;
  readonly state: HandState;
  readonly detail: string;
  readonly driver: string;
  readonly ownerNumber: bigint;
}

export interface LiveHand {
  readonly hand: Hand;
  readonly tools: HandTools;
  /** True until the first call has been told that the processes of before are gone (H5). */
  isNews: boolean;
}

export interface HandSlot {
  record: HandRecord;
  live: LiveHand | undefined;
  detail: string;
  lost: boolean;
  turn: Promise<unknown>;
}

/** Of a hand that is about to be made. */
export function newRecord(command: ProvisionCommand, installationId: string): HandRecord {
  const { handId, driver, ownerNumber, environment } = command;
  return {
    handId,
    driver,
    state: "provisioning",
    handle: null,
    ownerNumber: ownerNumber.toString(),
    installationId,
    stallTimeoutMs: Number(environment?.stallTimeoutMs ?? 0n),
    mounts: mountConfigOf(command),
  };
}

export function newSlot(record: HandRecord): HandSlot {
  return { record, live: undefined, detail: "", lost: false, turn: Promise.resolve() };
}

/** H-4: whether the number has grown. */
export function raiseOwner(record: HandRecord, ownerNumber: bigint): boolean {
  if (ownerNumber <= BigInt(record.ownerNumber)) return false;
  record.ownerNumber = ownerNumber.toString();
  return true;
}

export function statusOf({ record, lost, detail }: HandSlot): HandStatus {
  const states = {
    provisioning: HandState.PROVISIONING,
    ready: HandState.READY,
    parked: HandState.PARKED,
  };
  const state = lost ? HandState.LOST : states[record.state];
  const { handId, driver } = record;
  return { handId, state, detail: detail.slice(0, 1000), driver, ownerNumber: BigInt(record.ownerNumber) };
}
