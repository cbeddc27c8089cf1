/** `tendon hand-agent`: the daemons that host hands. */
import type { Command } from "commander";
import { CreateJoinTokenResponseSchema } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { HandAgent } from "../../proto/gen/tendon/v1/hand_pb.js";
import { ListHandAgentsResponseSchema } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { formatFields, formatTable } from "../table.ts";
import { pairsText, parseCount, parseDuration, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";
import { addHandAgentRun } from "./programs.ts";

const DAYS_30_MS = 30 * 24 * 3_600_000;

export function addHandAgentCommands(program: Command): void {
  const handAgent = program
    .command("hand-agent")
    .description("hand agents: list them, let them join, run one here");
  handAgent.addHelpText(
    "after",
    `
Examples:
  tendon hand-agent join-token --json | jq -r .secret > join-token
  tendon hand-agent run --url https://tendon.example.com --token-file join-token`,
  );
  const list = addPageOptions(handAgent.command("list").description("list hand agents")).option(
    "--revoked",
    "also revoked ones",
  );
  onAction<PageOptions & { revoked?: boolean }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeRevoked: options.revoked === true };
    const page = await api.hands.listHandAgents(request, CALL_WITHIN);
    output.message(
      ListHandAgentsResponseSchema,
      page,
      () => agentTable(page.handAgents) + nextPageNote(page),
    );
  });
  addJoinToken(handAgent);
  addHandAgentRun(handAgent);
}

function addJoinToken(handAgent: Command): void {
  type Options = { workspace?: string; pool?: string; uses?: number; validFor?: number };
  const command = handAgent
    .command("join-token")
    .description("make a token that lets hand agents join; it is shown this once")
    .option("--workspace <workspace>", "left out: the caller's own, or the default one")
    .option("--pool <pool>", "pool that they join")
    .option("--uses <n>", "how often it may be used; left out: once", parseCount(1, 10_000))
    .option("--valid-for <duration>", "such as 24h; left out: 1h", parseDuration(DAYS_30_MS))
    .addHelpText(
      "after",
      "\nExample:\n  tendon hand-agent join-token --pool gpu --uses 5 --json | jq -r .secret > join-token",
    );
  onAction<Options>(command, async ({ options, api, output, target }) => {
    const request = {
      workspaceId: options.workspace ?? "",
      pool: options.pool ?? "",
      uses: options.uses ?? 0,
      validForMs: BigInt(options.validFor ?? 0),
    };
    const answer = await api.admin.createJoinToken(request, CALL_WITHIN);
    output.message(CreateJoinTokenResponseSchema, answer, () => {
      const { workspaceId, pool, usesLeft, expiresAt } = answer.joinToken!;
      const fields = formatFields([
        ["workspace", workspaceId],
        ["pool", pool],
        ["uses", String(usesLeft)],
        ["works until", timeText(expiresAt)],
        ["token", answer.secret],
      ]);
      return `${fields}\nOn the other machine: tendon hand-agent run --url ${target.url} --token …`;
    });
  });
}

function agentTable(agents: readonly HandAgent[]): string {
  const rows = agents.map((agent) => [
    agent.id,
    agent.name,
    agent.revokedAt ? "revoked" : agent.online ? "online" : `offline since ${timeText(agent.lastSeenAt)}`,
    agent.pool,
    `${agent.hands}/${agent.capacityHands}`,
    pairsText(agent.labels),
    agent.drivers
      .map(({ name, available, detail }) => `${name}: ${available ? "" : "no, "}${detail}`)
      .join("; "),
  ]);
  return formatTable(["ID", "NAME", "STATE", "POOL", "HANDS", "LABELS", "DRIVERS"], rows);
}
