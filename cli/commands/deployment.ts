/** `tendon deployment`: agents that run by themselves. */
import type { Command } from "commander";
import { StartupError } from "../../kit/program.ts";
import {
  type Deployment,
  type DeploymentRun,
  DeploymentRunSchema,
  DeploymentSchema,
  DeploymentStatus,
  DeploymentStatusSchema,
  DeploymentTrigger,
  DeploymentTriggerSchema,
} from "../../proto/gen/tendon/v1/deployment_pb.js";
import {
  ListDeploymentRunsResponseSchema,
  ListDeploymentsResponseSchema,
} from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { budgetText } from "../budget-options.ts";
import { CALL_WITHIN, EXIT_USAGE, onAction } from "../command.ts";
import type { Api } from "../connect.ts";
import {
  addDeploymentOptions,
  CLEARED,
  type Cleared,
  type DeploymentOptions,
  deploymentChange,
  initialEventsOf,
  parseCleared,
  scheduleOf,
} from "../deployment-options.ts";
import { agentIdOf, deploymentIdOf } from "../named.ts";
import { sessionPartsOf } from "../session-parts-options.ts";
import { formatFields, formatTable } from "../table.ts";
import { enumWord, enumWords, pairsText, parseEnum, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

export function addDeploymentCommands(program: Command): void {
  const deployment = program
    .command("deployment")
    .description("deployments: agents that run by themselves, on a schedule or when told");
  deployment.addHelpText(
    "after",
    `
A deployment is named by its id, or by a name that only one has.

Examples:
  tendon deployment create --name "Daily report" --message "Write today's report." --cron "0 9 * * 1-5" --time-zone Europe/Berlin
  tendon deployment update "Daily report" --cron "0 8 * * 1-5" --time-zone Europe/Berlin --clear budget
  tendon deployment run "Daily report"
  tendon deployment runs "Daily report" --failed`,
  );
  addCreate(deployment);
  addUpdate(deployment);
  addList(deployment);
  for (const [name, description, call] of CALLS) {
    const command = deployment.command(`${name} <deployment>`).description(description);
    onAction(command, async ({ args, api, output }) => {
      const deploymentId = await deploymentIdOf(api.deployments, String(args[0]));
      const { deployment: found } = await call(api, deploymentId);
      output.message(DeploymentSchema, found!, () => deploymentText(found!));
    });
  }
  addRun(deployment);
  addRuns(deployment);
}

type Call = (api: Api, deploymentId: string) => PromiseLike<{ deployment?: Deployment | undefined }>;

const CALLS: readonly (readonly [name: string, description: string, call: Call])[] = [
  [
    "get",
    "show a deployment",
    (api, deploymentId) => api.deployments.getDeployment({ deploymentId }, CALL_WITHIN),
  ],
  [
    "pause",
    "have the schedule start nothing",
    (api, deploymentId) => api.deployments.pauseDeployment({ deploymentId }, CALL_WITHIN),
  ],
  [
    "unpause",
    "have the schedule count again, from its next time on",
    (api, deploymentId) => api.deployments.unpauseDeployment({ deploymentId }, CALL_WITHIN),
  ],
  [
    "archive",
    "end a deployment for good; its sessions go on",
    (api, deploymentId) => api.deployments.archiveDeployment({ deploymentId }, CALL_WITHIN),
  ],
];

function addCreate(deployment: Command): void {
  const command = addDeploymentOptions(deployment.command("create").description("make a deployment")).option(
    "--request-id <id>",
    "makes repeating this command safe",
  );
  onAction<DeploymentOptions & { requestId?: string }>(command, async ({ options, api, output }) => {
    const { name, description = "" } = options;
    const initialEvents = initialEventsOf(options);
    if (name === undefined || initialEvents.length === 0)
      throw new StartupError("--name and --message are needed, or --name and --outcome", EXIT_USAGE);
    const schedule = scheduleOf(options);
    const parts = await sessionPartsOf(api, options);
    const spec = { ...parts, name, description, initialEvents, ...(schedule && { schedule }) };
    const { requestId = "" } = options;
    const { deployment: made } = await api.deployments.createDeployment({ requestId, spec }, CALL_WITHIN);
    output.message(DeploymentSchema, made!, () => deploymentText(made!));
  });
}

function addUpdate(deployment: Command): void {
  const command = addDeploymentOptions(
    deployment
      .command("update <deployment>")
      .description(
        "change a deployment; what is left out stays, and sessions that were made stay as they are",
      ),
  )
    .option(
      "--clear <part>",
      `${CLEARED.join(", ")}: it has none any more; may be given several times`,
      parseCleared,
    )
    .addHelpText(
      "after",
      `
What is given replaces what is there as a whole: the first events (--message, --outcome, --system), the vaults, the limits, and of
resources stores and repositories together with files and tokens that were given otherwise. --agent alone means its latest
version; --metadata name= takes a pair away.`,
    );
  onAction<DeploymentOptions & { clear?: Cleared[] }>(command, async ({ options, args, api, output }) => {
    const deploymentId = await deploymentIdOf(api.deployments, String(args[0]));
    const request = { deploymentId, ...(await deploymentChange(api, options, options.clear ?? [])) };
    const { deployment: after } = await api.deployments.updateDeployment(request, CALL_WITHIN);
    output.message(DeploymentSchema, after!, () => deploymentText(after!));
  });
}

function addList(deployment: Command): void {
  const list = addPageOptions(deployment.command("list").description("list deployments, newest first"))
    .option("--agent <agent>", "only of this agent; id or name")
    .option(
      "--status <status>",
      enumWords(DeploymentStatusSchema).join(" or "),
      parseEnum(DeploymentStatusSchema),
    )
    .option("--archived", "also archived ones");
  type Options = PageOptions & { agent?: string; status?: DeploymentStatus; archived?: boolean };
  onAction<Options>(list, async ({ options, api, output }) => {
    const { agent, status = DeploymentStatus.UNSPECIFIED, archived = false } = options;
    const agentId = agent === undefined ? "" : await agentIdOf(api.agents, agent);
    const request = { ...pageOf(options), agentId, status, includeArchived: archived };
    const page = await api.deployments.listDeployments(request, CALL_WITHIN);
    const text = () => deploymentTable(page.deployments) + nextPageNote(page);
    output.message(ListDeploymentsResponseSchema, page, text);
  });
}

function addRun(deployment: Command): void {
  const run = deployment
    .command("run <deployment>")
    .description("make a session now; exit code 1 when that fails")
    .option("--request-id <id>", "makes repeating this command safe");
  onAction<{ requestId?: string }>(run, async ({ options, args, api, output }) => {
    const deploymentId = await deploymentIdOf(api.deployments, String(args[0]));
    const request = { deploymentId, requestId: options.requestId ?? "" };
    const { run: made } = await api.deployments.runDeployment(request, CALL_WITHIN);
    output.message(DeploymentRunSchema, made!, () => runText(made!));
    return made?.error === undefined ? 0 : 1;
  });
}

function addRuns(deployment: Command): void {
  const runs = addPageOptions(
    deployment
      .command("runs [deployment]")
      .description("list runs, newest first; of one deployment, or of all"),
  )
    .option("--failed", "only those that made no session")
    .option(
      "--trigger <trigger>",
      enumWords(DeploymentTriggerSchema).join(" or "),
      parseEnum(DeploymentTriggerSchema),
    );
  type Options = PageOptions & { failed?: boolean; trigger?: DeploymentTrigger };
  onAction<Options>(runs, async ({ options, args, api, output }) => {
    const { failed, trigger = DeploymentTrigger.UNSPECIFIED } = options;
    const deploymentId = args[0] === undefined ? "" : await deploymentIdOf(api.deployments, String(args[0]));
    const request = { ...pageOf(options), deploymentId, trigger, ...(failed && { hasError: true }) };
    const page = await api.deployments.listDeploymentRuns(request, CALL_WITHIN);
    output.message(ListDeploymentRunsResponseSchema, page, () => runTable(page.runs) + nextPageNote(page));
  });
}

function statusText({ status, pause, archivedAt }: Deployment): string {
  if (archivedAt !== undefined) return "archived";
  return pause?.errorType ? `paused: ${pause.errorType}` : enumWord(DeploymentStatusSchema, status);
}

function deploymentTable(deployments: readonly Deployment[]): string {
  const rows = deployments.map((deployment) => [
    deployment.id,
    deployment.spec?.name ?? "",
    statusText(deployment),
    deployment.spec?.schedule?.expression ?? "",
    timeText(deployment.upcomingRunsAt[0]),
    timeText(deployment.lastRunAt),
  ]);
  return formatTable(["ID", "NAME", "STATUS", "SCHEDULE", "NEXT", "LAST"], rows);
}

function deploymentText(deployment: Deployment): string {
  const { spec } = deployment;
  const schedule = spec?.schedule;
  return formatFields([
    ["id", deployment.id],
    ["name", spec?.name],
    ["description", spec?.description],
    ["status", statusText(deployment)],
    ["schedule", schedule && `${schedule.expression} in ${schedule.timeZone}`],
    ["next", deployment.upcomingRunsAt.map(timeText).join("\n")],
    ["last", timeText(deployment.lastRunAt)],
    ["agent", `${spec?.agentId} version ${spec?.agentVersion}`],
    ["environment", spec?.environmentId],
    ["first events", spec?.initialEvents.map(({ type }) => type).join(", ")],
    ["vaults", spec?.vaultIds.join(", ")],
    ["budget", budgetText(spec?.budget)],
    ["metadata", pairsText(spec?.metadata ?? {})],
    ["created", timeText(deployment.createdAt)],
    ["changed", timeText(deployment.updatedAt)],
    ["archived", timeText(deployment.archivedAt)],
  ]);
}

function runTable(runs: readonly DeploymentRun[]): string {
  const rows = runs.map(({ id, trigger, scheduledAt, sessionId, error, createdAt }) => [
    id,
    scheduledAt === undefined ? enumWord(DeploymentTriggerSchema, trigger) : timeText(scheduledAt),
    timeText(createdAt),
    sessionId,
    error?.type ?? "",
  ]);
  return formatTable(["ID", "FOR", "AT", "SESSION", "ERROR"], rows);
}

function runText(run: DeploymentRun): string {
  return formatFields([
    ["id", run.id],
    ["session", run.sessionId],
    ["error", run.error && `${run.error.type}: ${run.error.message}`],
    ["agent", `${run.agentId} version ${run.agentVersion}`],
    ["created", timeText(run.createdAt)],
  ]);
}
