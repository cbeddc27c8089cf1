/** A hand as the contract tells of it. */
import { create } from "@bufbuild/protobuf";
import { type HandReport, HandReportSchema } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { ProcessInfo } from "./drivers/driver.ts";
import type { HandStatus } from "./hand-slot.ts";

const MAX_LEFT_PROCESSES = 100;
const MAX_COMMAND_CHARS = 1_000;

export function handReport(status: HandStatus, left: readonly ProcessInfo[] = []): HandReport {
  return create(HandReportSchema, {
    handId: status.handId,
    state: status.state,
    detail: status.detail,
    driver: status.driver,
    ownerNumber: status.ownerNumber,
    leftProcesses: left.slice(0, MAX_LEFT_PROCESSES).map(({ pid, command, callId }) => ({
      pid: BigInt(pid),
      executionId: callId === undefined ? "" : callId.slice(callId.indexOf("/") + 1),
      command: command.slice(0, MAX_COMMAND_CHARS),
    })),
  });
}
