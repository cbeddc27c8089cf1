/** The first message of a connection: who the agent is and what it has. */
import { create } from "@bufbuild/protobuf";
import {
  type HandAgentGreeting,
  HandAgentGreetingSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { DriverDescription, MachineResources } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecutionStatus } from "../executions.ts";
import { handReport } from "../hand-report.ts";
import type { HandStatus } from "../hand-slot.ts";

/**
 * The versions of the protocol that this build speaks. A build of the release after a change speaks the old one and the
 * new one, so that agents and servers can be updated one after the other.
 */
export const PROTOCOL_VERSIONS = { oldest: 1, newest: 1 };

/** The protocol's own bounds; the agent's capacities are far below. */
const MAX_HANDS = 10_000;
const MAX_EXECUTIONS = 10_000;

export interface GreetingFacts {
  build: string;
  installationId: string;
  journalId: string;
  drivers: DriverDescription[];
  labels: Readonly<Record<string, string>>;
  capacity: number;
  hands: readonly HandStatus[];
  executions: readonly ExecutionStatus[];
  machine: MachineResources | undefined;
  /** Another process took this one's connection over. */
  superseded: boolean;
}

export function buildGreeting(facts: GreetingFacts): HandAgentGreeting {
  return create(HandAgentGreetingSchema, {
    protocolVersion: PROTOCOL_VERSIONS.newest,
    oldestProtocolVersion: PROTOCOL_VERSIONS.oldest,
    build: facts.build,
    installationId: facts.installationId,
    journalId: facts.journalId,
    drivers: facts.drivers,
    labels: { ...facts.labels },
    capacityHands: facts.capacity,
    superseded: facts.superseded,
    ...(facts.machine === undefined ? {} : { resources: facts.machine }),
    hands: facts.hands.slice(0, MAX_HANDS).map((hand) => handReport(hand)),
    executions: facts.executions.slice(0, MAX_EXECUTIONS).map(({ key, running, outputBytes }) => ({
      executionKey: key,
      running,
      outputBytes: BigInt(outputBytes),
    })),
  });
}
