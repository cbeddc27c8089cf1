/** `tendon hand-agent`: the daemons that host hands. */
import type { Command } from "commander";
import {
  CreateJoinTokenResponseSchema,
  RevokeHandAgentResponseSchema,
} from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { HandAgent } from "../../proto/gen/tendon/v1/hand_pb.js";
import { ListHandAgentsResponseSchema } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { TENDON } from "../command-name.ts";
import { withSecretFile } from "../secret-file.ts";
import { formatFields, formatTable } from "../table.ts";
import { pairsText, parseCount, parseDuration, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";
import { addHandAgentPurge, addHandAgentRun } from "./programs.ts";

const MAX_WORDS = 3;
const DAYS_30_MS = 30 * 24 * 3_600_000;

export function addHandAgentCommands(program: Command): void {
  const handAgent = program
    .command("hand-agent")
    .description("hand agents: list them, let them join, revoke them, run one here");
  handAgent.addHelpText(
    "after",
    `
Examples:
  tendon hand-agent join-token --out join-token
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
  const revoke = handAgent
    .command("revoke <agent>")
    .description("end a hand agent's identity for good: it is cut off, and its hands count as lost");
  onAction(revoke, async ({ args, api, output }) => {
    const handAgentId = String(args[0]);
    const answer = await api.admin.revokeHandAgent({ handAgentId }, CALL_WITHIN);
    output.message(RevokeHandAgentResponseSchema, answer, () => `${handAgentId} is revoked`);
  });
  addHandAgentRun(handAgent);
  addHandAgentPurge(handAgent);
}

function addJoinToken(handAgent: Command): void {
  type Options = { workspace?: string; pool?: string; uses?: number; validFor?: number; out?: string };
  const command = handAgent
    .command("join-token")
    .description("make a token that lets hand agents join; it is shown this once")
    .option("--workspace <workspace>", "left out: the caller's own, or the default one")
    .option("--pool <pool>", "pool that they join")
    .option("--uses <n>", "how often it may be used; left out: once", parseCount(1, 10_000))
    .option("--valid-for <duration>", "such as 24h; left out: 1h", parseDuration(DAYS_30_MS))
    .option("--out <file>", "write the token to this new file, with mode 0600, instead of showing it")
    .addHelpText("after", "\nExample:\n  tendon hand-agent join-token --pool gpu --uses 5 --out join-token");
  onAction<Options>(command, async ({ options, api, output, target }) => {
    const request = {
      workspaceId: options.workspace ?? "",
      pool: options.pool ?? "",
      uses: options.uses ?? 0,
      validForMs: BigInt(options.validFor ?? 0),
    };
    const { out } = options;
    const make = () => api.admin.createJoinToken(request, CALL_WITHIN);
    const answer = out === undefined ? await make() : await withSecretFile(out, make);
    output.message(CreateJoinTokenResponseSchema, answer, () => {
      const { workspaceId, pool, usesLeft, expiresAt } = answer.joinToken!;
      const fields = formatFields([
        ["workspace", workspaceId],
        ["pool", pool],
        ["uses", String(usesLeft)],
        ["works until", timeText(expiresAt)],
        ["token", out === undefined ? answer.secret : `in ${out} alone`],
      ]);
      const move =
        out === undefined
          ? "Write the token to a file with mode 0600 on the other machine (here, --out FILE does so); there:"
          : `Take ${out} to the other machine; there:`;
      return `${fields}\n${move}\n  ${TENDON} hand-agent run --url ${target.url} --token-file ${out ?? "FILE"}`;
    });
  });
}

/** Details go on for sentences; `tendon doctor` and `--json` tell all of them. */
function firstWords(detail: string): string {
  return /^[^:;,(]*/.exec(detail)![0].trim().split(" ").slice(0, MAX_WORDS).join(" ");
}

/** "3.1 of 8 GiB memory, 40 of 100 GiB disk"; nothing for what is not known. */
function machineText(machine: HandAgent["resources"]): string {
  if (machine === undefined) return "";
  const part = (free: bigint, all: bigint, what: string) =>
    all === 0n ? [] : [`${gib(free)} of ${gib(all)} GiB ${what}`];
  return [
    ...part(machine.memoryFreeBytes, machine.memoryBytes, "memory"),
    ...part(machine.diskFreeBytes, machine.diskBytes, "disk"),
  ].join(", ");
}

function gib(bytes: bigint): string {
  const value = Number(bytes) / 1024 ** 3;
  return value < 10 ? value.toFixed(1) : value.toFixed(0);
}

function stateText({ revokedAt, online, duplicateSeenAt, lastSeenAt }: HandAgent): string {
  if (revokedAt) return "revoked";
  const state = online ? "online" : `offline since ${timeText(lastSeenAt)}`;
  return duplicateSeenAt ? `${state}; a copy of it was refused ${timeText(duplicateSeenAt)}` : state;
}

function agentTable(agents: readonly HandAgent[]): string {
  const rows = agents.map((agent) => [
    agent.id,
    agent.name,
    stateText(agent),
    agent.pool,
    `${agent.hands}/${agent.capacityHands}`,
    pairsText(agent.labels),
    machineText(agent.resources),
    agent.drivers
      .map(({ name, available, detail }) => `${name}: ${available ? firstWords(detail) : "no"}`)
      .join("; "),
  ]);
  return formatTable(["ID", "NAME", "STATE", "POOL", "HANDS", "LABELS", "FREE", "DRIVERS"], rows);
}
