/** What somebody is told when everything runs. */
import type { GetStatusResponse } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { TENDON } from "../command-name.ts";
import type { CliConfig } from "../config.ts";
import type { Target } from "../connect.ts";
import { formatFields } from "../table.ts";
import type { Defaults } from "./defaults.ts";

export function welcomeText(
  target: Target,
  status: GetStatusResponse,
  config: CliConfig,
  readyAfter: string,
): string {
  const keyFile = `${shellPath(target.dataDir.path)}/admin.key`;
  const fields = formatFields([
    ["listens on", target.url],
    ["model", modelText(status, config)],
    ["hands", isolationText(status)],
    ["database", status.database],
    ["data", target.dataDir.path],
  ]);
  const named = target.dataDir.isNamed ? ` --data-dir ${shellPath(target.dataDir.path)}` : "";
  return `
Tendon is ready after ${readyAfter}.

${fields}

Try:
  ${TENDON} chat${named}
  ${TENDON} session create${named} --message "run: uname -a"
  curl ${target.url}/tendon.v1.SessionService/ListSessions -H "authorization: Bearer $(cat ${keyFile})" -H "content-type: application/json" -d '{}'
`;
}

/** The same for a program. */
export function welcomeJson(target: Target, status: GetStatusResponse, defaults: Defaults): object {
  return {
    url: target.url,
    data_dir: target.dataDir.path,
    model_source: modelSource(status),
    isolation: status.isolation,
    database: status.database,
    agent_id: defaults.agentId,
    environment_id: defaults.environmentId,
  };
}

export function modelSource(status: GetStatusResponse): string {
  return [...new Set(status.harnesses.map((harness) => harness.modelSource))].join(", ");
}

export function modelText(status: GetStatusResponse, config: CliConfig): string {
  const model = config.TENDON_MODEL ?? "the harness's default model";
  switch (modelSource(status)) {
    case "demo":
      return "a scripted demo, no model: set ANTHROPIC_API_KEY (or ANTHROPIC_BASE_URL for a gateway) and start again";
    case "api":
      return `${model}, by the Messages API`;
    case "gateway":
      return `${model}, by the gateway of ANTHROPIC_BASE_URL`;
    default:
      return "unknown: no harness is connected";
  }
}

export function isolationText(status: GetStatusResponse): string {
  if (status.isolation.length > 0) return status.isolation.join("\n");
  return status.handAgentsOnline > 0
    ? `none can be made on the hand agent's machine; ${TENDON} doctor says why`
    : "unknown: no hand agent is connected";
}

function shellPath(path: string): string {
  return /^[\w./+@:-]+$/.test(path) ? path : `'${path.replaceAll("'", "'\\''")}'`;
}
