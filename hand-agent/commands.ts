/** Carries out what the server says on a connection. Nothing here waits: whatever takes time goes on beside the loop. */
import { create } from "@bufbuild/protobuf";
import { messageOf, TendonError } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import {
  type CommandResult,
  CommandResultSchema,
  type ConnectResponse,
  type OwnerChanged,
  type ProvisionCommand,
  RepositoryOutcomeSchema,
  type SyncFilesCommand,
} from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { Executions } from "./executions.ts";
import { HandRefusal } from "./hand-refusal.ts";
import { handReport } from "./hand-report.ts";
import type { Hands } from "./hands.ts";
import type { ReachedHosts } from "./reach/reached-hosts.ts";
import type { Transfers } from "./transfers.ts";
import type { Tunnel } from "./tunnel/connection.ts";
import { AGAINST_COPIES } from "./tunnel/supervisor.ts";
import type { SandboxTunnels } from "./tunnels/sandbox-tunnels.ts";

export interface CommandDeps {
  hands: Hands;
  executions: Executions;
  transfers: Transfers;
  sandboxTunnels: SandboxTunnels;
  reached: ReachedHosts;
  log: Logger;
}

type Answer = Partial<Pick<CommandResult, "hand" | "repositories">>;

/** Resolves when it is done, well or not; undefined for what has parts of the agent to look after it. */
export function carryOut(
  deps: CommandDeps,
  tunnel: Tunnel,
  command: ConnectResponse["kind"],
): Promise<void> | undefined {
  const { hands, executions, transfers, log } = deps;
  switch (command.case) {
    case "startExecution":
      executions.start(command.value);
      return undefined;
    case "stopExecution":
      return executions.stop(command.value.executionKey, command.value.reason);
    case "forgetExecutions":
      executions.forget(command.value.executionKeys);
      return undefined;
    case "provision":
      return answer(deps, tunnel, command.value.commandId, () => provision(deps, command.value));
    case "release":
      return answer(deps, tunnel, command.value.commandId, () => release(deps, command.value.handId));
    case "park":
      return answer(deps, tunnel, command.value.commandId, () => park(deps, command.value.handId));
    case "syncFiles":
      return answer(deps, tunnel, command.value.commandId, () =>
        syncFiles(deps, command.value, tunnel.signal),
      );
    case "unownedHands":
      return hands.destroyUnowned(command.value.handIds, tunnel.welcome.installationId);
    case "startTransfer":
      transfers.start(tunnel, command.value);
      return undefined;
    case "startTunnel":
      deps.reached.start(tunnel, command.value);
      return undefined;
    case "ownerChanged":
      return changeOwner(deps, command.value);
    case "identityShared":
      log.error(
        `another process tries to connect with this agent's identity, and is refused; ${AGAINST_COPIES}`,
      );
      return undefined;
    default:
      log.warn({ command: command.case ?? "unknown" }, "the server asks for what this build cannot do");
      return undefined;
  }
}

/** A parked hand has nothing running that could leave more, and is brought up to date before its next call. */
async function syncFiles(
  { hands }: CommandDeps,
  { handId, uploads, outputs }: SyncFilesCommand,
  signal: AbortSignal,
): Promise<Answer> {
  await hands.syncFiles(handId, { uploads, outputs }, signal);
  return {};
}

async function release(
  { hands, executions, transfers, sandboxTunnels }: CommandDeps,
  handId: string,
): Promise<Answer> {
  sandboxTunnels.endAll(handId);
  // Calls hear that it was their hand that went, not that their processes died.
  await executions.stopAll("the hand was released", handId);
  await transfers.stopAll(handId, new HandRefusal("HAND_RELEASED", "the hand was released"));
  await hands.release(handId);
  return {};
}

/** H6: whoever comes with an older number is refused from here on. */
async function changeOwner(
  { hands, transfers, sandboxTunnels, log }: CommandDeps,
  { handId, ownerNumber }: OwnerChanged,
): Promise<void> {
  try {
    await hands.changeOwner(handId, ownerNumber);
    sandboxTunnels.endAll(handId, ownerNumber);
    const why = new HandRefusal("OWNER_CHANGED", "the hand belongs to another session now");
    await transfers.stopAll(handId, why, ownerNumber);
  } catch (error) {
    log.error({ err: error, handId }, "a change of owner could not be noted");
  }
}

async function park({ hands, executions, transfers }: CommandDeps, handId: string): Promise<Answer> {
  if (transfers.isRunning(handId)) throw new HandRefusal("HAND_BUSY", "a copy is running in the hand");
  if (executions.isRunning(handId)) throw new HandRefusal("HAND_BUSY", "a call is running in the hand");
  const { status, ended } = await hands.park(handId);
  return { hand: handReport(status, ended) };
}

async function provision({ hands }: CommandDeps, command: ProvisionCommand): Promise<Answer> {
  const hand = handReport(await hands.provision(command));
  const repositories = hands.repositories(command.handId);
  return { hand, repositories: repositories.map((each) => create(RepositoryOutcomeSchema, each)) };
}

function answer(
  { log }: CommandDeps,
  tunnel: Tunnel,
  commandId: string,
  run: () => Promise<Answer>,
): Promise<void> {
  const say = (result: Answer & Partial<Pick<CommandResult, "reason" | "message">>) =>
    tunnel.send({ case: "commandResult", value: create(CommandResultSchema, { commandId, ...result }) });
  // Refusals may be thrown at once or later.
  return Promise.resolve()
    .then(run)
    .then(
      (result) => say(result),
      (error) => {
        const known = error instanceof HandRefusal || error instanceof TendonError;
        if (!known) log.error({ err: error }, `a command failed: ${messageOf(error)}`);
        say({
          reason: known ? error.reason : "INTERNAL",
          message: known ? error.message.slice(0, 4_000) : "the hand agent failed; its log says more",
        });
      },
    );
}
