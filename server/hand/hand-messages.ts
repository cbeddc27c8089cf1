/** Records of the store as messages of the contract. */
import { create, fromJson, fromJsonString, type JsonValue, toJson } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { type EnvironmentSpec, EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import {
  type Hand,
  type HandAgent,
  HandAgentSchema,
  type HandResource,
  HandResourceSchema,
  HandSchema,
  HandState,
  type LeftProcess,
  LeftProcessSchema,
} from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandAgentRecord, MachineRecord, ToolRecord } from "../store/hand-agents.ts";
import type { HandRecord, HandStateName } from "../store/hands.ts";

const STATES: Readonly<Record<HandStateName, HandState>> = {
  provisioning: HandState.PROVISIONING,
  ready: HandState.READY,
  parked: HandState.PARKED,
  lost: HandState.LOST,
  released: HandState.RELEASED,
};

export function handMessage(hand: HandRecord, tools: readonly ToolRecord[]): Hand {
  return create(HandSchema, {
    id: hand.handId,
    workspaceId: hand.workspaceId,
    sessionId: hand.sessionId ?? "",
    slot: hand.slot,
    environmentId: hand.environmentId,
    handAgentId: hand.handAgentId ?? "",
    driver: hand.driver,
    state: STATES[hand.state],
    stateDetail: hand.stateDetail,
    ownerNumber: BigInt(hand.ownerNumber),
    tools: tools.map((tool) => ({ ...tool })),
    leftProcesses: (JSON.parse(hand.leftProcesses) as JsonValue[]).map((left) =>
      fromJson(LeftProcessSchema, left),
    ),
    createdAt: timestampFromDate(hand.createdAt),
    ...(hand.lastUsedAt === undefined ? {} : { lastUsedAt: timestampFromDate(hand.lastUsedAt) }),
  });
}

export function handAgentMessage(
  agent: HandAgentRecord,
  toolsOf: (digest: string) => readonly ToolRecord[],
): HandAgent {
  return create(HandAgentSchema, {
    id: agent.handAgentId,
    workspaceId: agent.workspaceId,
    pool: agent.pool,
    name: agent.name,
    labels: { ...agent.labels },
    online: agent.online,
    drivers: agent.drivers.map((driver) => ({
      name: driver.name,
      available: driver.available,
      detail: driver.detail,
      capabilities: [...driver.capabilities],
      images: [...(driver.images ?? [])],
      tools: toolsOf(driver.toolsDigest).map((tool) => ({ ...tool })),
    })),
    capacityHands: agent.capacityHands,
    hands: agent.hands,
    build: agent.build,
    generation: BigInt(agent.generation),
    ...(agent.machine === undefined ? {} : { resources: machineMessage(agent.machine) }),
    enrolledAt: timestampFromDate(agent.enrolledAt),
    ...(agent.lastSeenAt === undefined ? {} : { lastSeenAt: timestampFromDate(agent.lastSeenAt) }),
    ...(agent.revokedAt === undefined ? {} : { revokedAt: timestampFromDate(agent.revokedAt) }),
    ...(agent.duplicateSeenAt === undefined
      ? {}
      : { duplicateSeenAt: timestampFromDate(agent.duplicateSeenAt) }),
  });
}

function machineMessage(machine: MachineRecord) {
  return {
    cpuMillis: machine.cpuMillis,
    memoryBytes: BigInt(machine.memoryBytes),
    memoryFreeBytes: BigInt(machine.memoryFreeBytes),
    diskBytes: BigInt(machine.diskBytes),
    diskFreeBytes: BigInt(machine.diskFreeBytes),
  };
}

export function environmentOf(hand: HandRecord): EnvironmentSpec {
  return fromJsonString(EnvironmentSpecSchema, hand.environment, { ignoreUnknownFields: true });
}

export function resourcesOf(hand: HandRecord): HandResource[] {
  return (JSON.parse(hand.resources) as JsonValue[]).map((resource) =>
    fromJson(HandResourceSchema, resource),
  );
}

export function leftProcessesText(left: readonly LeftProcess[]): string {
  return JSON.stringify(left.map((process) => toJson(LeftProcessSchema, process)));
}
