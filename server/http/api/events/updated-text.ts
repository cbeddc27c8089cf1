/** What changed of a session in the words of existing clients (pure). The log has it in those of the contract. */
import { fromJson, type JsonObject } from "@bufbuild/protobuf";
import { AgentSchema } from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { BudgetSchema } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { sessionAgentJson } from "../agents/agent-json.ts";
import { NO_MEMBERS } from "../agents/roster.ts";
import { budgetJson } from "../sessions/session-json.ts";

const LENIENT = { ignoreUnknownFields: true };

/** Of a `session.updated`: its payload, with agent and budget as these clients know them. */
export function updatedText(payload: string): string {
  const { agent, budget, ...rest } = JSON.parse(payload) as JsonObject;
  return JSON.stringify({
    ...rest,
    ...(agent !== undefined && {
      agent: sessionAgentJson(fromJson(AgentSchema, agent, LENIENT), NO_MEMBERS),
    }),
    ...(budget !== undefined && budgetJson(fromJson(BudgetSchema, budget, LENIENT))),
  });
}
