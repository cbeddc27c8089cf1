/**
 * A session's log as a file in a hand: lines are only added, so that programs may follow it. Once it is large it becomes
 * `events.1.ndjson`, in the place of the one before, and a new one begins: the newest 32 to 64 MiB are there.
 */
import type { ReadSessionLogResponse } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandMounts } from "../drivers/driver.ts";
import { SESSION_DIR } from "./mount-config.ts";
import type { LogState } from "./mount-state.ts";

export type ReadLog = (afterPosition: bigint) => AsyncIterable<ReadSessionLogResponse>;

const FILE = `${SESSION_DIR}/events.ndjson`;
const BEFORE = `${SESSION_DIR}/events.1.ndjson`;
const MAX_BYTES = 32 * 1024 * 1024;
const MODE = 0o644;

export interface SessionLogOptions {
  readonly mounts: HandMounts;
  readonly ownerNumber: bigint;
  /** How it was left; undefined for a new hand. */
  readonly state: LogState | undefined;
  readonly readLog: ReadLog;
  /** Told after each piece that was added: what was not saved is written again at the same place. */
  readonly save: (state: LogState) => Promise<void>;
  readonly maxBytes?: number;
}

/** Rejects when the server cannot be reached; what came by then stays. */
export async function bringLogUpToDate(options: SessionLogOptions): Promise<void> {
  const { mounts, ownerNumber, readLog, save, maxBytes = MAX_BYTES } = options;
  let state: LogState | undefined = options.state;
  // Another session's log is nothing for this one.
  if (state?.ownerNumber !== String(ownerNumber)) {
    await mounts.files.remove(BEFORE);
    state = { ownerNumber: String(ownerNumber), sessionId: "", position: "0", bytes: 0 };
    await mounts.files.writeFrom(FILE, 0, new Uint8Array(), MODE);
    await save(state);
  }
  for await (const { sessionId, lines, position } of readLog(BigInt(state.position))) {
    if (lines.byteLength === 0) continue;
    if (state.bytes > 0 && state.bytes + lines.byteLength > maxBytes) {
      await mounts.files.rename(FILE, BEFORE);
      state = { ...state, bytes: 0 };
    }
    await mounts.files.writeFrom(FILE, state.bytes, lines, MODE);
    const bytes: number = state.bytes + lines.byteLength;
    state = { ...state, sessionId, position: String(position), bytes };
    await save(state);
  }
}
