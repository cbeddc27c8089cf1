/** What an agent says of itself, as the store keeps it. */
import { invalidField, messageOf } from "../../kit/errors.ts";
import type { HandAgentGreeting, ImagesChanged } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { DriverDescription, MachineResources } from "../../proto/gen/tendon/v1/hand_pb.js";
import {
  type DriverRecord,
  digestOfTools,
  type GreetingRecord,
  type MachineRecord,
  type ToolRecord,
} from "../store/hand-agents.ts";
import type { HandDeps } from "./deps.ts";

/** INVALID_FIELD for what the proto's own rules do not see. */
export function greetingRecord(greeting: HandAgentGreeting): GreetingRecord {
  const toolLists = new Map<string, readonly ToolRecord[]>();
  const drivers = greeting.drivers.map((driver): DriverRecord => {
    const tools = toolsOf(driver);
    const toolsDigest = digestOfTools(tools);
    toolLists.set(toolsDigest, tools);
    return {
      name: driver.name,
      available: driver.available,
      detail: driver.detail,
      capabilities: driver.capabilities,
      toolsDigest,
      images: driver.images,
    };
  });
  return {
    journalId: greeting.journalId,
    build: greeting.build,
    drivers,
    toolLists,
    labels: greeting.labels,
    capacityHands: greeting.capacityHands,
    machine: greeting.resources && machineRecord(greeting.resources),
  };
}

/** Only a hint for placement: the next one comes soon. */
export function noteMachine(
  { store, logger }: Pick<HandDeps, "store" | "logger">,
  facts: { readonly handAgentId: string; readonly generation: number },
  resources: MachineResources,
): void {
  store.handAgents.noteMachine({ ...facts, machine: machineRecord(resources) }).catch((error: unknown) => {
    logger.debug({ ...facts, error: messageOf(error) }, "what a hand agent's machine has was not stored");
  });
}

/** So is this. */
export function noteImages(
  { store, logger }: Pick<HandDeps, "store" | "logger">,
  facts: { readonly handAgentId: string; readonly generation: number },
  { driver, images }: ImagesChanged,
): void {
  store.handAgents.noteImages({ ...facts, driver, images }).catch((error: unknown) => {
    logger.debug({ ...facts, error: messageOf(error) }, "which images a hand agent has was not stored");
  });
}

function machineRecord(resources: MachineResources): MachineRecord {
  return {
    cpuMillis: resources.cpuMillis,
    memoryBytes: Number(resources.memoryBytes),
    memoryFreeBytes: Number(resources.memoryFreeBytes),
    diskBytes: Number(resources.diskBytes),
    diskFreeBytes: Number(resources.diskFreeBytes),
  };
}

function toolsOf(driver: DriverDescription): ToolRecord[] {
  return driver.tools.map(({ name, description, inputSchema }, index) => {
    try {
      const schema: unknown = JSON.parse(inputSchema);
      if (typeof schema !== "object" || schema === null || Array.isArray(schema))
        throw new Error("no object");
    } catch {
      throw invalidField(
        `greeting.drivers["${driver.name}"].tools[${index}].input_schema`,
        "must be JSON text of one object",
      );
    }
    return { name, description, inputSchema };
  });
}
